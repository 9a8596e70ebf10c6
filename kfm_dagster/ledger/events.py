"""Events: a log line for each end of an attempt, quarantine and requeue (WSM-20, TEL-06).

The logger `kfm_dagster.ledger.events` gets a log record per committed change: a line of JSON, whose members are also
attributes of the log record. Events name the unit and the run; text from outside (messages, reasons, addresses) stays
in the ledger. Events are built without a query, from the rows that the changing statement returns.
Does not belong here: the changes (`store.py`), and who decided them (`governance/log.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum, unique
from functools import partial
from typing import Any, Final

import orjson

from kfm_dagster.storage.database import Transaction
from kfm_dagster.telemetry.traces import attempt_ids, is_tracing

_LOG = logging.getLogger(__name__)


@unique
class LedgerEvent(StrEnum):
    """Outcome of a change of a unit."""

    SUCCEEDED = "succeeded"
    """An attempt ended with a registered Item and its lineage."""
    FAILED = "failed"
    """An attempt ended without success, because the run reported a failure or lost the claim."""
    QUARANTINED = "quarantined"
    """The unit was taken out of automatic flows, by the ledger or by a person."""
    RECOVERED = "recovered"
    """A failed or quarantined unit waits for another attempt."""


_LEVELS: Final = {
    LedgerEvent.SUCCEEDED: logging.INFO,
    LedgerEvent.FAILED: logging.WARNING,
    LedgerEvent.QUARANTINED: logging.WARNING,
    LedgerEvent.RECOVERED: logging.INFO,
}


@contextmanager
def unlogged() -> Iterator[None]:
    """Disable this process's events in the block, for a rehearsal in a database of its own."""
    before, _LOG.disabled = _LOG.disabled, True
    try:
        yield
    finally:
        _LOG.disabled = before


def announce(tx: Transaction, event: LedgerEvent, rows: Iterable[Any], *, by_person: bool = False) -> tuple[Any, ...]:
    """Log an event for each changed row, after the commit; return the rows.

    Each row has wal_id, dataset, last_error_code, attempts and ingest_run_id; a success's row also has stac_item_id. A
    person's decision has level INFO. If the process dies between the commit and the log, only `nodd_wal_transitions`
    has the change.
    """
    changed = tuple(rows)
    if changed:
        level = logging.INFO if by_person else _LEVELS[event]
        tx.after_commit(partial(_log, event, level, changed))
    return changed


def _log(event: LedgerEvent, level: int, rows: Sequence[Any]) -> None:
    if not _LOG.isEnabledFor(level):
        return
    for row in rows:
        fields = {
            "event": event.value,
            "wal_id": row.wal_id,
            "dataset": row.dataset,
            "last_error_code": row.last_error_code,
            "attempt": row.attempts,
            "run_id": row.ingest_run_id,
        }
        if event is LedgerEvent.SUCCEEDED:
            fields["stac_item_id"] = row.stac_item_id
        if is_tracing():
            fields["trace_id"] = f"{attempt_ids(row.wal_id, row.attempts).trace_id:032x}"
        _LOG.log(level, "%s", orjson.dumps(fields).decode(), extra=fields)
