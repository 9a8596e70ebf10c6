"""Ledger policy: codes and reasons of records, and when a failed unit is retried.

Belongs here: pure decisions from a dataset contract and an attempt's outcome. Does not belong here: SQL, clocks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.contracts.issues import ChainIssue, GovernanceIssue
from kfm_dagster.contracts.model import Backoff, DatasetContract, Retry


@unique
class ReplayReason(StrEnum):
    """Built-in reasons for a return to pending; further reasons are rows of `replay_reasons`."""

    BACKFILL = "backfill"
    DLQ_DRAIN = "dlq-drain"
    INCIDENT = "incident"
    RETRY = "retry"
    TEST = "test"


@unique
class LedgerCode(StrEnum):
    """Codes that the ledger itself sets, as error code or as reason of a change."""

    WORKER_LOST = "worker_lost"
    """The run that held the claim is dead."""
    ROLLED_BACK = "run_rolled_back"
    """A stage of the run failed permanently, and the run was rolled back."""
    LEASE_EXPIRED = "lease_expired"
    """The claim's lease expired before the unit was settled."""
    INCOMPLETE_CHAIN = ChainIssue.INCOMPLETE.value
    """No operator failed, but a sub-status forbids a success."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """The contract grants no further attempt."""
    NOT_COMPENSABLE = "not_compensable"
    """A stage of the run failed with a code that no retry cures; a person decides (`human_review` of the card)."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The next attempt would begin after the contract's deadline."""
    SUPERSEDED = "superseded"
    """A newer version of the object has been announced; this version cannot be read any more."""
    STALE_EVENT = "stale_event"
    """The event arrived after the event of a newer version of the same object."""
    GOVERNANCE_HARD_FAIL = GovernanceIssue.HARD_FAIL.value
    """Governance refused the content; a retry cannot help (state machine, section 7.2)."""


NEVER_REPLAYED: frozenset[str] = frozenset({LedgerCode.GOVERNANCE_HARD_FAIL})
"""Error codes that quarantine a unit without a retry; only a governed override requeues the unit."""


def replay_rules(contracts: Iterable[DatasetContract], *, without: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the replay rules; datasets in `without` or without a contract are never replayed."""
    never = sorted(NEVER_REPLAYED)
    return [
        {
            "dataset": contract.id,
            "max_attempts": contract.retry.max_attempts,
            "attempts_of": {str(code): contract.retry.attempts_for(code) for code in contract.retry.permanent.codes},
            "never": never,
        }
        for contract in contracts
        if contract.id not in without
    ]


def quarantine_reason(retry: Retry, *, attempt: int, error_code: str, human_review: Collection[str]) -> str | None:
    """Return why attempt number `attempt` quarantines the unit; None if a retry is allowed.

    `human_review` has the codes that no retry cures.
    """
    if error_code in NEVER_REPLAYED or error_code in human_review:
        return error_code
    return LedgerCode.ATTEMPTS_EXHAUSTED if attempt >= retry.attempts_for(error_code) else None


def is_overdue(retry: Retry, *, discovered: datetime, due: datetime, replay_reason: str | None) -> bool:
    """Return whether the next automatic attempt is after the deadline; replays have no deadline."""
    if retry.deadline_seconds is None or replay_reason not in {None, ReplayReason.RETRY}:
        return False
    return due > discovered + timedelta(seconds=retry.deadline_seconds)


def backoff_seconds(backoff: Backoff, *, key: str, attempt: int, base_seconds: float | None = None) -> float:
    """Return the seconds to wait after an attempt; `base_seconds` overrides the policy's base."""
    base = backoff.base_seconds if base_seconds is None else base_seconds
    # Attempts are at most 20 (contract model), so the power cannot overflow.
    seconds = base * 2.0 ** (max(attempt, 1) - 1) if backoff.kind.startswith("exp") else base
    seconds = min(seconds, backoff.maximum_seconds)
    return seconds * (0.5 + _share(key, attempt) / 2) if backoff.kind.endswith("jitter") else seconds


def _share(key: str, attempt: int) -> float:
    """Return a number in [0, 1) that depends only on key and attempt."""
    return int.from_bytes(hashlib.sha256(f"{key}#{attempt}".encode()).digest()[:8]) / 2**64
