"""Ingest NOAA open data (NODD) from SQS messages into a STAC catalog with provenance, each effect once."""

__version__ = "0.1.0"
