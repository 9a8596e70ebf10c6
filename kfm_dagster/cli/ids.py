"""Ids that a person types (units, replays, rejected messages): whole, or a prefix that no other has.

Does not belong here: when a prefix is enough (`contracts/identity.py`); runs, which Dagster knows, too
(`exports/explanations/explanation.py`).
"""

from __future__ import annotations

import re

from kfm_dagster.contracts.identity import MATCHES_ASKED, whole_id
from kfm_dagster.storage.database import Database, Transaction

_TYPED = re.compile(r"[0-9A-Za-z-]{1,64}")


def whole_wal_id(tx: Transaction, given: str) -> str:
    """Return the id of the record that is meant, or what was given where there is none. Raises AmbiguousIdError."""
    return _whole(tx, "ids.wal_ids", given, "wal_id")


def whole_replay_id(database: Database, given: str) -> str:
    """Return the id of the replay that is meant, or what was given where there is none. Raises AmbiguousIdError."""
    with database.snapshot() as tx:
        return _whole(tx, "ids.replay_ids", given, "replay id")


def whole_rejected_message_id(database: Database, given: str) -> str:
    """Return the id of the rejected message that is meant, or what was given where there is none.

    Raises AmbiguousIdError.
    """
    with database.snapshot() as tx:
        return _whole(tx, "ids.rejected_message_ids", given, "message id")


def _whole(tx: Transaction, query: str, given: str, what: str) -> str:
    if not _TYPED.fullmatch(given):
        return given
    found = tx.run(query, prefix=given, limit=MATCHES_ASKED).scalars().all()
    return whole_id(given, found, what=what) or given
