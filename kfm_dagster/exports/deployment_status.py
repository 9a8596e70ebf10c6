"""Deployment status: problems that need attention, commands, and units by status. Read-only.

Belongs here: gathering the status from the database. Does not belong here: a terminal's tables (`cli/status.py`), the
results of stages (`validation.py`), or checks of queue, clock and stores (`deployment/doctor`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.alerts.store import Alert, AlertState, AlertStore
from kfm_dagster.catalog.following import FollowerRunner
from kfm_dagster.followers.announcements.plan import AnnouncementPlan, follower_name
from kfm_dagster.followers.announcements.store import AnnouncementStore
from kfm_dagster.governance.review import Proposal
from kfm_dagster.governance.switches import EVERY_DATASET, KillSwitch
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.gaps import Gap, GapKind
from kfm_dagster.ledger.rejections import KeptRejection
from kfm_dagster.ledger.reports import FailingUnits
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.lineage.batches import BACKEND, FILES, Waiting, backlog
from kfm_dagster.plural import counted
from kfm_dagster.views.feeds import GAP_DAYS

LATE = timedelta(minutes=15)
"""Longest normal wait of a dataset's units before a run starts: a tick takes seconds, a run a minute or two."""
REJECTED_SINCE = timedelta(days=1)
MOST_REJECTED = 1_000


@unique
class Urgency(StrEnum):
    """Whether a matter needs attention."""

    NOW = "now"
    """The matter needs a person's action."""
    KNOW = "know"
    """No action is needed now, for example because the matter resolves by itself or a person has decided it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matter:
    """A required action or a notice: `next_step` is a command, `path` a page of the console."""

    urgency: Urgency = Urgency.NOW
    what: str
    since: datetime | None = None
    next_step: str
    path: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentStatus:
    """Counts of units by dataset and every status, and matters by urgency, then by age."""

    at: datetime
    well: bool
    """Whether nothing needs attention."""
    matters: Sequence[Matter]
    units: Mapping[str, Mapping[Status, int]]

    @property
    def urgent(self) -> int:
        """How many matters need attention now."""
        return sum(matter.urgency is Urgency.NOW for matter in self.matters)

    @property
    def headline(self) -> str:
        """Whether all is well, in words."""
        notices = f"; {counted(len(self.matters) - self.urgent, 'notice')}" if len(self.matters) > self.urgent else ""
        needs = f"{counted(self.urgent, 'problem')} need{'s' if self.urgent == 1 else ''} attention{notices}"
        return "nothing needs attention" if self.well else needs


def deployment_status(pipeline: Pipeline) -> DeploymentStatus:
    """Return the deployment's status, from its database."""
    at = pipeline.clock()
    with pipeline.database.snapshot() as view:
        units = pipeline.ledger.counts(tx=view)
        failing = pipeline.ledger.failing(tx=view)
        pending = pipeline.ledger.pending_units(tx=view)
        off = pipeline.ledger.switches.engaged(tx=view)
        busy = {dataset for dataset, counts in units.items() if counts[Status.IN_PROGRESS]}
        matters = [
            *map(_of_failing, failing),
            *_of_waiting(pending, at, busy=busy, off=off, followed=pipeline.settings.followed),
            *map(_of_switch, off.values()),
            *map(_of_proposal, pipeline.ledger.review.waiting(tx=view)),
            *map(_of_alert, AlertStore(pipeline.database, clock=pipeline.clock).listed()),
            *_of_gaps(pipeline.gaps.list(since=at - timedelta(days=GAP_DAYS))),
            *_of_places(pipeline.following),
            *_of_lineage(backlog(view), at),
            *_of_announcements(pipeline),
            *_of_rejections(pipeline.deliveries.rejected(limit=MOST_REJECTED), at),
        ]
    order = sorted(matters, key=lambda item: (item.urgency is not Urgency.NOW, item.since or at, item.what))
    is_well = all(matter.urgency is not Urgency.NOW for matter in order)
    return DeploymentStatus(at=at, well=is_well, units=units, matters=order)


def _of_failing(group: FailingUnits) -> Matter:
    what = f"{counted(group.units, 'unit')} of {group.dataset} {group.status}: {group.code}"
    path = f"/units?dataset={group.dataset}&status={group.status}&code={group.code}"
    if group.status is Status.QUARANTINED:
        command = f"kfm units cases --dataset {group.dataset}"
        return Matter(what=what, since=group.first_at, next_step=command, path=path)
    stays = group.units - group.retried
    return Matter(
        urgency=Urgency.NOW if stays else Urgency.KNOW,
        what=f"{what}; {stays or 'none'} without another attempt",
        since=group.first_at,
        next_step=f"kfm units list --dataset {group.dataset} --status failed --error-code {group.code}",
        path=path,
    )


