"""Metrics for Prometheus, from counts in the database, which outlive every process.

Belongs here: the collection of all metrics, and names, labels and help of the metrics of transitions and queues. Does
not belong here: names and labels of the other metrics (`telemetry/totals.py`), the counts (`metric_totals`), or the
address (`console/app.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import TypeAlias, TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.reports import MoveCount
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.batches import backlog
from kfm_dagster.telemetry.totals import SUM, Total, bound_label, kept_totals

ATTEMPTS = (1, 2, 3, 4, 5, 10)
"""Upper bounds of buckets, in attempts: a contract allows 3 by default, spec 001, section 8 proposes 5 to 10."""
QUANTILES: Mapping[str, str] = {"0.5": "half_at", "0.9": "most_at", "0.99": "nearly_all_at", "1": "oldest_at"}
"""Quantiles of the age of waiting units, each with its column of `ledger.waiting`."""
NO_DEPTHS: Mapping[str, int] = {}
Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)
Amounts: TypeAlias = Mapping[tuple[str, ...], float]
"""Amounts by the values of their labels."""
REJECTED = "rejected"
"""Status of rejected messages and entries of messages, which have no unit and no known dataset."""


def exposition(pipeline: Pipeline, depths: Mapping[str, int] = NO_DEPTHS) -> bytes:
    """Return all metrics as Prometheus text. `depths`: messages of each queue that answered."""
    return generate_latest(_Families(pipeline, depths))


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    pipeline: Pipeline
    depths: Mapping[str, int]

    def collect(self) -> Iterator[Metric]:
        return families(self.pipeline, self.depths)


def families(pipeline: Pipeline, depths: Mapping[str, int] = NO_DEPTHS) -> Iterator[Metric]:
    """Yield every metric; a dataset without events has zeros."""
    settings, now = pipeline.settings, pipeline.clock()
    with pipeline.database.snapshot() as view:
        moves = pipeline.ledger.move_counts(tx=view)
        mismatches = pipeline.ledger.mismatch_counts(tx=view)
        waiting = pipeline.ledger.waiting(tx=view)
        totals = kept_totals(view)
        lineage = sorted(backlog(view).items())
    datasets = sorted({*pipeline.registry.contracts, *(move.dataset for move in moves), *mismatches})
    env, queues = settings.env, sorted({settings.sqs_primary_queue, *waiting})
    entered: dict[tuple[str, ...], float] = {(dataset, status): 0 for dataset in datasets for status in Status}
    returns: dict[tuple[str, ...], float] = {(dataset, reason): 0 for dataset in datasets for reason in ReplayReason}
    for move in moves:
        entered[move.dataset, move.to_status] += move.moves
        if move.replay_reason:
            returns[move.dataset, move.replay_reason] = move.moves
    yield _family(
        GaugeMetricFamily,
        "nodd_sns_queue_depth",
        "Messages that can be received; for the dead-letter queue, all messages.",
        ("queue", "env"),
        {(queue, env): messages for queue, messages in sorted(depths.items())},
    )
    ages: Amounts = {
        (queue, env, quantile): _age(getattr(waiting.get(queue), member, None), now)
        for queue in queues
        for quantile, member in QUANTILES.items()
    }
    help_text = "Time since the event, over live units that wait or are in progress, by quantile."
    yield _family(GaugeMetricFamily, "nodd_sns_queue_age_seconds", help_text, ("queue", "env", "quantile"), ages)
    batches: Amounts = {(destination, env): waits.batches for destination, waits in lineage}
    help_text = "Batches of lineage not delivered yet."
    yield _family(GaugeMetricFamily, "nodd_sns_lineage_waiting", help_text, ("destination", "env"), batches)
    oldest: Amounts = {(destination, env): _age(waits.oldest, now) for destination, waits in lineage}
    help_text = "Time since the oldest undelivered batch was recorded."
    yield _family(GaugeMetricFamily, "nodd_sns_lineage_age_seconds", help_text, ("destination", "env"), oldest)
    help_text = "Transitions of records, by the new status."
    yield _family(CounterMetricFamily, "nodd_sns_wal_records", help_text, ("dataset", "status"), entered)
    help_text = "Returns to pending, by reason."
    yield _family(CounterMetricFamily, "nodd_sns_wal_replays", help_text, ("dataset", "replay_reason"), returns)
    yield _attempts(moves, datasets)
    differing: Amounts = {(dataset, env): mismatches.get(dataset, 0) for dataset in datasets}
    help_text = "Results that differ from an earlier success, unapproved."
    yield _family(CounterMetricFamily, "nodd_sns_replay_mismatch", help_text, ("dataset", "env"), differing)
    yield from _totals(totals, datasets, {"env": env, "queue": settings.sqs_dlq_queue})


def _family(kind: type[Family], name: str, help_text: str, labels: Sequence[str], values: Amounts) -> Family:
    family = kind(name, help_text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max((now - since).total_seconds(), 0.0)


def _attempts(moves: Iterable[MoveCount], datasets: Iterable[str]) -> Metric:
    claims: Mapping[tuple[str, ...], Counter[str]] = {(dataset,): Counter() for dataset in datasets}
    for move in moves:
        if move.attempt:
            bound = next((bound for bound in ATTEMPTS if move.attempt <= bound), math.inf)
            claims[move.dataset,].update({bound_label(bound): move.moves, SUM: move.attempt * move.moves})
    family = HistogramMetricFamily(
        "nodd_sns_wal_attempts_histogram", "Claims, by the number of the attempt that each began.", labels=["dataset"]
    )
    return _histogram(family, ATTEMPTS, claims)


def _histogram(
    family: HistogramMetricFamily, bounds: Sequence[float], amounts: Mapping[tuple[str, ...], Mapping[str, float]]
) -> Metric:
    """Add a histogram per set of label values, from counts by `bound_label` and their SUM."""
    for labels, by_bound in amounts.items():
        below, buckets = 0.0, []
        for bound in map(bound_label, (*bounds, math.inf)):
            below += by_bound.get(bound, 0.0)
            buckets.append((bound, below))
        family.add_metric(labels, buckets=buckets, sum_value=by_bound.get(SUM, 0.0))
    return family


def _totals(
    kept: Mapping[tuple[Total, str, str], float], datasets: Sequence[str], deployment: Mapping[str, str]
) -> Iterator[Metric]:
    """Yield the metrics of totals; `deployment` has the values of the shared labels."""
    amounts: dict[Total, dict[tuple[str, str], float]] = {total: {} for total in Total}
    for (total, subject, label), amount in kept.items():
        amounts[total][subject, label] = amount
    amounts[Total.MESSAGES_PARSED]["", REJECTED] = sum(amounts[Total.PARSE_FAILURES].values())
    for total in Total:
        if total.bounds:
            by_dataset: dict[str, dict[str, float]] = {dataset: {} for dataset in datasets}
            for (dataset, bound), amount in amounts[total].items():
                by_dataset.setdefault(dataset, {})[bound] = amount
            of_labels = {
                _label_values(total, deployment, dataset): by_dataset[dataset] for dataset in sorted(by_dataset)
            }
            family = HistogramMetricFamily(total, total.documentation, labels=total.labels)
            yield _histogram(family, total.bounds, of_labels)
        else:
            subjects = {"dataset": datasets, "": ("",)}.get(total.subject, ())
            values = dict.fromkeys(product(subjects, total.known), 0.0) | amounts[total]
            amounts_by_label: Amounts = {
                _label_values(total, deployment, *labels): amount for labels, amount in values.items()
            }
            yield _family(CounterMetricFamily, total, total.documentation, total.labels, amounts_by_label)


def _label_values(total: Total, deployment: Mapping[str, str], subject: str, label: str = "") -> tuple[str, ...]:
    values = {**deployment, total.subject: subject, total.label: label}
    return tuple(values[name] for name in total.labels)
