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
@pytest.mark.parametrize(
    ("envelope", "history", "revision"),
    [
        pytest.param(registered(), [], "", id="first"),
        pytest.param(repaired("r1"), [], "", id="a failed unit's first lineage is its replay's"),
        pytest.param(registered(), [told("", FIRST)], "", id="again"),
        pytest.param(repaired("r1"), [told("", FIRST)], "r1", id="a repair that changed the Item"),
        pytest.param(
            repaired("r1", write_status=StacStatus.NO_OP), [told("", FIRST)], "r1", id="that repair after a crash"
        ),
        pytest.param(
            repaired("r2", write_status=StacStatus.NO_OP), [told("", FIRST), told("r1", REPAIRED)], "r1",
            id="a replay that changed nothing",
        ),
        pytest.param(
            repaired("r2", content_sha256=FIRST), [told("", FIRST), told("r1", REPAIRED)], "r2",
            id="a repair that went back to what was",
        ),
        pytest.param(
            repaired("r1", write_status=StacStatus.NO_OP), [told("", None)], "",
            id="told before hashes were kept, and unchanged",
        ),
        pytest.param(repaired("r1"), [told("", None)], "r1", id="told before hashes were kept, and changed"),
        pytest.param(
            superseded(0, by=1).evolve(replay_run_id="r1"), [told("", FIRST)], "", id="a newer unit's Item stands now"
        ),
        pytest.param(
            with_stac(registered(), write_status=StacStatus.UPDATED, content_sha256=REPAIRED), [told("", FIRST)],
            "run", id="changed by another release in the middle of a retry",
        ),
        pytest.param(
            repaired("replay", content_sha256=FIRST), [told("", FIRST, invalidated=True)], "replay",
            id="a replay after a withdrawal",
        ),
    ],
)  # fmt: skip
def test_a_unit_is_told_as(envelope: Envelope, history: list[Revision], revision: str) -> None:
    found = in_revision(LineageUnit.of(envelope), {UNIT: history}, run_id="run")
    assert found.revision == revision
    assert found.activity_id == LineageUnit.of(envelope, revision=revision).activity_id


@pytest.mark.parametrize(
    ("stac", "history", "revises"),
    [
        pytest.param({}, {}, None, id="nothing stood before"),
        pytest.param({"replaces": OTHER}, {}, item_entity(OTHER, ""), id="a rewritten object"),
        pytest.param(
            {"replaces": OTHER}, {OTHER: [told("", None), told("r0", None)]}, item_entity(OTHER, "r0"),
            id="one that had been repaired",
        ),
        pytest.param({"replaces": UNIT}, {}, None, id="its own Item, of which nothing was told"),
        pytest.param(
            {"replaces": UNIT, "content_sha256": REPAIRED, "write_status": StacStatus.UPDATED},
            {UNIT: [told("", FIRST)]}, item_entity(UNIT, ""), id="its own Item",
        ),
        pytest.param(
            {"replaces": UNIT, "content_sha256": REPAIRED, "write_status": StacStatus.NO_OP},
            {UNIT: [told("", FIRST), told("r1", REPAIRED)]}, item_entity(UNIT, ""),
            id="its own Item, told by the other path already",
        ),
    ],
)  # fmt: skip
def test_an_item_revises(stac: dict[str, Any], history: dict[WalId, list[Revision]], revises: str | None) -> None:
    envelope = with_stac(registered(replay_run_id="r1"), **stac)
    assert in_revision(LineageUnit.of(envelope), history, run_id="run").revises == revises


def test_a_late_unit_yields_to_the_latest_edition_of_the_item_that_stands() -> None:
    late = LineageUnit.of(superseded(0, by=1))
    assert in_revision(late, {}, run_id="run").yields_to == item_entity(OTHER, "")
    history = {OTHER: [told("", None), told("r0", None)]}
    assert in_revision(late, history, run_id="run").yields_to == item_entity(OTHER, "r0")
