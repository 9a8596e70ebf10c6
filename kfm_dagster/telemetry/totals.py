"""Totals: counters that are written in the transaction of their event (TEL-01, TEL-03).

A total has a metric, a subject (a dataset, a node; "" for the deployment) and a label (a status, an error code). Labels
are from our own vocabularies, so that their number is bounded. A histogram is stored as the number of observations in
each class, labelled by the class's upper bound, and the sum of observations. Only transitions of records are counted
elsewhere.
Belongs here: the totals, their names and labels, writing and reading them. Does not belong here: the calls that count
(in the module that changes what they count), or Prometheus' form (`exports/metrics.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import StrEnum, unique
from typing import Self

from kfm_dagster.contracts.envelope import CheckStatus, ProvenanceStatus, StacStatus
from kfm_dagster.contracts.issues import ERROR_CODES, IntegrityIssue, MetadataIssue, ParseIssue, ProvenanceIssue
from kfm_dagster.storage.database import Transaction


@unique
class RecordUse(StrEnum):
    """The use of an entry of a message's `Records`; PARSE_FAILURES counts the rejected entries."""

    PARSED = "parsed"
    IGNORED = "ignored"


PATHS: Mapping[str, str] = {
    ProvenanceIssue.PROV_STORE_UNAVAILABLE: "prov",
    ProvenanceIssue.OPENLINEAGE_EMIT_FAILED: "openlineage",
}
"""Value of the label `path` by issue: the destination that did not accept the lineage."""
SUM = "sum"
"""Label of the sum of a histogram's observations."""
_SUBJECTS = frozenset({"dataset", "dataset_id"})
_DEPLOYMENT = frozenset({"env", "queue"})
_CHECKED = (CheckStatus.OK, CheckStatus.SUSPECT, CheckStatus.FAILED)


@unique
class Total(StrEnum):
    """A metric that is added up: its name for Prometheus, its description, its labels.

    Every dataset has a series, from the beginning with the value 0, for each `known` value of the metric's own label:
    Prometheus sees no rise in a series that first appears with another value. A histogram has `bounds`, the upper
    bounds of its classes, in seconds.
    """

    documentation: str
    labels: tuple[str, ...]
    known: tuple[str, ...]
    bounds: tuple[float, ...]

    def __new__(
        cls,
        name: str,
        documentation: str,
        labels: tuple[str, ...] = (),
        known: Iterable[str] = ("",),
        bounds: tuple[float, ...] = (),
    ) -> Self:
        """Return a member whose value is the metric's name for Prometheus."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.documentation, member.labels, member.bounds = documentation, labels, bounds
        member.known = tuple(sorted(known))
        return member

    VALIDATION_ERRORS = (
        "nodd_sns_validation_errors", "Attempts that their run settled as failed, by error code.",
        ("dataset", "env", "error_type"), ERROR_CODES,
    )  # fmt: skip
    MESSAGES_PARSED = (
        "nodd_sns_messages_parsed", "Records of messages, at each receipt, by their use.",
        ("dataset", "status"), RecordUse,
    )  # fmt: skip
    PARSE_FAILURES = (
        "nodd_sns_parse_failures", "Records of messages that gave no unit, at each receipt, by reason.",
        ("reason",), ParseIssue,
    )  # fmt: skip
    INTEGRITY_CHECKS = (
        "nodd_sns_integrity_checks", "Attempts that ended after integrity-check, by its status.",
        ("dataset", "status"), _CHECKED,
    )  # fmt: skip
    INTEGRITY_FAILURES = (
        "nodd_sns_integrity_failures", "Issues of integrity-check that failed a unit.",
        ("dataset", "issue"), IntegrityIssue,
    )  # fmt: skip
    METADATA_EXTRACT = (
        "nodd_sns_metadata_extract", "Attempts that ended after metadata-extract, by its status.",
        ("dataset", "status"), _CHECKED,
    )  # fmt: skip
    METADATA_EXTRACT_FAILURES = (
        "nodd_sns_metadata_extract_failures", "Issues of metadata-extract that failed a unit.",
        ("dataset", "issue"), MetadataIssue,
    )  # fmt: skip
    STAC_WRITES = (
        "nodd_sns_stac_writes", "Attempts that ended after stac-register, by its outcome.",
        ("dataset", "outcome"), set(StacStatus) - {StacStatus.UNKNOWN},
    )  # fmt: skip
    PROVENANCE_EMITS = (
        "nodd_sns_provenance_emits", "Attempts that ended after provenance-emit, by its status.",
        ("dataset", "status"), set(ProvenanceStatus) - {ProvenanceStatus.UNKNOWN},
    )  # fmt: skip
    PROVENANCE_FAILURES = (
        "nodd_sns_provenance_failures", "Units whose lineage a destination did not accept.",
        ("dataset", "path"), PATHS.values(),
    )  # fmt: skip
    CONFLICTS = (
        "nodd_sns_wal_conflicts", "Attempts that could not be settled, because another attempt held the record.",
        ("dataset",),
    )  # fmt: skip
    BYTES_INGESTED = (
        "nodd_sns_bytes_ingested", "Bytes of objects whose Item was created or updated.", ("dataset", "env"),
    )  # fmt: skip
    INGEST_LATENCY = (
        "nodd_sns_ingest_latency_seconds",
        "Time from the event of a live object to the end of the attempt that made its Item.",
        ("dataset", "env"), (),
        # 300 s is the service level of ingesting a message, 90 s the service level of its wait.
        (5, 10, 20, 30, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1800, 3600, 7200, 21600),
    )  # fmt: skip
    DEAD_LETTERS = (
        "nodd_sns_dlq_messages", "Messages found on the dead-letter queue, received from another queue before.",
        ("queue", "env", "dataset"),
    )  # fmt: skip
    DEAD_LETTERS_REPROCESSED = (
        "nodd_sns_dlq_reprocessed", "Messages of the dead-letter queue whose units a drain requeued.",
    )  # fmt: skip
    RUN_STATES = ("kfm_run_state_records", "Outcomes recorded in run-state.", ("dataset_id", "outcome"))
    RUN_STATE_SKIPS = ("kfm_run_state_skips", "Times that a node was skipped.", ("dataset_id",))
    STAC_WRITE_LATENCY = (
        "nodd_sns_stac_write_latency_seconds", "Time to validate and write a batch of Items.",
        ("dataset",), (), (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
    )  # fmt: skip
    ENERGY_KWH = ("nodd_sns_energy_kwh", "Energy of all steps, measured or assumed.", ("env",))
    CARBON_GCO2E = ("nodd_sns_carbon_gco2e", "CO2e of the energy of all steps, in grams.", ("env",))

    @property
    def subject(self) -> str:
        """The label that names an amount's subject; "" for the deployment as a whole."""
        return next((name for name in self.labels if name in _SUBJECTS), "")

    @property
    def label(self) -> str:
        """The metric's own label, besides subject and deployment; "" if it has no such label."""
        return next((name for name in self.labels if name not in _SUBJECTS | _DEPLOYMENT), "")


