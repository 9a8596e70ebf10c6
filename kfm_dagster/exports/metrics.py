"""The ledger's metrics as Prometheus reads them: counters that the database keeps, so that they outlive every process.

Belongs here: names, labels, help and buckets. Does not belong here: what is counted (`nodd_wal_counts`), or the address
(`console/app.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.reports import MoveCount
from kfm_dagster.ledger.state_machine import Status

ATTEMPTS = (1, 2, 3, 4, 5, 10)
"""Bounds of the histogram's buckets, in attempts: the contracts allow a unit 3 to 10 (spec 001, section 8)."""


def exposition(pipeline: Pipeline) -> bytes:
    """Return every metric in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(pipeline))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    pipeline: Pipeline

    def collect(self) -> Iterator[Metric]:
        return families(self.pipeline)


def families(pipeline: Pipeline) -> Iterator[Metric]:
    """Yield every metric; a dataset in which nothing has happened has zeros."""
    with pipeline.database.snapshot() as view:
        moves = pipeline.ledger.move_counts(tx=view)
        mismatches = pipeline.ledger.mismatch_counts(tx=view)
    datasets = sorted({*pipeline.registry.contracts, *(move.dataset for move in moves), *mismatches})
    yield _records(moves, datasets)
    yield _replays(moves)
    yield _attempts(moves, datasets)
    differing = CounterMetricFamily(
        "nodd_sns_replay_mismatch", "Results that differ from an earlier success, unapproved.", labels=["dataset"]
    )
    for dataset in datasets:
        differing.add_metric([dataset], mismatches.get(dataset, 0))
    yield differing


def _records(moves: Iterable[MoveCount], datasets: Iterable[str]) -> Metric:
    entered = {(dataset, status): 0 for dataset in datasets for status in Status}
    for move in moves:
        entered[move.dataset, move.to_status] += move.moves
    family = CounterMetricFamily("nodd_sns_wal_records", "Moves of records, by status.", labels=["dataset", "status"])
    for (dataset, status), times in entered.items():
        family.add_metric([dataset, status], times)
    return family


def _replays(moves: Iterable[MoveCount]) -> Metric:
    family = CounterMetricFamily(
        "nodd_sns_wal_replays", "Returns to pending, by reason.", labels=["dataset", "replay_reason"]
    )
    for move in moves:
        if move.replay_reason:
            family.add_metric([move.dataset, move.replay_reason], move.moves)
    return family


def _attempts(moves: Iterable[MoveCount], datasets: Iterable[str]) -> Metric:
    claims: Mapping[str, dict[int, int]] = {dataset: {} for dataset in datasets}
    for move in moves:
        if move.attempt:
            claims[move.dataset][move.attempt] = move.moves
    family = HistogramMetricFamily(
        "nodd_sns_wal_attempts_histogram", "Claims, by which attempt of their unit each began.", labels=["dataset"]
    )
    for dataset, times in claims.items():
        bounds: list[tuple[str, float]] = [
            (f"{bound}", sum(count for attempt, count in times.items() if attempt <= bound)) for bound in ATTEMPTS
        ]
        family.add_metric(
            [dataset],
            buckets=[*bounds, ("+Inf", sum(times.values()))],
            sum_value=sum(attempt * count for attempt, count in times.items()),
        )
    return family
