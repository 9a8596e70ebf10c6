"""Totals: what the metrics add up besides the moves of records, in the transaction of what is counted (TEL-01, TEL-03).

A total has a metric, what it is about (a dataset, a node; "" for the deployment) and a label (a status, an error code);
every label is of a vocabulary of ours, so that their number is bounded. A histogram is kept as observations by the
bound of their class, and the sum of what was observed.
Belongs here: what is added up, writing and reading it. Does not belong here: when something is counted (its room), or
the names that Prometheus reads (`exports/metrics.py`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique

from kfm_dagster.storage.database import Transaction


@unique
class Total(StrEnum):
    """What is added up: of which subject, by which label."""

    MESSAGES_PARSED = "messages_parsed"
    """Records of messages, at each receipt: of a dataset ("" for none), by `RecordUse`."""
    PARSE_FAILURES = "parse_failures"
    """Records of messages that gave no unit, at each receipt, by issue code."""
    INTEGRITY_CHECKS = "integrity_checks"
    """Attempts that ended after the check: of a dataset, by status."""
    INTEGRITY_FAILURES = "integrity_failures"
    """What integrity-check found that failed a unit: of a dataset, by issue code."""
    METADATA_EXTRACT = "metadata_extract"
    """As INTEGRITY_CHECKS, of metadata-extract."""
    METADATA_EXTRACT_FAILURES = "metadata_extract_failures"
    """As INTEGRITY_FAILURES, of metadata-extract."""
    STAC_WRITES = "stac_writes"
    """Attempts that ended after stac-register: of a dataset, by outcome."""
    PROVENANCE_EMITS = "provenance_emits"
    """Attempts that ended after provenance-emit: of a dataset, by status."""
    PROVENANCE_FAILURES = "provenance_failures"
    """Lineage that was not taken: of a dataset, by path."""
    VALIDATION_ERRORS = "validation_errors"
    """Attempts that their run ended as failed: of a dataset, by error code."""
    CONFLICTS = "wal_conflicts"
    """Attempts that could not be settled, because the record had become another attempt's: of a dataset."""
    BYTES_INGESTED = "bytes_ingested"
    """Bytes of the objects whose Item was created or updated: of a dataset."""
    INGEST_LATENCY = "ingest_latency"
    """Seconds from the event of a live object to its Item, which was created or updated: of a dataset."""
    DEAD_LETTERS = "dlq_messages"
    """Messages of the primary queue that were found on its dead-letter queue: of a dataset ("" for none)."""
    DEAD_LETTERS_REPROCESSED = "dlq_reprocessed"
    """Messages of the dead-letter queue whose units a drain took up."""
    RUN_STATES = "run_state_records"
    """Outcomes recorded in run-state: of a node, by outcome."""
    RUN_STATE_SKIPS = "run_state_skips"
    """Times that a node had nothing to do: of a node."""
    STAC_WRITE_LATENCY = "stac_write_latency"
    """Seconds in which a batch of Items was validated and written: of a dataset."""
    ENERGY_KWH = "energy_kwh"
    """Energy of all steps."""
    CARBON_GCO2E = "carbon_gco2e"
    """Carbon of that energy."""


@unique
class RecordUse(StrEnum):
    """What a record of a message gave; those that were rejected are PARSE_FAILURES."""

    PARSED = "parsed"
    IGNORED = "ignored"


SUM = "sum"
"""Label of the sum of what a histogram has observed."""
BOUNDS: Mapping[Total, Sequence[float]] = {
    # 300 s is the service level of a message's way, 90 s that of its wait.
    Total.INGEST_LATENCY: (5, 10, 20, 30, 60, 90, 120, 180, 240, 300, 420, 600, 900, 1800, 3600, 7200, 21600),
    Total.STAC_WRITE_LATENCY: (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
}
"""Upper bounds of the classes of a histogram, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptTotal:
    """A total as it stands, from the database's first day."""

    total: Total
    subject: str
    label: str
    amount: float


class Totals:
    """What one transaction adds."""

    def __init__(self) -> None:
        self._amounts: defaultdict[tuple[Total, str, str], float] = defaultdict(float)

    def add(self, total: Total, subject: str = "", label: str = "", amount: float = 1) -> None:
        """Add an amount, which is not negative."""
        self._amounts[total, subject, label] += amount

    def observe(self, total: Total, seconds: float, *, subject: str) -> None:
        """Add one observation of a histogram; a time before its beginning, by another's clock, is 0."""
        seconds, bounds = max(seconds, 0.0), BOUNDS[total]
        place = bisect_left(bounds, seconds)
        self.add(total, subject, bound_label(bounds[place] if place < len(bounds) else math.inf))
        self.add(total, subject, SUM, seconds)

    def write(self, tx: Transaction) -> None:
        """Write what there is, which counts once the transaction is committed."""
        rows = [
            {"metric": total, "subject": subject, "label": label, "amount": amount}
            for (total, subject, label), amount in sorted(self._amounts.items())
            if amount > 0
        ]
        if rows:
            tx.run("totals.add", batch=rows)


def count(tx: Transaction, total: Total, subject: str = "", label: str = "", *, amount: float = 1) -> None:
    """Add one amount, which is not negative, in a transaction."""
    totals = Totals()
    totals.add(total, subject, label, amount)
    totals.write(tx)


def bound_label(bound: float) -> str:
    """Return how a bound is written, as Prometheus writes it."""
    return "+Inf" if bound == math.inf else f"{bound:g}"


def kept_totals(tx: Transaction) -> list[KeptTotal]:
    """Return every total that is not 0. What another release added up under another name is left out."""
    known = set(Total)
    return [
        KeptTotal(total=Total(row.metric), subject=row.subject, label=row.label, amount=float(row.amount))
        for row in tx.run("totals.read")
        if row.metric in known
    ]
