"""What is to become of the demo's objects, held against the ledger once the queue is drained.

Does not belong here: what is published (`feed.py`, `sample_day.py`, `families.py`), and how the answer is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status

SOUND = frozenset({Status.SUCCEEDED})
SPOILT = frozenset({Status.QUARANTINED})
ANY_END = SOUND | SPOILT
"""Of an object that nobody has looked at before: it is ingested, or in quarantine with its reason."""
MOST_RECORDS = 1_000_000
"""More than any demo publishes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What was published: the ends of which each object must have one, by address, and what will have none.

    `rejected` messages give no unit; `skipped` are files that were not published, and why.
    """

    ends: Mapping[str, frozenset[Status]] = field(default_factory=dict)
    rejected: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)


def unexpected_ends(expected: Expected, ledger: LedgerQueries, *, rejected: int) -> Iterator[str]:
    """Yield a line for each object that the ledger does not have, or has at another end, and for missing rejections.

    `rejected` counts the messages that were. A rewritten object has a record for each version, and all count.
    """
    found: dict[str, list[NoddWalRecord]] = {uri: [] for uri in expected.ends}
    with ledger.database.snapshot() as tx:
        everything = ledger.find(limit=MOST_RECORDS, tx=tx)
    for record in everything:
        if record.object_uri in found:
            found[record.object_uri].append(record)
    for uri, records in found.items():
        wanted = " or ".join(sorted(expected.ends[uri]))
        if not records:
            yield f"{uri}: nothing is known of it; expected {wanted}"
        for record in records:
            if record.status not in expected.ends[uri]:
                why = f" ({record.last_error_code})" if record.last_error_code else ""
                yield f"{uri}: {record.status}{why}; expected {wanted}"
    if rejected < expected.rejected:
        yield f"{rejected} messages rejected; expected {expected.rejected}"
