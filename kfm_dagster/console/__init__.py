"""Answers to browsers, monitors, programs and assistants. Not here: counts, Dagster's UI."""
