"""Partitions: one daily definition (UTC) for every dataset, so that one run can cover several datasets.

A unit belongs to the day of its key's own time, so that a partition's objects can be listed by prefix. Does not belong
here: which day is the first (`ingest/window.py`).
"""

from __future__ import annotations

from datetime import date

import dagster as dg


def daily_partitions(first_day: date) -> dg.DailyPartitionsDefinition:
    """Return the days from the first one on; today is a partition, too, for its objects arrive today."""
    return dg.DailyPartitionsDefinition(start_date=first_day.isoformat(), timezone="UTC", end_offset=1)
