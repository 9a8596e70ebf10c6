"""The metrics of what is added up besides moves (`metric_totals`): their names, labels, help and zeros.

A value that a label may have is there from the beginning, as 0: what first appears with a value has not risen for
Prometheus. Does not belong here: what is added up, when (`telemetry/totals.py` and the rooms that count).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, product

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from kfm_dagster.contracts.envelope import CheckStatus, ProvenanceStatus, StacStatus
from kfm_dagster.contracts.issues import (
    FenceIssue,
    GateIssue,
    GovernanceIssue,
    IntegrityIssue,
    MetadataIssue,
    ParseIssue,
    ProvenanceIssue,
    StacIssue,
)
from kfm_dagster.ledger.attempt_totals import PATHS
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.telemetry.totals import BOUNDS, SUM, KeptTotal, RecordUse, Total, bound_label

REJECTED = "rejected"
"""Status of records of messages that gave no unit; of which dataset they are, nobody knows."""


def _words(*vocabularies: Iterable[StrEnum], without: Iterable[StrEnum] = ()) -> tuple[str, ...]:
    words = {str(word) for word in chain.from_iterable(vocabularies)} - {str(word) for word in without}
    return tuple(sorted(words))


ERROR_CODES = _words(
    IntegrityIssue, MetadataIssue, StacIssue, ProvenanceIssue, GateIssue, GovernanceIssue, FenceIssue,
    (LedgerCode.INCOMPLETE_CHAIN,),
)  # fmt: skip
"""Codes with which a run can end an attempt as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalCounter:
    """How a total is exposed. `subject` and `label` name the labels that it has for its own; "" for none.

    `known` are the values that the label may have, each of which begins with 0 for every dataset.
    """

    total: Total
    name: str
    documentation: str
    labels: tuple[str, ...] = ()
    subject: str = ""
    label: str = ""
    known: tuple[str, ...] = ("",)


