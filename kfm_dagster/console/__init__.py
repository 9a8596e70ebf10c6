"""Answers over HTTP to browsers, monitors and programs, and over stdio to assistants."""
