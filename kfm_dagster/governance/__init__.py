"""Governance: what people decide about datasets and records, and the log that keeps it."""
