"""Which revision a unit's lineage is told as, and which Items it is related to."""

from __future__ import annotations

from typing import Any

import pytest

from kfm_dagster.contracts.envelope import Envelope, StacStatus, WalId
from kfm_dagster.lineage.revisions import Revision, in_revision
from kfm_dagster.lineage.unit import LineagePath, LineageUnit, item_entity
from kfm_dagster_tests.lineage.units import registered, repaired, superseded, with_stac

UNIT = registered().wal_id
OTHER = registered(1).wal_id
FIRST = str(registered().stac.content_sha256)  # type: ignore[union-attr]
REPAIRED = "e" * 64


def told(revision: str, content: str | None, *, invalidated: bool = False) -> Revision:
    return Revision(path=LineagePath.PROV, revision=revision, content_sha256=content, invalidated=invalidated)


@pytest.mark.clause("RPL-05")
def test_a_unit_is_told_as() -> None:
    unchanged = StacStatus.NO_OP
    units: dict[str, tuple[Envelope, list[Revision], str]] = {
        "first": (registered(), [], ""),
        "a failed unit's first lineage is its replay's": (repaired("r1"), [], ""),
        "again": (registered(), [told("", FIRST)], ""),
        "a repair that changed the Item": (repaired("r1"), [told("", FIRST)], "r1"),
        "that repair after a crash": (repaired("r1", write_status=unchanged), [told("", FIRST)], "r1"),
        "a replay that changed nothing": (
            repaired("r2", write_status=unchanged), [told("", FIRST), told("r1", REPAIRED)], "r1"
        ),
        "a repair that went back to what was": (
            repaired("r2", content_sha256=FIRST), [told("", FIRST), told("r1", REPAIRED)], "r2"
        ),
        "told before hashes were kept, and unchanged": (repaired("r1", write_status=unchanged), [told("", None)], ""),
        "told before hashes were kept, and changed": (repaired("r1"), [told("", None)], "r1"),
        "a newer unit's Item stands now": (superseded(0, by=1).evolve(replay_run_id="r1"), [told("", FIRST)], ""),
        "changed by another release in the middle of a retry": (
            with_stac(registered(), write_status=StacStatus.UPDATED, content_sha256=REPAIRED), [told("", FIRST)], "run"
        ),
        "a replay after a withdrawal": (
            repaired("replay", content_sha256=FIRST), [told("", FIRST, invalidated=True)], "replay"
        ),
    }  # fmt: skip
    for what, (envelope, history, revision) in units.items():
        found = in_revision(LineageUnit.of(envelope), {UNIT: history}, run_id="run")
        assert found.revision == revision, what
        assert found.activity_id == LineageUnit.of(envelope, revision=revision).activity_id, what


def test_an_item_revises() -> None:
    changed = {"replaces": UNIT, "content_sha256": REPAIRED}
    items: dict[str, tuple[dict[str, Any], dict[WalId, list[Revision]], str | None]] = {
        "nothing stood before": ({}, {}, None),
        "a rewritten object": ({"replaces": OTHER}, {}, item_entity(OTHER, "")),
        "one that had been repaired": (
            {"replaces": OTHER}, {OTHER: [told("", None), told("r0", None)]}, item_entity(OTHER, "r0")
        ),
        "its own Item, of which nothing was told": ({"replaces": UNIT}, {}, None),
        "its own Item": (
            {**changed, "write_status": StacStatus.UPDATED}, {UNIT: [told("", FIRST)]}, item_entity(UNIT, "")
        ),
        "its own Item, told by the other path already": (
            {**changed, "write_status": StacStatus.NO_OP}, {UNIT: [told("", FIRST), told("r1", REPAIRED)]},
            item_entity(UNIT, ""),
        ),
    }  # fmt: skip
    for what, (stac, history, revises) in items.items():
        envelope = with_stac(registered(replay_run_id="r1"), **stac)
        assert in_revision(LineageUnit.of(envelope), history, run_id="run").revises == revises, what


def test_a_late_unit_yields_to_the_latest_edition_of_the_item_that_stands() -> None:
    late = LineageUnit.of(superseded(0, by=1))
    assert in_revision(late, {}, run_id="run").yields_to == item_entity(OTHER, "")
    history = {OTHER: [told("", None), told("r0", None)]}
    assert in_revision(late, history, run_id="run").yields_to == item_entity(OTHER, "r0")
