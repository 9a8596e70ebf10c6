"""The plan of a replay: the units of its selection now, and the guards that refuse it.

This module only reads. A guard yields a named refusal, with observed and expected value, or nothing. Does not belong
here: limits and pace (`limits.py`), and which units of a batch are requeued (`units.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.review import Units
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.limits import Guard, GuardError, Refusal, Request
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


def query_refusals(request: Request) -> Iterator[Refusal]:
    """Refuse a query that is for another environment, or could read the whole ledger."""
    env, filters = request.selection.metadata.env, request.selection.spec.filters
    if env is not request.env:
        yield Refusal(
            guard=Guard.ENVIRONMENT,
            what="the selection is for another environment",
            observed=f"metadata.env {env}",
            expected=f"{request.env}, where this runs (KFM_ENV)",
            next_step="run the replay there, or write a selection for this environment",
        )
    if missing := _missing_scope(request.selection):
        yield Refusal(
            guard=Guard.SCOPE,
            what="the selection has no scope",
            observed=", ".join(missing),
            expected="a dataset, a time, and a status or an error code; or explicit wal_ids",
            next_step="add " + ", ".join(_OPTION_OF[lack] for lack in missing),
        )
    if EVERY_DATASET in filters.datasets and not request.limits.global_scope:
        yield Refusal(
            guard=Guard.GLOBAL_SCOPE,
            what="the selection has every dataset",
            observed=f'datasets "{EVERY_DATASET}"',
            expected=f"datasets by name in {request.env}",
            next_step="name the datasets that the incident touched",
        )
    longest, (start, end) = request.limits.max_window, _window(request.selection)
    if longest is None or filters.wal_ids:
        return
    if start is None or end is None or end - start > longest:
        yield Refusal(
            guard=Guard.WINDOW,
            what="the selection covers too long a time",
            observed="an open end" if start is None or end is None else f"{(end - start).days} days",
            expected=f"a start and an end, at most {longest.days} days apart in {request.env}",
            next_step="narrow event_time, or replay in several parts",
        )


_OPTION_OF = {
    "no dataset": "--dataset",
    "no time (days, event_time or created)": "--first-day and --last-day, or --event-time-start and --event-time-end",
    "no status and no error code": "--status or --error-code",
}


def _missing_scope(selection: Selection) -> list[str]:
    """Return the missing filters; without them, a selection could match any number of records."""
    filters = selection.spec.filters
    if filters.wal_ids or selection.spec.mode is Mode.BACKFILL:
        return []
    parts = (filters.datasets, any(_window(selection)), filters.status or filters.error_codes)
    return [lack for lack, part in zip(_OPTION_OF, parts, strict=True) if not part]


def _window(selection: Selection) -> tuple[datetime | None, datetime | None]:
    """Return the time span of a selection, preferably a span with both ends."""
    filters = selection.spec.filters
    spans = (
        (filters.event_time.start, filters.event_time.end),
        (filters.created.after, filters.created.before),
        (_midnight(filters.days.first), _midnight(filters.days.last, after=timedelta(days=1))),
    )
    bounded = [span for span in spans if any(span)]
    whole = [span for span in bounded if all(span)]
    return (whole or bounded or [(None, None)])[0]


def _midnight(day: date | None, *, after: timedelta = timedelta(0)) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC) + after


def request_refusals(request: Request) -> Iterator[Refusal]:
    """Return the refusals that need no ledger; every batch checks them again."""
    yield from query_refusals(request)
    spec_limits, options, limits = request.selection.spec.limits, request.selection.spec.options, request.limits
    lower = "lower the rate in options, or leave it out"
    for guard, what, observed, limit, next_step in (
        (
            Guard.MAX_SELECTION_RECORDS, "the selection asks for too many records",
            spec_limits.max_records, request.max_records, "lower limits.max_records (--limit)",
        ),
        (
            Guard.MAX_BATCH_SIZE, "the batches are too large",
            request.batch_size, limits.max_batch_size, "lower limits.batch_size (--batch-size)",
        ),
        (
            Guard.MAX_BATCHES, "the selection asks for too many batches",
            spec_limits.max_batches, request.max_batches, "lower limits.max_batches (--max-batches)",
        ),
        (Guard.RATE, "too many records per second", options.records_per_second, limits.records_per_second, lower),
        (Guard.RATE, "too many batches per minute", options.batches_per_minute, limits.batches_per_minute, lower),
    ):  # fmt: skip
        yield from _too_many(guard, what, observed or 0, limit, next_step)
    replaces = request.selection.spec.mode is Mode.REPAIR_AND_REPLACE
    missing = [] if not replaces or options.allow_repair_and_replace else ["options.allow_repair_and_replace"]
    missing += [] if request.change_ref else ["an approval reference"]
    if missing and (replaces or options.allow_downgrade):
        yield Refusal(
            guard=Guard.APPROVAL,
            what=f"{'repair-and-replace' if replaces else 'a downgrade'} needs a governed approval",
            observed=f"no {' and no '.join(part.removeprefix('an ') for part in missing)}",
            expected="options.allow_repair_and_replace, and the change or incident of the approval",
            next_step="get an approval, then pass --allow-repair-and-replace and --change-ref",
        )
    if limits.needs_change_ref and not request.change_ref:
        yield Refusal(
            guard=Guard.CHANGE_REFERENCE,
            what="a replay needs a change or incident reference",
            observed="none",
            expected=f"a reference in {request.env}",
            next_step="pass --change-ref, or set metadata.labels.incident_id",
        )


def kill_switch(request: Request, switched_off: frozenset[str]) -> Iterator[Refusal]:
    """Refuse while a dataset is switched off, if the selection respects kill switches (WAL-10)."""
    if switched_off and request.selection.spec.options.respect_kill_switch:
        yield Refusal(
            guard=Guard.KILL_SWITCH,
            what="a dataset is switched off",
            observed=", ".join(sorted(switched_off)),
            expected="no kill switch on a dataset of the selection",
            next_step="see the reason (kfm governance paused); release the switch first, or leave the dataset out",
        )


def _refused_units(
    request: Request, records: int, newer_results: int, *, more: bool, release: str
) -> Iterator[Refusal]:
    """Refuse too many records or batches, and a replacement of newer releases' results (RPL-07)."""
    limits, options = request.selection.spec.limits, request.selection.spec.options
    if more and limits.max_records is None:
        yield Refusal(
            guard=Guard.MAX_SELECTION_RECORDS,
            what="too many records match",
            observed=f"more than {records}",
            expected=f"at most {request.max_records} in {request.env}",
            next_step="narrow the selection, or limit it (--limit)",
        )
    yield from _too_many(
        Guard.MAX_BATCHES,
        "the selection needs too many batches",
        -(-records // request.batch_size),
        min(limits.max_batches or request.max_batches, request.max_batches),
        "narrow the selection, or make the batches larger",
    )
    if newer_results and not options.allow_downgrade:
        yield Refusal(
            guard=Guard.DOWNGRADE,
            what="results of a newer release would be replaced",
            observed=f"{newer_results} results newer than {release}",
            expected="results of this release or an older release",
            next_step="replay with that release, or approve the downgrade with --allow-downgrade",
        )


def _too_many(guard: Guard, what: str, observed: float, limit: float, next_step: str) -> Iterator[Refusal]:
    if observed > limit:
        expected = f"at most {limit:g}"
        yield Refusal(guard=guard, what=what, observed=f"{observed:g}", expected=expected, next_step=next_step)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedReplay:
    """The selected units, the numbers of these that are skipped, by reason, and the refusals.

    `more` means that records beyond the limit match, too; `seconds` is the shortest time that the rate allows.
    """

    selection: Selection
    units: Sequence[SelectedUnit]
    more: bool
    batch_size: int
    skipped: Mapping[SkipReason, int]
    seconds: float
    refusals: tuple[Refusal, ...]
    listings: int = 0
    """Number of listings of a backfill, one for each dataset and day; 0 for every other mode."""
    others: Mapping[Status, int] = field(default_factory=dict)
    """If no record matches: the number of records of the same datasets and times, by status."""

    @property
    def batches(self) -> int:
        """Number of batches."""
        return -(-len(self.units) // self.batch_size)

    @property
    def overrides(self) -> Units:
        """The record versions of the terminal units to requeue, by the override that requeues them."""
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
        """Records by UTC day, because each day gets separate runs."""
        return dict(sorted(Counter(unit.partition for unit in self.units).items()))

    def refuse(self) -> None:
        """Raise GuardError if a guard refuses the plan."""
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
            "examples": [unit.as_json() for unit in self.units[:5]],
            "refusals": [refusal.as_json() for refusal in self.refusals],
        }


def look(request: Request, *, registry: ContractRegistry, rules: Admission, tx: Transaction) -> PlannedReplay:
    """Return the plan of a selection as of now.

    Raises GuardError if a guard refuses the query itself, and ContractError for a dataset without a contract.
    """
    if refused := [*query_refusals(request)]:
        raise GuardError(refused)
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
    newer_results = sum(rules.is_newer(unit.made_by) for unit in units)
    off = rules.switched_off & ({unit.dataset for unit in units} or set(datasets))
    refusals = (
        *request_refusals(request),
        *_refused_units(request, len(units), newer_results, more=more, release=rules.code_version),
        *kill_switch(request, off),
    )
    return PlannedReplay(
        selection=selection,
        units=units,
        more=more,
        batch_size=request.batch_size,
        skipped=Counter(reason for reason in skip_reasons if reason is not None),
        seconds=_least_seconds(request, len(units)),
        refusals=refusals,
        listings=listings,
        others={} if units or listings else count_by_status(selection, registry=registry, tx=tx),
    )


def _least_seconds(request: Request, units: int) -> float:
    options, limits = request.selection.spec.options, request.limits
    batches = -(-units // request.batch_size)
    by_records = units / (options.records_per_second or limits.records_per_second)
    # All batches of a minute can be admitted at the beginning of this minute.
    minutes = max(batches - 1, 0) // (options.batches_per_minute or limits.batches_per_minute)
    return max(by_records, minutes * 60.0)