class Totals:
    """The amounts that a transaction adds."""

    def __init__(self) -> None:
        self._amounts: defaultdict[tuple[Total, str, str], float] = defaultdict(float)

    def add(self, total: Total, subject: str = "", label: str = "", amount: float = 1) -> None:
        """Add an amount, never negative."""
        self._amounts[total, subject, label] += amount

    def observe(self, total: Total, seconds: float, *, subject: str) -> None:
        """Add a histogram's observation. A negative time, as of two machines' clocks, counts as 0."""
        seconds, bounds = max(seconds, 0.0), total.bounds
        place = bisect_left(bounds, seconds)
        self.add(total, subject, bound_label(bounds[place] if place < len(bounds) else math.inf))
        self.add(total, subject, SUM, seconds)

    def write(self, tx: Transaction) -> None:
        """Write the amounts; these count once the transaction is committed."""
        rows = [
            {"metric": total, "subject": subject, "label": label, "amount": amount}
            for (total, subject, label), amount in sorted(self._amounts.items())
            if amount > 0
        ]
        if rows:
            tx.run("totals.add", batch=rows)


def count(tx: Transaction, total: Total, subject: str = "", label: str = "", *, amount: float = 1) -> None:
    """Add an amount, never negative, in a transaction."""
    totals = Totals()
    totals.add(total, subject, label, amount)
    totals.write(tx)


def bound_label(bound: float) -> str:
    """Return a bound as Prometheus writes it."""
    return "+Inf" if bound == math.inf else f"{bound:g}"


def kept_totals(tx: Transaction) -> dict[tuple[Total, str, str], float]:
    """Return the totals above 0 since the database's first day, by metric, subject and label.

    A total whose name only another release knows is left out.
    """
    known = {str(total): total for total in Total}
    rows = tx.run("totals.read")
    return {(known[row.metric], row.subject, row.label): float(row.amount) for row in rows if row.metric in known}
