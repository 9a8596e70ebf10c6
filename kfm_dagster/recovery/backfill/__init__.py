"""Backfills: days of datasets, listed and ingested beside the live messages."""
