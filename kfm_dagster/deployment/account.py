"""An account of a deployment: what became of every unit.

Does not belong here: the draining (`drain.py`), or how it is shown (`cli/demo.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfm_dagster.addresses import shown
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.ignored import IgnoredFilter, count_ignored
from kfm_dagster.ledger.state_machine import Status

MAX_FAILING_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class DrainResult:
    """What a deployment holds once its queue is drained.

    Counts are units but for `rejected`, `messages`, `ignored` and `earlier`.
    """

    datasets: Mapping[str, Mapping[str, int]]
    rejected: int
    messages: int
    seconds: float
    database: str
    catalog: str
    lineage: str
    failing: tuple[str, ...] = ()
    ignored: int = 0
    """Messages that named nothing to ingest."""
    earlier: int = 0
    """Messages that the home had received before this time; they and their units are counted, too."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files of the demo's --objects that were not published, and why."""
    published: int = 0
    """Objects of the demo, each of which must come to an end."""
    unexpected: tuple[str, ...] = ()
    """Those that did not end as they had to, a line for each."""

    def as_json(self) -> dict[str, Any]:
        """Return the published form of `kfm demo --json` and `kfm drain --json`."""
        return {
            "datasets": {name: dict(counts) for name, counts in self.datasets.items()},
            "rejected": self.rejected,
            "seconds": round(self.seconds, 3),
            "database": self.database,
            "catalog": self.catalog,
            "lineage": self.lineage,
            "skipped": dict(self.skipped),
            "unexpected": list(self.unexpected),
        }


def account(pipeline: Pipeline, *, since: datetime) -> DrainResult:
    """Ask ledger and deliveries what became of everything received."""
    counts = pipeline.ledger.counts()
    duplicates = pipeline.deliveries.duplicates()
    messages = pipeline.deliveries.counts()
    failing = pipeline.ledger.find(status=Status.QUARANTINED, limit=MAX_FAILING_SHOWN)
    return DrainResult(
        datasets={
            contract.id: {
                "received": sum(counts.get(contract.id, {}).values()),
                "succeeded": counts.get(contract.id, {}).get(Status.SUCCEEDED, 0),
                "failed": counts.get(contract.id, {}).get(Status.FAILED, 0),
                "quarantined": counts.get(contract.id, {}).get(Status.QUARANTINED, 0),
                "duplicates": duplicates.get(contract.id, 0),
            }
            for contract in pipeline.registry
        },
        rejected=messages[DeliveryState.REJECTED],
        messages=sum(messages.values()),
        # By the rows that were left: an ignored message is deleted like any other that is finished.
        ignored=sum(count.messages for count in count_ignored(pipeline.database, IgnoredFilter())),
        seconds=(pipeline.clock() - since).total_seconds(),
        database=shown(pipeline.settings.database_url),
        catalog=pipeline.settings.catalog,
        lineage=pipeline.settings.lineage,
        failing=tuple(f"{record.object_uri}: {record.last_error_code}" for record in failing),
    )
