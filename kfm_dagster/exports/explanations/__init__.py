"""Explanations of runs and units: work, reasons, durations and issues. Read-only."""
