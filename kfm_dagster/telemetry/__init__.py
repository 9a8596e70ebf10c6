"""Spans and logs."""
