"""What the gates and the audit cost of a run: a dataset's chain in this process, and what its spans took.

Without Dagster, whose part is the same whatever the gates do: the shares are of the chain alone, and so the highest
that they can be. Belongs here: the measurement. Does not belong here: the objects that it is made over (`backlog.py`).
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import date
from typing import Any

from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.telemetry.measures import Spent
from kfm_dagster.telemetry.spans import counted_spans

PARTS = {"gates": "kfm.gates", "audit": "kfm.audit"}
"""What is told > the span that it lies in."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Wall and CPU seconds of this process in one run over `units`, and in each of its PARTS."""

    units: int
    whole: Spent
    parts: dict[str, Spent]

    def as_json(self) -> dict[str, Any]:
        """Return the seconds of the run, and the share of each part and of all, in [0, 1]."""
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


def run_cost(pipeline: Pipeline, *, dataset: str, day: date, units: int) -> RunCost:
    """Ingest the objects of a day, `units` of them at most, in one run. Raises StageFailedError."""
    first = MessageParse(
        pipeline=pipeline,
        dataset=dataset,
        partition=day.isoformat(),
        run_id=str(uuid.uuid4()),
        source=Source.LISTING,
        limit=units,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    with counted_spans() as spent:
        outputs = run_chain(first)
    whole = Spent(seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)
    parts = {name: spent[of] for name, of in PARTS.items()}
    return RunCost(units=len(outputs[-1].envelopes), whole=whole, parts=parts)
