"""The units of a replay: select them, give reasons to skip them, and requeue a batch.

Every change is an operation of the ledger, in the caller's transaction. Does not belong here: whether the replay as a
whole is allowed (`plan.py`) and when the next batch is admitted (`limits.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from packaging.version import InvalidVersion, Version

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ledger.policy import NEVER_REPLAYED
from kfm_dagster.ledger.search import BEGINNING_OF_TIME, END_OF_TIME
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.recovery.replay.selection import Selection
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.view import json_row


@unique
class SkipReason(StrEnum):
    """The reason for not admitting a selected unit."""

    MOVED = "moved"
    """The record has changed since it was selected."""
    SUPERSEDED = "superseded"
    """A newer version of the object is known; this version cannot be read any more."""
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    """The contract grants no further attempt."""
    NEVER_REPLAYED = "never_replayed"
    """After this error code, no further attempt can succeed."""
    SWITCHED_OFF = "switched_off"
    """The dataset's kill switch is on."""
    NO_CONTRACT = "no_contract"
    """The dataset has no contract any more."""
    DOWNGRADE = "downgrade"
    """A newer release has made the current result."""


@dataclass(frozen=True, slots=True)
class SelectedUnit:
    """A selected record, in the order of the queries' columns; `made_by`: release of its result."""

    wal_id: WalId
    version: int
    status: Status
    dataset: str
    partition: str
    event_time: datetime
    attempts: int
    error_code: str | None
    object_uri: str
    superseded: bool
    made_by: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        names = ("wal_id", "dataset", "status", "event_time", "attempts", "object_uri")
        return json_row({name: getattr(self, name) for name in names} | {"last_error_code": self.error_code})


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The rules for requeuing units."""

    registry: ContractRegistry
    switched_off: frozenset[str]
    code_version: str
    allow_downgrade: bool

    def skip_reason(self, unit: SelectedUnit) -> SkipReason | None:
        """Return the reason for not requeuing a unit, or None."""
        checks = (
            (SkipReason.NO_CONTRACT, unit.dataset not in self.registry.contracts),
            (SkipReason.SWITCHED_OFF, unit.dataset in self.switched_off),
            (SkipReason.SUPERSEDED, unit.superseded),
            (SkipReason.DOWNGRADE, not self.allow_downgrade and self.is_newer(unit.made_by)),
        )
        for reason, holds in checks:
            if holds:
                return reason
        # The policy covers failed units; releasing and repeating units is a person's decision.
        return self._policy(unit) if unit.status is Status.FAILED else None

    def is_newer(self, made_by: str | None) -> bool:
        """Return whether a release is newer than this one; an unreadable version counts as newer."""
        if made_by is None:
            return False
        try:
            return Version(made_by) > Version(self.code_version)
        except InvalidVersion:
            return made_by != self.code_version

    def _policy(self, unit: SelectedUnit) -> SkipReason | None:
        code = unit.error_code or ""
        if code in NEVER_REPLAYED:
            return SkipReason.NEVER_REPLAYED
        granted = self.registry[unit.dataset].retry.attempts_for(code)
        return SkipReason.ATTEMPTS_EXHAUSTED if unit.attempts >= granted else None


def select(
    selection: Selection, *, registry: ContractRegistry, limit: int, tx: Transaction
) -> tuple[list[SelectedUnit], bool]:
    """Return the first `limit` records by event time and wal_id, and whether more records match."""
    filters = selection.spec.filters
    datasets = datasets_of(selection, registry)
    parameters = {
        "event_start": filters.event_time.start or BEGINNING_OF_TIME,
        "event_end": filters.event_time.end or END_OF_TIME,
        "first_day": filters.days.first,
        "last_day": filters.days.last,
        "created_after": filters.created.after,
        "created_before": filters.created.before,
        "attempts_max": filters.attempts and filters.attempts.max,
        "error_codes": sorted(set(filters.error_codes)) if filters.error_codes else None,
        "limit": limit + 1,
    }
    if filters.wal_ids:
        rows = tx.run(
            "replay.select_named",
            parameters,
            wal_ids=sorted(set(filters.wal_ids)),
            statuses=selection.spec.statuses,
            datasets=datasets,
        ).all()
    else:
        groups = [{"status": status, "dataset": name} for status in selection.spec.statuses for name in datasets]
        rows = tx.run("replay.select_units", parameters, groups=groups).all()
    return [_unit(row) for row in rows[:limit]], len(rows) > limit


def count_by_status(selection: Selection, *, registry: ContractRegistry, tx: Transaction) -> dict[Status, int]:
    """Count records by status, filtered only by the selection's datasets and times."""
    filters = selection.spec.filters
    names = datasets_of(selection, registry)
    rows = tx.run(
        "replay.count_by_status",
        groups=[{"status": status, "dataset": name} for status in Status for name in names],
        event_start=filters.event_time.start or BEGINNING_OF_TIME,
        event_end=filters.event_time.end or END_OF_TIME,
        first_day=filters.days.first,
        last_day=filters.days.last,
    ).all()
    counts = {Status(row.status): int(row.units) for row in rows}
    return {status: counts[status] for status in Status if status in counts}


