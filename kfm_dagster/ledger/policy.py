"""Ledger policy: which words may stand in a record, when a failed unit is tried again, and when no more.

Belongs here: pure decisions from a dataset contract and an attempt's outcome. Does not belong here: SQL, clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum, unique
from typing import TypedDict

from kfm_dagster.contracts.model import DatasetContract, Retry


@unique
class ReplayReason(StrEnum):
    """Built-in reasons for failed > pending; governed ones are rows of `replay_reasons`."""

    BACKFILL = "backfill"
    DLQ_DRAIN = "dlq-drain"
    INCIDENT = "incident"
    RETRY = "retry"
    TEST = "test"


@unique
class LedgerCode(StrEnum):
    """Codes that the ledger itself gives, as error code or as reason of a change."""

    WORKER_LOST = "worker_lost"
    """The run that held the claim is dead."""
    LEASE_EXPIRED = "lease_expired"
    """The claim is older than the lease."""
    INCOMPLETE_CHAIN = "incomplete_chain"
    """No operator failed, yet a sub-status forbids the success."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """The contract grants no further attempt."""
    GOVERNANCE_HARD_FAIL = "governance_hard_fail"
    """Governance refused the content; trying again cannot help (state machine, section 7.2)."""


NEVER_REPLAYED: frozenset[str] = frozenset({LedgerCode.GOVERNANCE_HARD_FAIL})
"""Error codes that go to quarantine at once and come back only by a governed override."""


class ReplayRule(TypedDict):
    """What the ledger's statements know of a dataset's replay policy."""

    dataset: str
    max_attempts: int
    never: list[str]


def replay_rules(contracts: Iterable[DatasetContract]) -> list[ReplayRule]:
    """Replay policy of each dataset; one without a contract has no rule, so its records are never replayed."""
    never = sorted(NEVER_REPLAYED)
    return [
        {"dataset": contract.id, "max_attempts": contract.retry.max_attempts, "never": never} for contract in contracts
    ]


def quarantine_reason(retry: Retry, *, attempt: int, error_code: str) -> str | None:
    """Say why a unit that failed its n-th attempt goes to quarantine, or None when it may be tried again."""
    if error_code in NEVER_REPLAYED:
        return error_code
    return LedgerCode.ATTEMPTS_EXHAUSTED if attempt >= retry.max_attempts else None


def backoff_seconds(retry: Retry, *, attempt: int, base_seconds: float | None = None) -> float:
    """Seconds to wait after the n-th attempt failed: base for `const`, base * 2**(n-1) up to the maximum for `exp`.

    `base_seconds` replaces the contract's base.
    """
    backoff = retry.backoff
    base = backoff.base_seconds if base_seconds is None else base_seconds
    # Attempts are at most 20 (contract model), so the power cannot overflow.
    seconds = base if backoff.kind == "const" else base * 2.0 ** (max(attempt, 1) - 1)
    return min(seconds, backoff.maximum_seconds)