COUNTERS: Sequence[TotalCounter] = (
    TotalCounter(
        total=Total.VALIDATION_ERRORS,
        name="nodd_sns_validation_errors",
        documentation="Attempts that their run ended as failed, by error code.",
        labels=("dataset", "env", "error_type"),
        subject="dataset",
        label="error_type",
        known=ERROR_CODES,
    ),
    TotalCounter(
        total=Total.MESSAGES_PARSED,
        name="nodd_sns_messages_parsed",
        documentation="Records of messages, at each receipt, by what they gave.",
        labels=("dataset", "status"),
        subject="dataset",
        label="status",
        known=_words(RecordUse),
    ),
    TotalCounter(
        total=Total.PARSE_FAILURES,
        name="nodd_sns_parse_failures",
        documentation="Records of messages that gave no unit, at each receipt, by reason.",
        labels=("reason",),
        label="reason",
        known=_words(ParseIssue),
    ),
    TotalCounter(
        total=Total.INTEGRITY_CHECKS,
        name="nodd_sns_integrity_checks",
        documentation="Attempts that ended after integrity-check, by its status.",
        labels=("dataset", "status"),
        subject="dataset",
        label="status",
        known=_words(CheckStatus, without=(CheckStatus.UNKNOWN,)),
    ),
    TotalCounter(
        total=Total.INTEGRITY_FAILURES,
        name="nodd_sns_integrity_failures",
        documentation="What integrity-check found that failed a unit.",
        labels=("dataset", "issue"),
        subject="dataset",
        label="issue",
        known=_words(IntegrityIssue),
    ),
    TotalCounter(
        total=Total.METADATA_EXTRACT,
        name="nodd_sns_metadata_extract",
        documentation="Attempts that ended after metadata-extract, by its status.",
        labels=("dataset", "status"),
        subject="dataset",
        label="status",
        known=_words(CheckStatus, without=(CheckStatus.UNKNOWN,)),
    ),
    TotalCounter(
        total=Total.METADATA_EXTRACT_FAILURES,
        name="nodd_sns_metadata_extract_failures",
        documentation="What metadata-extract found that failed a unit.",
        labels=("dataset", "issue"),
        subject="dataset",
        label="issue",
        known=_words(MetadataIssue),
    ),
    TotalCounter(
        total=Total.STAC_WRITES,
        name="nodd_sns_stac_writes",
        documentation="Attempts that ended after stac-register, by its outcome.",
        labels=("dataset", "outcome"),
        subject="dataset",
        label="outcome",
        known=_words(StacStatus, without=(StacStatus.UNKNOWN,)),
    ),
    TotalCounter(
        total=Total.PROVENANCE_EMITS,
        name="nodd_sns_provenance_emits",
        documentation="Attempts that ended after provenance-emit, by its status.",
        labels=("dataset", "status"),
        subject="dataset",
        label="status",
        known=_words(ProvenanceStatus, without=(ProvenanceStatus.UNKNOWN,)),
    ),
    TotalCounter(
        total=Total.PROVENANCE_FAILURES,
        name="nodd_sns_provenance_failures",
        documentation="Units of which a path of lineage was not taken.",
        labels=("dataset", "path"),
        subject="dataset",
        label="path",
        known=tuple(sorted(PATHS.values())),
    ),
    TotalCounter(
        total=Total.CONFLICTS,
        name="nodd_sns_wal_conflicts",
        documentation="Attempts that could not be settled: the record had become another attempt's.",
        labels=("dataset",),
        subject="dataset",
    ),
    TotalCounter(
        total=Total.BYTES_INGESTED,
        name="nodd_sns_bytes_ingested",
        documentation="Bytes of objects whose Item was created or updated.",
        labels=("dataset", "env"),
        subject="dataset",
    ),
    TotalCounter(
        total=Total.DEAD_LETTERS,
        name="nodd_sns_dlq_messages",
        documentation="Messages received before that were found on the dead-letter queue.",
        labels=("queue", "env", "dataset"),
        subject="dataset",
    ),
    TotalCounter(
        total=Total.DEAD_LETTERS_REPROCESSED,
        name="nodd_sns_dlq_reprocessed",
        documentation="Messages of the dead-letter queue whose units a drain took up.",
    ),
    TotalCounter(
        total=Total.ENERGY_KWH,
        name="nodd_sns_energy_kwh",
        documentation="Energy of all steps, measured or assumed.",
        labels=("env",),
    ),
    TotalCounter(
        total=Total.CARBON_GCO2E,
        name="nodd_sns_carbon_gco2e",
        documentation="Carbon of that energy.",
        labels=("env",),
    ),
    TotalCounter(
        total=Total.RUN_STATES,
        name="kfm_run_state_records",
        documentation="Outcomes recorded in run-state.",
        labels=("dataset_id", "outcome"),
        subject="dataset_id",
        label="outcome",
    ),
    TotalCounter(
        total=Total.RUN_STATE_SKIPS,
        name="kfm_run_state_skips",
        documentation="Times that a node had nothing to do.",
        labels=("dataset_id",),
        subject="dataset_id",
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalHistogram:
    """How a total that observes seconds is exposed, by dataset."""

    total: Total
    name: str
    documentation: str
    labels: tuple[str, ...]


HISTOGRAMS: Sequence[TotalHistogram] = (
    TotalHistogram(
        total=Total.INGEST_LATENCY,
        name="nodd_sns_ingest_latency_seconds",
        documentation="From the event of a live object to the end of the attempt that made its Item.",
        labels=("dataset", "env"),
    ),
    TotalHistogram(
        total=Total.STAC_WRITE_LATENCY,
        name="nodd_sns_stac_write_latency_seconds",
        documentation="In which a batch of Items was validated and written.",
        labels=("dataset",),
    ),
)


def total_families(
    kept: Iterable[KeptTotal], datasets: Sequence[str], *, env: str, dead_letters: str
) -> Iterator[Metric]:
    """Yield the metrics of totals. `dead_letters` is the name of the dead-letter queue."""
    amounts: dict[Total, dict[tuple[str, str], float]] = {total: {} for total in Total}
    for one in kept:
        amounts[one.total][one.subject, one.label] = one.amount
    amounts[Total.MESSAGES_PARSED]["", REJECTED] = sum(amounts[Total.PARSE_FAILURES].values())
    deployment = {"env": env, "queue": dead_letters}
    for counter in COUNTERS:
        yield _counter(counter, amounts[counter.total], datasets, deployment)
    for histogram in HISTOGRAMS:
        yield _histogram(histogram, amounts[histogram.total], datasets, deployment)


def _counter(
    counter: TotalCounter,
    amounts: Mapping[tuple[str, str], float],
    datasets: Sequence[str],
    deployment: Mapping[str, str],
) -> Metric:
    subjects = {"dataset": datasets, "": ("",)}.get(counter.subject, ())
    values = dict.fromkeys(product(subjects, counter.known), 0.0) | dict(amounts)
    family = CounterMetricFamily(counter.name, counter.documentation, labels=counter.labels)
    for (subject, label), amount in values.items():
        named = {**deployment, counter.subject: subject, counter.label: label}
        family.add_metric([named[name] for name in counter.labels], amount)
    return family


def _histogram(
    histogram: TotalHistogram,
    amounts: Mapping[tuple[str, str], float],
    datasets: Sequence[str],
    deployment: Mapping[str, str],
) -> Metric:
    family = HistogramMetricFamily(histogram.name, histogram.documentation, labels=histogram.labels)
    for dataset in sorted({*datasets, *(subject for subject, _ in amounts)}):
        named, below = {**deployment, "dataset": dataset}, 0.0
        buckets: list[tuple[str, float]] = []
        for bound in (*BOUNDS[histogram.total], float("inf")):
            below += amounts.get((dataset, bound_label(bound)), 0.0)
            buckets.append((bound_label(bound), below))
        family.add_metric(
            [named[name] for name in histogram.labels],
            buckets=buckets,
            sum_value=amounts.get((dataset, SUM), 0.0),
        )
    return family