def datasets_of(selection: Selection, registry: ContractRegistry) -> list[str]:
    """Return a selection's datasets, sorted. Raises ContractError for an unknown dataset."""
    named = selection.spec.filters.datasets
    if not named or EVERY_DATASET in named:
        return sorted(registry.contracts)
    return sorted({registry[name].id for name in named})


@dataclass(frozen=True, kw_only=True, slots=True)
class AdmittedBatch:
    """The result of a batch: the number of admitted units, and of skipped units by reason."""

    batch: int
    admitted: int
    skipped: Mapping[SkipReason, int]

    def __str__(self) -> str:
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(self.skipped.items()))
        return f"batch {self.batch}: {self.admitted} units admitted" + (f", skipped {why}" if why else "")


def admit(
    ledger: Ledger,
    *,
    replay_run_id: str,
    batch: int,
    selection: Selection,
    rules: Admission,
    decision: Decision,
    at: datetime,
    tx: Transaction,
) -> AdmittedBatch:
    """Requeue the batch's units that are unchanged since their selection and that `rules` allow."""
    rows = tx.run("replay.units_of_batch", replay_run_id=replay_run_id, batch=batch).all()
    skipped: dict[WalId, SkipReason] = {}
    admissible: dict[Status, dict[WalId, int]] = {status: {} for status in Status}
    for row in rows:
        unit = _unit(row[2:])
        if (
            skip_reason := _conflict(unit, row.selected_status, row.selected_version) or rules.skip_reason(unit)
        ) is not None:
            skipped[unit.wal_id] = skip_reason
        else:
            admissible[unit.status][unit.wal_id] = unit.version
    shared: dict[str, Any] = {"replay_run_id": replay_run_id, "tx": tx}
    reason = selection.replay_reason
    admitted = set(ledger.requeue(admissible[Status.FAILED], reason=reason, actor=decision.actor, **shared))
    for status in (Status.QUARANTINED, Status.SUCCEEDED):
        if admissible[status] and (action := override_action(status, selection)) is not None:
            admitted |= ledger.override(
                admissible[status],
                from_status=status,
                action=action,
                decision=decision,
                replay_reason=reason,
                **shared,
            )
    versions = {wal_id: version for units in admissible.values() for wal_id, version in units.items()}
    # A unit that the ledger did not requeue has changed since the check.
    skipped |= dict.fromkeys(versions.keys() - admitted, SkipReason.MOVED)
    tx.run(
        "replay.decide",
        replay_run_id=replay_run_id,
        batch=batch,
        at=at,
        decisions=[_decision(wal_id, "admitted", version=versions[wal_id] + 1) for wal_id in sorted(admitted)]
        + [_decision(wal_id, "skipped", skip_reason=skipped[wal_id]) for wal_id in sorted(skipped)],
    )
    return AdmittedBatch(batch=batch, admitted=len(admitted), skipped=Counter(skipped.values()))


def _conflict(unit: SelectedUnit, selected_status: str, selected_version: int) -> SkipReason | None:
    """Return MOVED for a record that has changed since its selection.

    A failed unit that has failed once more still counts as unchanged. A success or a quarantine at another version is
    another result, whose replacement is not approved.
    """
    moved = unit.status != selected_status or (unit.status is not Status.FAILED and unit.version != selected_version)
    return SkipReason.MOVED if moved else None


def override_action(status: Status, selection: Selection) -> GovernanceAction | None:
    """Return the override that requeues units of a status; None if units need no override."""
    if status is Status.QUARANTINED:
        return GovernanceAction.RELEASE
    if status is not Status.SUCCEEDED:
        return None
    must_match = selection.spec.options.must_match
    return GovernanceAction.REPEAT if must_match else GovernanceAction.REPAIR_AND_REPLACE


def _decision(
    wal_id: WalId, state: str, *, version: int | None = None, skip_reason: SkipReason | None = None
) -> dict[str, Any]:
    return {"wal_id": wal_id, "state": state, "skip_reason": skip_reason, "admitted_version": version}


def frozen(units: Sequence[SelectedUnit], *, batch_size: int) -> list[dict[str, Any]]:
    """Return the rows of a frozen selection."""
    return [
        {
            "position": number + 1,
            "batch": number // batch_size + 1,
            **{name: getattr(unit, name) for name in ("wal_id", "dataset", "status", "version")},
        }
        for number, unit in enumerate(units)
    ]


def _unit(row: Sequence[Any]) -> SelectedUnit:
    """Read a row by the order of its columns; reading by name would take as long as the query."""
    wal_id, version, status, *others = row
    return SelectedUnit(wal_id, version, Status(status), *others)
