"""The state machine of a ledger record: states, legal transitions and their conditions.

Belongs here: the NODD WAL state machine document as values, and the explanation of the database's refusals. The
database has the same rules in CHECK constraints and triggers (`sql/schema/0001_first_schema.sql`); a test makes the two
agree. A trigger refuses with the text "rule: wal_id: from > to"; SQLite and PostgreSQL add words of their own to it.
Does not belong here: anything that reads or writes a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum, unique

from sqlalchemy.exc import DBAPIError

from kfm_dagster.contracts.envelope import CheckStatus, ProvenanceStatus, StacStatus
from kfm_dagster.errors import IllegalTransitionError


@unique
class Status(StrEnum):
    """Status of a unit (NODD WAL state machine, section 2)."""

    PENDING = "pending"
    """The unit is known and unclaimed; any worker may claim it."""
    IN_PROGRESS = "in_progress"
    """Exactly one run works on the unit, under a lease."""
    SUCCEEDED = "succeeded"
    """Item and provenance are published; terminal."""
    FAILED = "failed"
    """The attempt ended without success; a retry or a replay may follow."""
    QUARANTINED = "quarantined"
    """Taken out of automatic flows, for a person to examine; terminal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransitionRule:
    """A legal change of status, with its trigger and its condition."""

    from_status: Status | None
    to_status: Status
    trigger: str
    condition: str


TRANSITIONS: tuple[TransitionRule, ...] = (
    TransitionRule(
        from_status=None,
        to_status=Status.PENDING,
        trigger="a new unit is discovered",
        condition="no record has its identity; attempts 0, version 1, sub-statuses unknown",
    ),
    TransitionRule(
        from_status=Status.PENDING,
        to_status=Status.IN_PROGRESS,
        trigger="a run claims the unit",
        condition="the version is the version that was read; `attempts` rises by 1; run, worker and time are recorded",
    ),
    TransitionRule(
        from_status=Status.IN_PROGRESS,
        to_status=Status.SUCCEEDED,
        trigger="every operator completed",
        condition="each sub-status is allowed for a success (section 4.3)",
    ),
    TransitionRule(
        from_status=Status.IN_PROGRESS,
        to_status=Status.FAILED,
        trigger="an operator failed hard, or the run died",
        condition="the failure has an error code and a redacted message",
    ),
    TransitionRule(
        from_status=Status.FAILED,
        to_status=Status.PENDING,
        trigger="a retry or a replay",
        condition="attempts remain, the policy allows the error code, and the transition has a governed replay reason",
    ),
    TransitionRule(
        from_status=Status.PENDING,
        to_status=Status.QUARANTINED,
        trigger="a person or a policy takes the unit out",
        condition="an error code gives the reason",
    ),
    TransitionRule(
        from_status=Status.FAILED,
        to_status=Status.QUARANTINED,
        trigger="no attempt remains, or a person or a policy takes the unit out",
        condition="an error code gives the reason",
    ),
)
"""Every legal transition (section 3), except for OVERRIDES. Any other is illegal, also one to the same status."""

_DECIDED = (
    "a logged decision on exactly this version: actor, reason, change reference; in prod a second actor's approval"
)

OVERRIDES: tuple[TransitionRule, ...] = (
    TransitionRule(
        from_status=Status.QUARANTINED,
        to_status=Status.PENDING,
        trigger="a person releases the unit after remediation",
        condition=_DECIDED,
    ),
    TransitionRule(
        from_status=Status.SUCCEEDED,
        to_status=Status.PENDING,
        trigger="a person has the unit ingested again",
        condition=_DECIDED,
    ),
)
"""Transitions that need a governed override (sections 2.3 and 7.4)."""

LEGAL = frozenset((rule.from_status, rule.to_status) for rule in TRANSITIONS)

SUCCESS_REQUIRES: Mapping[str, frozenset[str]] = {
    "integrity_status": frozenset({CheckStatus.OK, CheckStatus.SUSPECT}),
    "metadata_status": frozenset({CheckStatus.OK, CheckStatus.SUSPECT}),
    "stac_status": frozenset({StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP}),
    "provenance_status": frozenset({ProvenanceStatus.OK, ProvenanceStatus.PARTIAL}),
}
"""Sub-statuses that a success may have (section 4.3)."""


def why_not_succeeded(sub_statuses: Mapping[str, str]) -> str | None:
    """Return why a sub-status forbids a success, or None; a missing sub-status is unknown."""
    for name, allowed in SUCCESS_REQUIRES.items():
        observed = sub_statuses.get(name, "unknown")
        if observed not in allowed:
            return f"{name} is {observed}, a success needs {' or '.join(sorted(allowed))}"
    return None


def allowed_instead(from_status: str | None, to_status: str) -> str:
    """Return the condition of a legal transition, or the transitions that `from_status` allows."""
    rules = [rule for rule in (*TRANSITIONS, *OVERRIDES) if rule.from_status == from_status]
    for rule in rules:
        if rule.to_status == to_status:
            return rule.condition
    return " or ".join(f"{from_status or 'null'} > {rule.to_status} ({rule.trigger})" for rule in rules)


def check_transition(wal_id: str, from_status: Status | None, to_status: Status) -> None:
    """Raise IllegalTransitionError for an illegal transition, naming wal_id, from and to."""
    if (from_status, to_status) not in LEGAL:
        raise IllegalTransitionError(
            wal_id=wal_id,
            from_status=from_status,
            to_status=to_status,
            expected=allowed_instead(from_status, to_status),
            why="no such transition",
        )


_REFUSAL = re.compile(r"(?P<rule>[a-z_]+): (?P<wal_id>\S+): (?P<from>[a-z_]+) > (?P<to>[a-z_]+)")
_APPROVAL = "an approval by a second person (kfm governance approve) of this unit, at this version"


def refusal(error: DBAPIError) -> IllegalTransitionError | None:
    """Return the refused transition, or None for any other database error."""
    match = _REFUSAL.search(str(error.orig))
    if match is None:
        return None
    from_status = None if match["from"] == "null" else match["from"]
    return IllegalTransitionError(
        wal_id=match["wal_id"],
        from_status=from_status,
        to_status=match["to"],
        expected=_APPROVAL if match["rule"] == "override_is_reviewed" else allowed_instead(from_status, match["to"]),
        why=match["rule"],
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn a refusal by a trigger of the ledger into IllegalTransitionError."""
    try:
        yield
    except DBAPIError as error:
        if (refused := refusal(error)) is not None:
            raise refused from error
        raise
