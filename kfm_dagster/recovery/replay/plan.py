"""The plan of a replay: the units of its selection now, and its refusals. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.review import Units
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.guards import refused_as_asked, refused_by_facts, refused_to_look
from kfm_dagster.recovery.replay.limits import GuardError, Refusal, Request, RequestFacts
from kfm_dagster.recovery.replay.selection import Mode, Selection
from kfm_dagster.recovery.replay.units import (
    Admission,
    SelectedUnit,
    SkipReason,
    count_by_status,
    datasets_of,
    override_action,
    select,
)
from kfm_dagster.storage.database import Transaction

EXAMPLES = 5
"""Records that a plan shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedReplay:
    """The units to requeue, their batches, the skipped units, and the refusals.

    `more` tells that records beyond the limit match; `seconds` is the least time that the rate allows.
    """

    selection: Selection
    units: Sequence[SelectedUnit]
    more: bool
    batch_size: int
    skipped: Mapping[SkipReason, int]
    seconds: float
    refusals: tuple[Refusal, ...]
    listings: int = 0
    """Days of datasets that a backfill lists; 0 for every other mode."""
    others: Mapping[Status, int] = field(default_factory=dict)
    """Where nothing matches: records of the same datasets and event times, by status."""

    @property
    def batches(self) -> int:
        """Number of batches."""
        return -(-len(self.units) // self.batch_size)

    @property
    def overrides(self) -> Units:
        """What the units in a terminal state need to leave it, at the versions that they have."""
        versions: dict[GovernanceAction, dict[WalId, int]] = {}
        for unit in self.units:
            if (action := override_action(unit.status, self.selection)) is not None:
                versions.setdefault(action, {})[unit.wal_id] = unit.version
        return versions

    @property
    def breakdown(self) -> list[dict[str, Any]]:
        """Records by dataset, status and error code."""
        counted = Counter((unit.dataset, unit.status.value, unit.error_code) for unit in self.units)
        ordered = sorted(counted.items(), key=lambda entry: (*entry[0][:2], entry[0][2] or ""))
        return [
            {"dataset": dataset, "status": status, "error_code": code, "units": units}
            for (dataset, status, code), units in ordered
        ]

    @property
    def partitions(self) -> dict[str, int]:
        """Records by UTC day: each day gets runs of its own."""
        return dict(sorted(Counter(unit.partition for unit in self.units).items()))

    def refuse(self) -> None:
        """Raise GuardError when a guard refuses it."""
        if self.refusals:
            raise GuardError(self.refusals)

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "name": self.selection.metadata.name,
            "mode": self.selection.spec.mode.value,
            "env": self.selection.metadata.env.value,
            "spec_sha256": self.selection.sha256(),
            "records": len(self.units),
            "more_match": self.more,
            "listings": self.listings,
            "batches": self.batches,
            "batch_size": self.batch_size,
            "admissible": len(self.units) - sum(self.skipped.values()),
            "skipped": {reason.value: count for reason, count in sorted(self.skipped.items())},
            "least_seconds": round(self.seconds, 1),
            "partitions": self.partitions,
            "breakdown": self.breakdown,
            "examples": [unit.as_json() for unit in self.units[:EXAMPLES]],
            "refusals": [refusal.as_json() for refusal in self.refusals],
        }


def look(request: Request, *, registry: ContractRegistry, rules: Admission, tx: Transaction) -> PlannedReplay:
    """Return the plan of a selection now.

    Raises GuardError where a guard refuses the query itself, and ContractError for a dataset without a contract.
    """
    if refusals := refused_to_look(request):
        raise GuardError(refusals)
    selection = request.selection
    datasets = datasets_of(selection, registry)
    units: list[SelectedUnit] = []
    more = False
    listings = 0
    if selection.spec.mode is Mode.BACKFILL:
        first, last = selection.days
        listings = ((last - first).days + 1) * len(datasets)
    else:
        limit = min(selection.spec.limits.max_records or request.max_records, request.max_records)
        units, more = select(selection, registry=registry, limit=limit, tx=tx)
    skip_reasons = [rules.skip_reason(unit) for unit in units]
    facts = RequestFacts(
        records=len(units),
        more=more,
        switched_off=rules.switched_off & ({unit.dataset for unit in units} or set(datasets)),
        newer_results=sum(rules.is_newer(unit.made_by) for unit in units),
        code_version=rules.code_version,
    )
    return PlannedReplay(
        selection=selection,
        units=units,
        more=more,
        batch_size=request.batch_size,
        skipped=Counter(reason for reason in skip_reasons if reason is not None),
        seconds=_least_seconds(request, len(units)),
        refusals=refused_as_asked(request) + refused_by_facts(request, facts),
        listings=listings,
        others={} if units or listings else count_by_status(selection, registry=registry, tx=tx),
    )


def _least_seconds(request: Request, units: int) -> float:
    options, limits = request.selection.spec.options, request.limits
    batches = -(-units // request.batch_size)
    by_records = units / (options.records_per_second or limits.records_per_second)
    # A minute's batches may come at once.
    minutes = max(batches - 1, 0) // (options.batches_per_minute or limits.batches_per_minute)
    return max(by_records, minutes * 60.0)
