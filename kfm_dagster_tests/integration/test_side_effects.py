"""The order of a unit's effects, each node's sections, and removal of abandoned Items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster import failpoints
from kfm_dagster.catalog import undo
from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.evidence import EvidenceCollector
from kfm_dagster.ingest.nodes import (
    IntegrityCheck,
    MessageParse,
    MetadataExtract,
    ProvenanceEmit,
    Settle,
    StacRegister,
    operators,
)
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.publisher import PublishError
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DATASET,
    DAY,
    CrashError,
    Failpoint,
    StoredObject,
    assert_conserved,
    deliver,
    missing,
    notify,
    put,
    renumbered,
    run_chain,
    run_pending,
    truncated,
    volumes,
    work_until_done,
)
from kfm_dagster_tests.transactions import own_tx

WRITES = {"catalog.stage.before", "catalog.promote.before", "lineage.publish.before"}
"""The failpoints before a write of catalog or lineage."""


@pytest.fixture
def effects(pipeline: Pipeline) -> Iterator[list[tuple[str, dict[str, Status]]]]:
    """Record the writes and each committed node's operator, with every unit's committed status at that time."""
    recorded: list[tuple[str, dict[str, Status]]] = []

    def note(failpoint: failpoints.Failpoint, labels: failpoints.Labels) -> None:
        effect = labels["operator"] if failpoint is failpoints.Failpoint.STAGE_COMMITTED else failpoint.value
        if effect in {*WRITES, *operators()}:
            # A separate connection sees only committed data.
            recorded.append((effect, {uri: record.status for uri, record in traces.records(pipeline).items()}))

    failpoints.install(note)
    yield recorded
    failpoints.install(None)


OWN_SECTION = {
    IntegrityCheck.operator: "integrity",
    MetadataExtract.operator: "metadata",
    StacRegister.operator: "stac",
    ProvenanceEmit.operator: "provenance",
}


@pytest.mark.clause("WAL-02", "WAL-07", "BEY-03")
def test_writes_happen_between_claim_and_final_status_and_a_node_changes_only_its_section(
    effects: list[tuple[str, dict[str, Status]]], pipeline: Pipeline
) -> None:
    sound, gone, half = volumes(2), missing(volumes(3)[2]), truncated(volumes(4)[3])
    deliver(pipeline, *sound, gone, half)
    rows: list[dict[str, Any]] = []
    outputs: dict[str, list[Envelope]] = {}

    def look(batch: StageBatch) -> None:
        rows.append({uri: record.model_dump() for uri, record in traces.records(pipeline).items()})
        outputs[batch.state.dataset_id.split(".")[1]] = list(batch.envelopes)

    run_pending(pipeline, "run-1", seen=look)

    assert (effects[0][0], effects[-1][0]) == (MessageParse.operator, Settle.operator)
    writes = [(effect, statuses) for effect, statuses in effects if effect in WRITES]
    assert {effect for effect, _ in writes} == WRITES
    every_unit = {item.uri: Status.IN_PROGRESS for item in (*sound, gone, half)}
    assert [write for write in writes if write[1] != every_unit] == []
    final = effects[-1][1]
    assert [final[item.uri] for item in (*sound, gone, half)] == [Status.SUCCEEDED] * 2 + [Status.FAILED] * 2
    for item in sound:
        history = own_tx(pipeline.ledger).history(traces.records(pipeline)[item.uri].wal_id)
        assert [entry.to_status for entry in history] == [Status.PENDING, Status.IN_PROGRESS, Status.SUCCEEDED]

    first, *between, last = rows
    assert all(row == first for row in between)
    assert {record["version"] for record in first.values()} == {2}
    assert {record["version"] for record in last.values()} == {3}
    changed: set[str] = set()
    for before, after in pairwise(operators()):
        section = OWN_SECTION.get(after)
        for old, new in zip(outputs[before], outputs[after], strict=True):
            assert (traces.without(old, section) if section else old) == (
                traces.without(new, section) if section else new
            ), after
            changed |= {section} if section and old != new else set()
    assert changed == set(OWN_SECTION.values())


@pytest.mark.clause("WAL-02")
@pytest.mark.parametrize("taken_by", ["no run", "another run"])
def test_a_run_that_lost_its_claims_writes_nothing(
    taken_by: str, effects: list[tuple[str, dict[str, Status]]], pipeline: Pipeline, objects: Path
) -> None:
    put(objects, volumes(2))
    with pytest.raises(CrashError):
        run_chain(
            pipeline, "nexrad-l2", DAY.isoformat(), "lost",
            dies_at=Failpoint(operator=MetadataExtract.operator, point="committed"),
        )  # fmt: skip
    own_tx(pipeline.ledger).release_lost(run_ids=["lost"])
    if taken_by == "another run":
        own_tx(pipeline.ledger).claim(dataset="nexrad-l2", partition=DAY.isoformat(), run_id="other", limit=1)
    before = traces.records(pipeline)

    late = run_chain(pipeline, "nexrad-l2", DAY.isoformat(), "lost")
    assert late.state.validation_summary["lost"] == 2
    assert [effect for effect, _ in effects if effect in WRITES] == []
    assert traces.records(pipeline) == before


PERSON = Decision(actor="person", reason="looked at it", change_ref="CHG-1")
LATER = datetime(2025, 4, 4, tzinfo=UTC)
BEFORE_LINEAGE = Failpoint(operator=StacRegister.operator, point="committed")
AFTER_LINEAGE = Failpoint(operator=ProvenanceEmit.operator, point="committed")


def files(pipeline: Pipeline) -> dict[str, bytes]:
    return trees.files(Path(pipeline.settings.catalog))


def run_that_dies(pipeline: Pipeline, at: Failpoint) -> None:
    """Run until the crash at a failpoint; then release the units, as a sensor does."""
    with pytest.raises(CrashError):
        run_pending(pipeline, "dead", dies_at=at)
    own_tx(pipeline.ledger).release_lost(run_ids=["dead"])


def of(pipeline: Pipeline, items: list[StoredObject]) -> list[NoddWalRecord]:
    by_uri = traces.records(pipeline)
    return [by_uri[f"s3://{item.bucket}/{item.key}"] for item in items]


def statuses(pipeline: Pipeline) -> Counter[str]:
    """Count the statuses over all versions of objects."""
    return Counter(record.status.value for record in own_tx(pipeline.ledger).find(limit=50))


@pytest.mark.clause("PCS-03")
def test_an_item_without_lineage_is_removed_when_its_unit_is_given_up(pipeline: Pipeline, objects: Path) -> None:
    known_items, new, kept_items = (volumes(6)[start : start + 2] for start in (0, 2, 4))
    deliver(pipeline, *known_items)
    run_pending(pipeline, "earlier")
    before = files(pipeline)
    rewritten = [renumbered(item) for item in known_items]
    deliver(pipeline, *rewritten, *new, *kept_items)
    run_that_dies(pipeline, BEFORE_LINEAGE)
    after_crash = files(pipeline)

    for item in (*rewritten, *new):
        (objects / item.bucket / item.key).unlink()
    work_until_done(pipeline)

    # The collector of evidence withdrew the Items of the quarantined units.
    assert statuses(pipeline) == {Status.SUCCEEDED: 4, Status.QUARANTINED: 4}
    published, removed = files(pipeline), [str(record.stac_item_id) for record in of(pipeline, new)]
    assert not [path for path in published if any(name in path for name in removed)]
    for path, content in before.items():
        if path.endswith(tuple(f"{record.stac_item_id}.json" for record in of(pipeline, known_items))):
            assert (published[path] == content, after_crash[path] == content) == (True, False)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert {item["id"] for item in traces.catalog_items(pipeline).values()} == {
        record.stac_item_id for record in own_tx(pipeline.ledger).find(limit=50) if record.status is Status.SUCCEEDED
    }
    [line] = traces.audited(pipeline, "compensation")
    assert [line["run_id"], line["stage"], line["event"]] == ["dead", f"{DATASET}.{StacRegister.operator}", "done"]
    assert line["details"] == {"restored": 2, "removed": 2, "because": "units quarantined without lineage"}
    assert_conserved(pipeline)

    # The objects return, and a person readmits the units, which are then ingested like new units.
    put(objects, [*rewritten, *new])
    readmit(pipeline, own_tx(pipeline.ledger).find(limit=50), Status.QUARANTINED)
    work_until_done(pipeline)
    assert statuses(pipeline) == {Status.SUCCEEDED: 8}
    assert len(traces.catalog_items(pipeline)) == 6
    assert all(len(pipeline.lineage.links_of(record.wal_id)) == 2 for record in own_tx(pipeline.ledger).find(limit=50))


def readmit(pipeline: Pipeline, records: Sequence[NoddWalRecord], status: Status) -> None:
    action = GovernanceAction.RELEASE if status is Status.QUARANTINED else GovernanceAction.REPEAT
    versions = {WalId(record.wal_id): record.version for record in records if record.status is status}
    own_tx(pipeline.ledger).override(versions, from_status=status, action=action, decision=PERSON)


def by_a_person(pipeline: Pipeline, records: list[NoddWalRecord]) -> None:
    own_tx(pipeline.ledger).quarantine([record.wal_id for record in records], reason_code="person", decision=PERSON)


def repeated_and_stopped(pipeline: Pipeline, records: list[NoddWalRecord]) -> None:
    run_pending(pipeline, "good")
    readmit(pipeline, own_tx(pipeline.ledger).find(limit=50), Status.SUCCEEDED)
    by_a_person(pipeline, records)


@pytest.mark.clause("PCS-03")
@pytest.mark.parametrize(
    ("dies_at", "ended", "items_left"),
    [
        pytest.param(BEFORE_LINEAGE, by_a_person, 0, id="without lineage"),
        pytest.param(AFTER_LINEAGE, by_a_person, 3, id="with lineage"),
        pytest.param(BEFORE_LINEAGE, repeated_and_stopped, 3, id="completed by the next run"),
        pytest.param(BEFORE_LINEAGE, lambda *_: None, 3, id="still to be retried"),
    ],
)
def test_only_items_of_units_given_up_without_lineage_are_removed(
    pipeline: Pipeline,
    dies_at: Failpoint,
    ended: Callable[[Pipeline, list[NoddWalRecord]], None],
    items_left: int,
) -> None:
    items = volumes(3)
    deliver(pipeline, *items)
    run_that_dies(pipeline, dies_at)
    ended(pipeline, of(pipeline, items))
    EvidenceCollector(pipeline).collect()
    before = files(pipeline)
    assert sum(path.endswith("_V06.json") for path in before) == items_left
    EvidenceCollector(pipeline).collect()
    assert files(pipeline) == before


@pytest.mark.clause("PCS-03")
def test_a_failed_removal_of_items_is_retried_and_keeps_the_item_of_a_unit_readmitted_meanwhile(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = volumes(2)
    deliver(pipeline, *items)
    run_that_dies(pipeline, BEFORE_LINEAGE)
    before = files(pipeline)
    by_a_person(pipeline, of(pipeline, items))
    away = Mock(side_effect=PublishError(StacIssue.STORAGE_UNAVAILABLE, "injected"))
    with monkeypatch.context() as patched:
        patched.setattr(undo, "publish", away)
        assert EvidenceCollector(pipeline).collect() == 0
    assert files(pipeline) == before
    assert len(QuarantineCases(pipeline.database, clock=pipeline.clock).due(limit=10)) == 2

    released, given_up = of(pipeline, items)
    orphans = pipeline.catalog.orphans([released.wal_id, given_up.wal_id])
    readmit(pipeline, [released], Status.QUARANTINED)
    # The transaction must check the units again, since the orphans were read before the release.
    monkeypatch.setattr(pipeline.catalog, "orphans", lambda _: orphans)
    assert EvidenceCollector(pipeline).collect() == 2
    items_left = traces.catalog_items(pipeline)
    assert list(items_left) == [released.object_uri]
    monkeypatch.undo()
    run_pending(pipeline, "next")
    assert statuses(pipeline) == {Status.SUCCEEDED: 1, Status.QUARANTINED: 1}
    assert list(traces.catalog_items(pipeline)) == [released.object_uri]


@pytest.mark.clause("OPR-09", "BEY-01")
@pytest.mark.parametrize(
    ("dies_at", "ended", "status", "code"),
    [
        pytest.param(AFTER_LINEAGE, by_a_person, Status.SUCCEEDED, None, id="with lineage"),
        pytest.param(BEFORE_LINEAGE, lambda *_: None, Status.QUARANTINED, "catalog_conflict", id="abandoned"),
    ],
)
def test_an_older_version_does_not_replace_a_newer_item(
    pipeline: Pipeline,
    objects: Path,
    dies_at: Failpoint,
    ended: Callable[[Pipeline, list[NoddWalRecord]], None],
    status: Status,
    code: str | None,
) -> None:
    (older,) = volumes(1)
    newer = renumbered(older)
    put(objects, [newer])
    notify(pipeline, newer, event_time=LATER)
    run_that_dies(pipeline, dies_at)
    ended(pipeline, of(pipeline, [newer]))
    deliver(pipeline, older)
    (stale,) = [record for record in own_tx(pipeline.ledger).find(limit=5) if record.event_time < LATER]
    readmit(pipeline, [stale], Status.QUARANTINED)
    run_pending(pipeline, "late")
    record = own_tx(pipeline.ledger).get(stale.wal_id)
    assert (record.status, record.last_error_code) == (status, code)
