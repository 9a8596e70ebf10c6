"""The KPIs of the pipeline card: definitions with sources, counted over a span and by day.

A day's KPIs are counted from the records of stages, audit and clock of that day (UTC), so they never change later.
DuckDB runs the queries over all attempts.
Belongs here: definitions and counting. Does not belong here: other parts of the report (`validation.py`), pages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from kfm_dagster.ingest.nodes import Settle
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.set_questions import ask
from kfm_dagster.telemetry.clock.quality import clock_quality
from kfm_dagster.telemetry.clock.reading import ClockReading

Line = Mapping[str, Any]
_CARD = "Pipeline Card Template v1.0, chapter 7"

_ATTEMPTS = pa.schema(
    {
        "run_id": pa.string(),
        "stage": pa.string(),
        "attempt": pa.int64(),
        "state": pa.string(),
        "seconds": pa.float64(),
        "input_hashes": pa.list_(pa.string()),
    }
)


class Kpi(NamedTuple):
    """The definition of a KPI, and its source: document, version, place in the document."""

    definition: str
    citation: str


_QUANTILE = "Hyndman and Fan, The American Statistician 50 (1996) 361, definition 7"
KPIS: Mapping[str, Kpi] = {
    "latency_p50_seconds": Kpi(
        definition="median of the seconds from the start to the end of a stage that succeeded", citation=_QUANTILE
    ),
    "latency_p95_seconds": Kpi(definition="95th percentile of the seconds of latency_p50_seconds", citation=_QUANTILE),
    "throughput_units_per_second": Kpi(
        definition="number of settled units, divided by the seconds from the first to the last line of the audit",
        citation=f"{_CARD}, section XI",
    ),
    "retry_count": Kpi(definition="retries of stages", citation=f"{_CARD}, section VI"),
    "replay_count": Kpi(definition="selections and runs replayed", citation=f"{_CARD}, section VII"),
    "idempotency_conflicts": Kpi(
        definition="starts of a stage with other inputs than its previous attempt in the run",
        citation=f"{_CARD}, section V",
    ),
    "Q_res": Kpi(
        definition="share of evaluated gates that did not pass, 0 to 1, as the card's robust residual has no formula",
        citation=f"{_CARD}, section XI; Experimental Protocol Card Template v1.0, chapter 8, G6",
    ),
    "p_dim": Kpi(
        definition="share of quantities that close dimensionally: for the whole report among the quantities of each "
        "dataset's newest metadata and newest path, for a day among all quantities that G4 checked",
        citation=f"{_CARD}, sections I and IX",
    ),
    "delta_t_abs_seconds": Kpi(
        definition="δt_abs: absolute time error of the clock, in the newest reading of the source with most readings",
        citation=f"{_CARD}, sections II and XI",
    ),
    "sigma_y": Kpi(
        definition="σ_y(τ): overlapping Allan deviation of the source of δt_abs, by averaging time in seconds",  # noqa: RUF001 - the symbol of the card
        citation="NIST Special Publication 1065 (2008), equation 11",
    ),
}
"""Definition by KPI, for the report, its page and docs/pipeline-card.md."""


@dataclass(kw_only=True)
class RecordedSpan:
    """The records of a span of time; `replays` are the times of replayed selections."""

    attempts: Sequence[StageAttempt] = field(default_factory=list)
    lines: Sequence[Line] = field(default_factory=list)
    replays: Sequence[datetime] = field(default_factory=list)
    readings: Sequence[ClockReading] = field(default_factory=list)

    def by_day(self) -> dict[str, RecordedSpan]:
        """Return the records by UTC day, oldest first, without empty days."""
        days: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for attempt in self.attempts:
            days[attempt.opened_at.date().isoformat()]["attempts"].append(attempt)
        for line in self.lines:
            days[line["at"][:10]]["lines"].append(line)
        for at in self.replays:
            days[at.date().isoformat()]["replays"].append(at)
        for reading in self.readings:
            days[reading.at.date().isoformat()]["readings"].append(reading)
        return {day: RecordedSpan(**days[day]) for day in sorted(days)}

    def kpis(self) -> dict[str, Any]:
        """Return every KPI of KPIS."""
        table = attempts_table(self.attempts)
        [(p50, p95)] = ask("reports.latency", attempts=table)
        gates = [line["details"] for line in self.lines if line["kind"] == AuditKind.GATE]
        return {
            "latency_p50_seconds": p50,
            "latency_p95_seconds": p95,
            "throughput_units_per_second": _throughput(self.lines),
            "retry_count": sum(line["kind"] == AuditKind.RETRY for line in self.lines),
            # Replayed selections of units, and replayed runs.
            "replay_count": len(self.replays) + len({(line["run_id"], line["stage"]) for line in self.replayed()}),
            "idempotency_conflicts": ask("reports.conflicts", attempts=table)[0][0],
            "Q_res": sum(gate["outcome"] != "passed" for gate in gates) / len(gates) if gates else 0.0,
            "p_dim": _p_dim(self.lines),
            **_clock(self.readings),
        }

    def replayed(self) -> list[Line]:
        """Return the lines of replayed runs' stages; `replays` has the replays of selections."""
        return [line for line in self.lines if line["kind"] == AuditKind.REPLAY and "replay_of" in line["details"]]


def settled(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines of settlements, except settlements that a run reused."""
    for line in lines:
        if (
            line["event"] == "running>succeeded"
            and line["stage"].endswith(f".{Settle.operator}")
            and "reused" not in line["details"]
        ):
            yield line


def attempts_table(attempts: Sequence[StageAttempt]) -> pa.Table:
    """Return attempts as the table that `sql/queries/duckdb/reports.sql` reads."""
    rows = [
        {
            "run_id": row.run_id,
            "stage": row.stage,
            "attempt": row.attempt,
            "state": row.state.value,
            "seconds": (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None,
            "input_hashes": list(row.input_hashes),
        }
        for row in attempts
    ]
    return pa.Table.from_pylist(rows, schema=_ATTEMPTS)


def _throughput(lines: Sequence[Line]) -> float | None:
    """Return units settled per second between the first and the last line; None without a span."""
    times = [datetime.fromisoformat(line["at"]) for line in (*lines[:1], *lines[-1:])]
    seconds = (times[-1] - times[0]).total_seconds() if times else 0.0
    units = sum(line["details"].get("units", 0) for line in settled(lines))
    return units / seconds if seconds > 0 else None


def _p_dim(lines: Iterable[Line]) -> float | None:
    """Return the share of closed quantities; None if G4 checked nothing or recorded no figures."""
    figures = [line["details"].get("figures", {}) for line in lines if line["event"] == Gate.G4]
    quantities = sum(counts.get("quantities", 0) for counts in figures)
    return sum(counts.get("closed", 0) for counts in figures) / quantities if quantities else None


def _clock(readings: Sequence[ClockReading]) -> dict[str, Any]:
    """Return |delta t| (seconds) and sigma_y by tau (seconds) of the source with most readings."""
    best = max(clock_quality(readings), key=lambda entry: entry.readings, default=None)
    if best is None:
        return {"delta_t_abs_seconds": None, "sigma_y": {}}
    stable = {f"{entry.tau_seconds:g}": entry.sigma_y for entry in best.stability if entry.sigma_y is not None}
    return {"delta_t_abs_seconds": best.last.delta_t_abs, "sigma_y": stable}