def _of_waiting(
    pending: Iterable[Any], at: datetime, *, busy: set[str], off: Mapping[str, KillSwitch], followed: Sequence[str]
) -> Iterator[Matter]:
    for row in pending:
        if followed and row.dataset not in followed:
            yield Matter(
                what=f"{counted(row.units, 'unit')} of {row.dataset} pending, but KFM_DATASETS lacks the dataset",
                since=row.oldest_at,
                next_step=f"add {row.dataset} to KFM_DATASETS",
                path=f"/units?dataset={row.dataset}&status=pending",
            )
        elif at - row.oldest_at > LATE and row.dataset not in busy and not off.keys() & {row.dataset, EVERY_DATASET}:
            waited = int((at - row.oldest_at).total_seconds() // 60)
            yield Matter(
                what=f"{counted(row.units, 'unit')} of {row.dataset} pending, the oldest for "
                f"{counted(waited, 'minute')}, and no run works on this dataset",
                since=row.oldest_at,
                next_step="kfm doctor",
                path=f"/units?dataset={row.dataset}&status=pending",
            )


def _of_switch(switch: KillSwitch) -> Matter:
    dataset = "all" if switch.dataset == EVERY_DATASET else switch.dataset
    return Matter(
        urgency=Urgency.KNOW,
        what=f"{dataset} switched off by {switch.engaged_by}: {switch.reason}",
        since=switch.engaged_at,
        next_step=f"kfm resume {dataset}",
        path="/decisions" if switch.dataset == EVERY_DATASET else f"/datasets/{dataset}",
    )


def _of_proposal(proposal: Proposal) -> Matter:
    return Matter(
        what=f"{proposal.command} of {counted(proposal.units, 'unit')}, proposed by {proposal.decision.actor}, "
        "waits for a second person",
        since=proposal.at,
        next_step=f"kfm governance approve {proposal.proposal_id}",
        path="/decisions",
    )


def _of_alert(alert: Alert) -> Matter:
    firing = alert.state is AlertState.FIRING
    return Matter(
        urgency=Urgency.NOW if firing else Urgency.KNOW,
        what=f"alert {alert.rule} ({alert.level}) of {alert.subject}"
        + ("" if firing else f", acknowledged by {alert.acknowledged_by}"),
        since=alert.opened_at,
        next_step=f"kfm alerts ack {alert.alert_id}" if firing else "kfm alerts list",
        path=f"/alerts?rule={alert.rule}",
    )


def _of_gaps(gaps: Iterable[Gap]) -> Iterator[Matter]:
    first_times: dict[tuple[str, GapKind], list[datetime]] = defaultdict(list)
    for gap in gaps:
        first_times[gap.dataset, gap.kind].append(gap.first_seen)
    words = {GapKind.SILENCE: "silent product", GapKind.DROP: "slow product", GapKind.HOLE: "hour with a hole"}
    for (dataset, kind), times in first_times.items():
        noun = "hours with holes" if kind is GapKind.HOLE and len(times) > 1 else None
        yield Matter(
            what=f"{len(times)} {noun} of {dataset}" if noun else f"{counted(len(times), words[kind])} of {dataset}",
            since=min(times),
            next_step=f"kfm gaps --dataset {dataset}",
            path=f"/gaps?dataset={dataset}",
        )


def _of_places(following: FollowerRunner) -> Iterator[Matter]:
    for place in following.states():
        if place.last_error is not None:
            announces = place.follower.startswith(follower_name(""))
            yield Matter(
                what=f"{place.follower} lacks {counted(place.behind, 'change')} of {place.collection_id}: "
                f"{place.last_error}",
                next_step="kfm announcements list" if announces else f"kfm stac rebuild --place {place.follower}",
            )


def _of_lineage(waits: Mapping[str, Waiting], at: datetime) -> Iterator[Matter]:
    places = {FILES: ("the lineage root", "KFM_LINEAGE_URL"), BACKEND: ("the lineage backend", "OPENLINEAGE_URL")}
    for destination, (place, setting) in places.items():
        waiting = waits[destination]
        if waiting.error is not None and waiting.oldest is not None:
            yield Matter(
                urgency=Urgency.NOW if at - waiting.oldest > LATE else Urgency.KNOW,
                what=f"{place} lacks {counted(waiting.batches, 'file')}: {waiting.error}",
                since=waiting.oldest,
                next_step=f"correct {setting}, or repair {place} (docs/lineage.md)",
            )


def _of_announcements(pipeline: Pipeline) -> Iterator[Matter]:
    for subscription in AnnouncementPlan.load(pipeline.settings.configs_dir, pipeline.registry).subscriptions:
        store = AnnouncementStore(pipeline.database, subscription.name, clock=pipeline.clock)
        if refused := store.status(follower_name(subscription.name)).refused:
            yield Matter(
                what=f"{subscription.name} refused {counted(refused, 'announcement')}",
                next_step=f"kfm announcements failing {subscription.name}",
            )


def _of_rejections(newest: Iterable[KeptRejection], at: datetime) -> Iterable[Matter]:
    counts = Counter(rejection.reason_code for rejection in newest if at - rejection.rejected_at <= REJECTED_SINCE)
    return [
        Matter(
            urgency=Urgency.KNOW,
            what=f"{counted(number, 'message')} rejected within a day: {reason}",
            next_step=f"kfm units rejected --reason {reason}",
            path=f"/rejected?reason={reason}",
        )
        for reason, number in sorted(counts.items())
    ]
