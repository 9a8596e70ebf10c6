"""The revision under which a unit's lineage is emitted, and the Item that its own Item is related to."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.contracts.envelope import Envelope, StacStatus
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.lineage.unit import LineageUnit, item_entity
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.lineage.test_lineage_store import nodes
from kfm_dagster_tests.lineage.units import RUN_ID, ingest_run, registered, repaired, superseded, with_stac
from kfm_dagster_tests.transactions import own_tx

UNIT, OTHER = registered().wal_id, registered(1).wal_id
ITEM, REPAIRED_ITEM = item_entity(UNIT, ""), item_entity(UNIT, "r1")
FIRST, WITHDRAWN = registered(), None
CONTENT, REPAIRED = f"{0:064x}", "e" * 64
UNCHANGED, WITHOUT_HASH = {"write_status": StacStatus.NO_OP}, with_stac(FIRST, content_sha256=None)
CHANGED = {"write_status": StacStatus.UPDATED, "content_sha256": REPAIRED}
OTHERS = [registered(1), with_stac(registered(1, replay_run_id="r0"), **CHANGED)]
"""Another unit, and its repair."""

CASES: dict[str, tuple[list[Envelope | None], list[str], str | None]] = {
    # emitted envelopes in their order: the unit's revisions, and the Item that the last revision revises or yields to
    "first": ([FIRST], [""], None),
    "a failed unit's first lineage is its replay's": ([repaired("r1")], [""], None),
    "a replay of that lineage that changed nothing": ([repaired("r1"), repaired("r2", **UNCHANGED)], [""], None),
    "again": ([FIRST, FIRST], [""], None),
    "a repair that changed the Item": ([FIRST, repaired("r1")], ["", "r1"], ITEM),
    "that repair after a crash": ([FIRST, repaired("r1", **UNCHANGED)], ["", "r1"], ITEM),
    "a replay that changed nothing": ([FIRST, repaired("r1"), repaired("r2", **UNCHANGED)], ["", "r1"], ITEM),
    "a repair back to the first content": (
        [FIRST, repaired("r1"), repaired("r2", content_sha256=CONTENT)], ["", "r1", "r2"], REPAIRED_ITEM
    ),
    "emitted before hashes were kept, and unchanged": ([WITHOUT_HASH, repaired("r1", **UNCHANGED)], [""], None),
    "emitted before hashes were kept, and changed": ([WITHOUT_HASH, repaired("r1")], ["", "r1"], ITEM),
    "a newer unit's Item is current": ([FIRST, superseded(0, by=1).evolve(replay_run_id="r1")], [""], None),
    "changed by another release in the middle of a retry": ([FIRST, with_stac(FIRST, **CHANGED)], ["", RUN_ID], None),
    "a replay after a withdrawal": (
        [FIRST, WITHDRAWN, repaired("replay", content_sha256=CONTENT)], ["replay"], None
    ),
    "a rewritten object": ([with_stac(FIRST, replaces=OTHER)], [""], item_entity(OTHER, "")),
    "a rewritten object after a repair": ([*OTHERS, with_stac(FIRST, replaces=OTHER)], [""], item_entity(OTHER, "r0")),
    "a late unit": ([superseded(0, by=1)], [""], item_entity(OTHER, "")),
    "a late unit after a repair": ([*OTHERS, superseded(0, by=1)], [""], item_entity(OTHER, "r0")),
}  # fmt: skip


@pytest.mark.clause("RPL-05", "OPR-11")
@pytest.mark.one_database
@pytest.mark.parametrize(("emitted", "revisions", "related"), CASES.values(), ids=CASES)
def test_a_unit_is_emitted_under_its_revision(
    emitted: list[Envelope | None], revisions: list[str], related: str | None, database: Database, root: Path,
    contract: DatasetContract,
) -> None:  # fmt: skip
    lineage = Lineage(database, str(root))
    for envelope in emitted:
        if envelope is WITHDRAWN:
            own_tx(lineage).invalidate(run_id=RUN_ID, contract=contract, reason="S1")
        else:
            lineage.emit([LineageUnit.of(envelope)], run=ingest_run(), contract=contract, fence=open_fence)
    assert [link.revision for link in lineage.links_of(UNIT)] == [name for name in revisions for _path in range(2)]
    last = LineageUnit.of(FIRST, revision=revisions[-1])
    [item] = [node for node in nodes(root) if node["id"] == last.item_id]
    assert item.get("wasRevisionOf", item.get("alternateOf")) == related
