"""Ingest NOAA open data (NODD) from SQS messages into a STAC catalog with provenance, exactly once."""

__version__ = "0.1.0"
