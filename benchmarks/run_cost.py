"""The share of gates and audit in a run: a dataset's chain in this process, by its spans.

Dagster is left out, because its cost does not depend on the gates. With it, each share would be smaller.
Belongs here: the measurement. Does not belong here: the measured objects (`backlog.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any
from unittest.mock import patch

from opentelemetry import trace

from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.telemetry.measures import Spent

PARTS = {"gates": "kfm.gates", "audit": "kfm.audit"}
"""The name of each part's spans."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Wall and CPU seconds of this process in one run over `units`, and in each of its PARTS."""

    units: int
    whole: Spent
    parts: dict[str, Spent]

    def as_json(self) -> dict[str, Any]:
        """Return the seconds of the run, and the share of each part and of all parts, from 0 to 1."""
        both = {"wall": "seconds", "cpu": "cpu_seconds"}
        shares: dict[str, float] = {}
        for name, field in both.items():
            of_parts = {part: getattr(spent, field) / getattr(self.whole, field) for part, spent in self.parts.items()}
            shares |= {f"{part}_share_of_{name}": share for part, share in of_parts.items()}
            shares[f"share_of_{name}"] = sum(of_parts.values())
        return {
            "units": self.units,
            "wall_seconds": self.whole.seconds,
            "cpu_seconds": self.whole.cpu_seconds,
            **{name: round(share, 4) for name, share in shares.items()},
        }


class _CountingTracer(trace.NoOpTracer):
    """Adds up wall and CPU seconds of this process in the spans of each name."""

    def __init__(self) -> None:
        self.spent: dict[str, Spent] = {}

    @contextmanager
    def start_as_current_span(self, name: str, **_: Any) -> Iterator[trace.Span]:  # type: ignore[override]
        """Count the block's time."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield trace.INVALID_SPAN
        finally:
            before = self.spent.get(name, Spent(seconds=0.0, cpu_seconds=0.0))
            self.spent[name] = Spent(
                seconds=(before.seconds or 0.0) + time.perf_counter() - wall,
                cpu_seconds=(before.cpu_seconds or 0.0) + time.process_time() - cpu,
            )


def run_cost(pipeline: Pipeline, *, dataset: str, day: date, units: int) -> RunCost:
    """Ingest at most `units` objects of a day in one run. Raises StageFailedError."""
    first = MessageParse(
        pipeline=pipeline,
        dataset=dataset,
        partition=day.isoformat(),
        run_id=str(uuid.uuid4()),
        source=Source.LISTING,
        limit=units,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    tracer = _CountingTracer()
    # No provider is set, so that the product does not treat this process as traced.
    with patch.object(trace, "get_tracer", lambda _: tracer):
        outputs = run_chain(first)
    whole = Spent(seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)
    parts = {name: tracer.spent[of] for name, of in PARTS.items()}
    return RunCost(units=len(outputs[-1].envelopes), whole=whole, parts=parts)
