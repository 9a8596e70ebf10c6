"""Drain: run until messages, units, backfills and tables of radar beams are finished.

Belongs here, too: the outcome of every unit. Does not belong here: the display of outcomes (`cli/demo.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kfm_dagster.addresses import shown
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.ingest.acknowledgement import Progress, progress
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, sentence
from kfm_dagster.ingest.path_arrivals import days_to_compute
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.plural import counted
from kfm_dagster.recovery.backfill.progress import UnlistedDays, listed_backfills, unlisted_days
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.views.feeds import IGNORED_COUNTS, IgnoredFilter


@dataclass(frozen=True, kw_only=True)
class DrainResult:
    """The outcomes of a deployment's units and messages once its queue is drained.

    Counts are of units, except `rejected`, `messages`, `ignored` and `earlier`.
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
    """Messages with ignored entries; a message counts once for each dataset and reason."""
    earlier: int = 0
    """Messages received before this drain; they and their units are included in the counts."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files of the demo's --objects that were not published, and why."""
    published: int = 0
    """Objects of the demo; each must reach a terminal status."""
    unexpected: tuple[str, ...] = ()
    """Objects with another outcome than expected, a line for each."""

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
    """Return the outcomes of all units and messages, from ledger and deliveries."""
    with pipeline.database.snapshot() as tx:
        counts = pipeline.ledger.counts(tx=tx)
        failing = pipeline.ledger.find(status=Status.QUARANTINED, limit=20, tx=tx)
    duplicates = pipeline.deliveries.duplicates()
    deliveries, ended = pipeline.deliveries.counts(), (Status.SUCCEEDED, Status.FAILED, Status.QUARANTINED)
    return DrainResult(
        datasets={
            contract.id: {
                "received": sum(counts.get(contract.id, {}).values()),
                **{status.value: counts.get(contract.id, {}).get(status, 0) for status in ended},
                "duplicates": duplicates.get(contract.id, 0),
            }
            for contract in pipeline.registry
        },
        rejected=deliveries[DeliveryState.REJECTED],
        messages=sum(deliveries.values()),
        # Counted by ignored entries, because the state of a deleted message does not show that it was ignored.
        ignored=sum(count.messages for count in IGNORED_COUNTS.query(pipeline, IgnoredFilter(), None, 0).rows),
        seconds=(pipeline.clock() - since).total_seconds(),
        database=shown(pipeline.settings.database_url),
        catalog=pipeline.settings.catalog,
        lineage=pipeline.settings.lineage,
        failing=tuple(f"{record.object_uri}: {record.last_error_code}" for record in failing),
    )


POLL_SECONDS = 0.5
PAUSE_PER_POLL = 9
"""Least ratio of a pause to the poll before it, because a poll counts every record, in 0.3 s per million records."""
FOLLOW_UP_SECONDS = 60.0
"""Longest wait, once all units are terminal, for runs that compute radar beams or collect evidence. A later deployment
starts the runs that are left."""
QUIET_POLLS = 3
"""Consecutive polls that must be idle, because SQS's counts are approximate."""


def _unlisted(ledger: Ledger) -> tuple[list[UnlistedDays], dict[str, list[UnlistedDays]]]:
    """Return the backfill days to be listed, and the days held for a person, by reason."""
    off = KillSwitchPolicy.now(ledger.switches)
    coming: list[UnlistedDays] = []
    held: dict[str, list[UnlistedDays]] = {}
    for days in unlisted_days(ledger.database):
        if (switch := off.of(days.dataset)) is not None:
            held.setdefault(sentence(switch), []).append(days)
        elif days.dataset not in ledger.registry.contracts:
            held.setdefault(f"no contract names {days.dataset}", []).append(days)
        else:
            coming.append(days)
    return coming, held


def drain(
    deployment: Deployment, pipeline: Pipeline, *, timeout_seconds: float, report: Callable[[Progress], None]
) -> Progress:
    """Poll until drained, calling `report` on every poll.

    Does not wait for backfill days that only a person can resume (`report_held_days`). Restarts parts of the deployment
    that die. Raises DependencyUnavailableError after the timeout and when parts keep dying; nothing is lost, and the
    next drain continues.
    """
    deadline = time.monotonic() + timeout_seconds
    ledger, replays = pipeline.ledger, ReplayEngine(pipeline=pipeline)
    quiet, follow_up_end = 0, None
    while True:
        poll_began = time.monotonic()
        now = progress(pipeline.queue, ledger)
        pause = max(POLL_SECONDS, PAUSE_PER_POLL * (time.monotonic() - poll_began))
        report(now)
        (coming, _), ending, replaying = _unlisted(ledger), listed_backfills(ledger.database), replays.at_work()
        idle = now.drained and not (coming or ending or replaying)
        if idle and _has_follow_up(pipeline):
            follow_up_end = follow_up_end or time.monotonic() + FOLLOW_UP_SECONDS
            idle = time.monotonic() > follow_up_end
        quiet = quiet + 1 if idle else 0
        if quiet >= QUIET_POLLS:
            return now
        deployment.tend()
        if time.monotonic() > deadline:
            raise DependencyUnavailableError(
                "the queue did not drain",
                observed=f"{_left(now, coming, ending, replaying=replaying)} left after {timeout_seconds:.0f} s",
                next_step=f"read {deployment.home / 'logs'} and run the command again; it continues where it stopped",
            )
        time.sleep(pause)


def _has_follow_up(pipeline: Pipeline) -> bool:
    """Return whether a day's beams or a quarantined unit's evidence are still due."""
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    return bool(days_to_compute(pipeline.ledger, pipeline.nodes, at=pipeline.clock()) or cases.due(limit=1))


def report_held_days(ledger: Ledger, report: Callable[[str], None]) -> None:
    """Report the backfill days that a drain left to a person, a line for each reason."""
    for why, days in _unlisted(ledger)[1].items():
        report(f"{_days(days)} not listed: {why}")


def flush_lineage(lineage: Lineage, report: Callable[[str], None]) -> None:
    """Publish the last steps' lineage, after the deployment's sensors have ended."""
    if (error := lineage.flush()) is not None:
        report(f"lineage waits for its backend: {error}")


def _left(now: Progress, coming: list[UnlistedDays], ending: list[str], *, replaying: bool) -> str:
    parts = [counted(now.queued, "message"), counted(now.units - now.terminal, "unit")]
    if coming:
        parts.append(_days(coming))
    elif ending:
        parts.append(f"the end of backfill {', '.join(ending)}")
    if replaying:
        parts.append("a replay (kfm replay status)")
    return ", ".join(parts)


def _days(unlisted: list[UnlistedDays]) -> str:
    names = ", ".join(sorted({days.backfill_id for days in unlisted}))
    return f"{counted(sum(days.days for days in unlisted), 'day')} of backfill {names}"
