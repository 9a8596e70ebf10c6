"""Partitions: one daily definition (UTC) for every dataset, so that one run can cover several datasets.

A unit belongs to the day of its key's own time, so that a partition's objects can be listed by prefix.
"""

from __future__ import annotations

import dagster as dg

FIRST_DAY = "1991-06-01"
"""The month of the first NEXRAD Level II volume; about 13,000 partitions (Dagster is comfortable up to 100,000)."""

# end_offset=1: today is a partition too, for its objects arrive today.
DAYS = dg.DailyPartitionsDefinition(start_date=FIRST_DAY, timezone="UTC", end_offset=1)
