"""Replays for tests: units in any state, an engine, and a clock that a test moves.

Belongs here: helpers of the replay engine's tests. Helpers of dead-letter tests are in `dlq_fixture.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.recovery.replay.engine import Advance, ReplayEngine
from kfm_dagster.recovery.replay.limits import LIMITS
from kfm_dagster.recovery.replay.selection import Selection, selection_of
from kfm_dagster.settings import Environment
from kfm_dagster_tests.factories import START, bring, envelope, finished
from kfm_dagster_tests.integration.chain import Clock, open_pipeline
from kfm_dagster_tests.transactions import own_tx

DAY = START.date().isoformat()
NOW = datetime(2025, 12, 4, tzinfo=UTC)
PERSON = Decision(actor="person", reason="the header reader is fixed", change_ref="INC-1")
UNAPPROVED = Decision(actor="person", reason="looks odd")
WINDOW = {"start": "2025-12-03T00:00:00Z", "end": "2025-12-04T00:00:00Z"}
SCOPE: dict[str, Any] = {"datasets": ["nexrad-l2"], "status": ["failed"], "event_time": WINDOW}


def document(*, env: str = "dev", mode: str = "failed-only", labels: dict[str, str] | None = None, **spec: Any) -> Any:
    """Return a selection spec of the test units, with further `filters`, `limits`, `options`."""
    filters = SCOPE | spec.pop("filters", {})
    return {
        "apiVersion": "kfm.nodd.replay/v1",
        "kind": "ReplaySelection",
        "metadata": {"name": "schema-fix", "env": env, "labels": labels or {}},
        "spec": {"mode": mode, "filters": filters, **spec},
    }


def selection(**changes: Any) -> Selection:
    """Return the spec as a validated selection."""
    return selection_of(document(**changes), source="the test")


def repair(*statuses: str, **changes: Any) -> Selection:
    """Return a selection whose options allow replacing results."""
    options = {"allow_repair_and_replace": True} | changes.pop("options", {})
    filters = {"status": list(statuses or ("succeeded",))} | changes.pop("filters", {})
    return selection(mode="repair-and-replace", filters=filters, options=options, **changes)


def another_result(unit: Envelope) -> Envelope:
    """Return the finished unit with another Item content."""
    done = finished(unit)
    return done.evolve(stac=replace(done.stac, content_sha256="f" * 64))


@dataclass
class Stand:
    """A pipeline, its replay engine and its clock."""

    pipeline: Pipeline
    clock: Clock
    engine: ReplayEngine

    def bring(self, status: str, count: int = 1, *, first: int = 0, **changes: Any) -> list[Envelope]:
        """Record units and bring them to a state by legal transitions."""
        units = [envelope(number, **changes) for number in range(first, first + count)]
        bring(self.pipeline.ledger, status, units)
        return units

    def claim(self, units: Sequence[Envelope] | None = None, *, run_id: str = "run-1") -> list[Envelope]:
        return own_tx(self.pipeline.ledger).claim(
            dataset="nexrad-l2",
            partition=DAY,
            run_id=run_id,
            limit=100_000,
            wal_ids=None if units is None else [unit.wal_id for unit in units],
        )

    def work(self, ending: Callable[[Envelope], Envelope] = finished, *, run_id: str = "run-2") -> list[Envelope]:
        """Claim and settle all pending units."""
        claimed = self.claim(run_id=run_id)
        own_tx(self.pipeline.ledger).settle([ending(unit) for unit in claimed], run_id=run_id)
        return claimed

    def carry_out(self, replay_run_id: str, *, ending: Callable[[Envelope], Envelope] = finished) -> list[Advance]:
        """Advance the replay and process its units until no state changes."""
        steps: list[Advance] = []
        for _ in range(200):
            step = self.engine.advance(replay_run_id)
            steps.append(step)
            worked = self.work(ending)
            self.clock.forward(60)
            if step.state != "running" or (step.admitted is None and not worked):
                return steps
        raise AssertionError("the replay does not end")

    def records(self) -> dict[str, NoddWalRecord]:
        return {record.wal_id: record for record in own_tx(self.pipeline.ledger).find(limit=10_000)}

    def statuses(self) -> Counter[str]:
        return Counter(record.status.value for record in self.records().values())

    def limited(self, **changes: Any) -> ReplayEngine:
        """Return an engine with other limits."""
        stricter = replace(LIMITS[Environment.DEV], **changes)
        return ReplayEngine(pipeline=self.pipeline, limits={**LIMITS, Environment.DEV: stricter})


def open_stand(home: Path, url: str, **settings: Any) -> Stand:
    """Open an empty ledger with an engine."""
    pipeline = open_pipeline(home, home, url=url, **settings)
    pipeline.clock.now = NOW
    pipeline.window.make()  # as every ingesting process does
    return Stand(pipeline=pipeline, clock=pipeline.clock, engine=ReplayEngine(pipeline=pipeline))
