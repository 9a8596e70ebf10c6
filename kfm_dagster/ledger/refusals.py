"""Database refusals as errors that explain them.

The triggers of the ledger's tables (`sql/schema`) refuse with "rule: wal_id: from > to"; SQLite wraps that text,
PostgreSQL adds its context. Does not belong here: refusals by Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import IllegalTransitionError
from kfm_dagster.ledger.state_machine import allowed_instead

_REFUSAL = re.compile(r"(?P<rule>[a-z_]+): (?P<wal_id>\S+): (?P<from>[a-z_]+) > (?P<to>[a-z_]+)")


_APPROVAL = "an approval by a second person (kfm governance approve) of this unit, at this version"
Allowed = Callable[[str | None, str], str]
"""Maps a refused transition to the legal ones."""


def refusal(error: DBAPIError, *, allowed: Allowed = allowed_instead) -> IllegalTransitionError | None:
    """Return the refused transition, or None for any other database error."""
    match = _REFUSAL.search(str(error.orig))
    if match is None:
        return None
    from_status = None if match["from"] == "null" else match["from"]
    return IllegalTransitionError(
        wal_id=match["wal_id"],
        from_status=from_status,
        to_status=match["to"],
        expected=_APPROVAL if match["rule"] == "override_is_reviewed" else allowed(from_status, match["to"]),
        why=match["rule"],
    )


@contextmanager
def explained(*, allowed: Allowed = allowed_instead) -> Iterator[None]:
    """Raise IllegalTransitionError instead of the driver's error when a trigger refuses.

    `allowed` names the legal transitions of the state machine; by default that of the ledger's records.
    """
    try:
        yield
    except DBAPIError as error:
        if (refused := refusal(error, allowed=allowed)) is not None:
            raise refused from error
        raise
