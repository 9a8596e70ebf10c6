"""Freshness policies: how long a dataset may bring no new Items before Dagster shows it as late.

Belongs here: the policy that a contract gives. Does not belong here: the freshness of each unit (gate G5), or which
products are missing, which is known more exactly (`gap_check.py`).
"""

from __future__ import annotations

from datetime import timedelta

import dagster as dg

from kfm_dagster.contracts.cadence import DROP_OVER, SILENT_AFTER
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.settings import FeedKind, Settings


def freshness_policy(contract: DatasetContract, settings: Settings) -> dg.FreshnessPolicy | None:
    """Return the policy of a dataset: a warning after two of the times in which something new comes, late after four.

    None where nothing says when something new comes: a sample of a feed, or a contract with neither.
    """
    if settings.feed is FeedKind.SAMPLE:
        return None
    listing = contract.storage.scheduled_listing if settings.scheduled_listings else None
    seconds = contract.freshness.budget_seconds if contract.freshness else listing and listing.every_seconds
    if not seconds:
        return None
    newest_for = timedelta(seconds=seconds)
    return dg.FreshnessPolicy.time_window(warn_window=SILENT_AFTER * newest_for, fail_window=DROP_OVER * newest_for)
