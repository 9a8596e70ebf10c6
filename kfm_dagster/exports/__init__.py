"""Exports: explanations of the records, and documents for the rest of the platform."""
