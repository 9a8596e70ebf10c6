"""Reports: how long the nodes of finished runs took, from what they recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import groupby, pairwise

from kfm_dagster.run_state.record import RunState
from kfm_dagster.storage.database import Database

BEGINNING = datetime.min.replace(tzinfo=UTC)


def node_seconds(states: Iterable[RunState]) -> dict[tuple[str, str], float]:
    """Return wall seconds by (dataset, operator), summed over runs; `states` come by run and time.

    A node's time is the span between the record before it in its run and its own, so it holds Dagster's part as well.
    The first node of a run has no record before it and does not count.
    """
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for _, records in groupby(states, key=lambda state: state.run_id):
        for earlier, later in pairwise(records):
            dataset, operator = later.dataset_id.split(".", 1)
            spent[dataset, operator] += (later.recorded_at - earlier.recorded_at).total_seconds()
    return dict(spent)


def ledger_span(database: Database, *, since: datetime = BEGINNING) -> tuple[datetime, datetime]:
    """Return when the first record (made at `since` or later) was made and the last one changed.

    Raises ValueError when there is none.
    """
    with database.snapshot() as tx:
        row = tx.run("reports.ledger_span", since=since).one()
    if row.began_at is None:
        raise ValueError("the ledger is empty")
    return row.began_at, row.ended_at


def ms_per_unit(states: Iterable[RunState]) -> dict[str, float]:
    """Return wall milliseconds per unit by dataset, over every run that settled units."""
    records = list(states)
    units: Counter[str] = Counter()
    for record in records:
        dataset, operator = record.dataset_id.split(".", 1)
        units[dataset] += record.validation_summary["checks"] if operator == "settle" else 0
    spent: dict[str, float] = defaultdict(float)
    for (dataset, _), seconds in node_seconds(records).items():
        spent[dataset] += seconds
    return {dataset: spent[dataset] * 1000 / count for dataset, count in units.items() if count}
