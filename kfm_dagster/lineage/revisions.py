"""Revisions, under which a unit's lineage is published beside earlier publications (pure).

The first publication of a unit has the empty revision, in whichever attempt or replay. A publication is never erased
and never repeated; when a repair changed the unit's Item, or the lineage was withdrawn, a further revision is added,
named by the replay or the run.
The Item's content decides, not the status of this attempt: a repair that died after writing the catalog is a no-op on
its next attempt, and its revision is still missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kfm_dagster.contracts.envelope import Envelope, StacResult, StacStatus, WalId
from kfm_dagster.lineage.unit import FIRST_REVISION, LineagePath, LineageUnit, item_entity


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision:
    """One path's publication of a unit; content_sha256 is the Item's.

    It is None when the unit registered none, or was published by a release before revisions. `invalidated`: withdrawn.
    """

    path: LineagePath
    revision: str
    content_sha256: str | None
    invalidated: bool = False


History = Mapping[WalId, Sequence[Revision]]
"""Publications by unit, oldest first."""


def in_revision(unit: LineageUnit, history: History, *, run_id: str) -> LineageUnit:
    """Return the unit with its revision, related to the Items before and after it."""
    revision = _revision(unit.envelope, unit.stac, history.get(unit.wal_id, ()), run_id)
    revises, yields_to = _revised(unit, revision, history), _standing(unit.stac, history)
    if (revision, revises, yields_to) == (unit.revision, unit.revises, unit.yields_to):
        return unit
    return LineageUnit.of(unit.envelope, revision=revision, revises=revises, yields_to=yields_to)


def _revision(envelope: Envelope, stac: StacResult, published: Sequence[Revision], run_id: str) -> str:
    valid = _valid(published)
    # Without a replay, another release of the code changed the Item during a retry, or the run's publications were
    # withdrawn.
    unused = _unused(envelope.replay_run_id or run_id, published)
    if not valid:
        return unused if published else FIRST_REVISION
    latest = valid[-1]
    if stac.superseded or latest.content_sha256 == stac.content_sha256:
        return latest.revision
    if latest.content_sha256 is None and stac.write_status is StacStatus.NO_OP:
        return latest.revision
    return unused


def _revised(unit: LineageUnit, revision: str, history: History) -> str | None:
    earlier = unit.stac.replaces
    if earlier is None or unit.stac.superseded:
        return None
    revisions = [published.revision for published in _valid(history.get(earlier, ()))]
    if earlier != unit.wal_id:
        return item_entity(earlier, revisions[-1] if revisions else FIRST_REVISION)
    before = [published for published in revisions if published != revision]
    return item_entity(earlier, before[-1]) if before else None


def _standing(stac: StacResult, history: History) -> str | None:
    if stac.superseded_by is None:
        return None
    published = _valid(history.get(stac.superseded_by, ()))
    return item_entity(stac.superseded_by, published[-1].revision if published else FIRST_REVISION)


def _valid(published: Sequence[Revision]) -> list[Revision]:
    return [entry for entry in published if not entry.invalidated]


def _unused(name: str, published: Sequence[Revision]) -> str:
    """Return the name, numbered if its publication was withdrawn: an id is never reused."""
    withdrawn = {entry.revision for entry in published if entry.invalidated}
    number = 1
    revision = name
    while revision in withdrawn:
        number += 1
        revision = f"{name}.{number}"
    return revision
