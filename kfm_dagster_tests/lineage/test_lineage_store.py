"""Lineage is recorded once per unit and path, despite crashes, failures and concurrent runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    ProvenanceStatus,
    StacResult,
    StacStatus,
    WalId,
)
from kfm_dagster.contracts.issues import FenceIssue, Issue, Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.lineage.batches import LineageFiles
from kfm_dagster.lineage.openlineage import Event
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.lineage.unit import LineagePath, LineageUnit, item_entity
from kfm_dagster.operators.provenance_emit import provenance_emit
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.databases import refuse_rows
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.ledger.bench import Clock
from kfm_dagster_tests.lineage.conftest import NOON
from kfm_dagster_tests.lineage.schemas import validate_event
from kfm_dagster_tests.lineage.units import (
    RUN_ID,
    ingest_run,
    once_each,
    readable,
    registered,
    repaired,
    superseded,
    units,
    with_stac,
)
from kfm_dagster_tests.moments import deaths, dying, meanwhile
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database


@pytest.mark.clause("OPR-11", "WAL-05")
def test_after_a_crash_at_any_moment_the_next_emission_publishes_each_unit_once(
    database: Database, root: Path, contract: DatasetContract
) -> None:
    expected: list[LineageUnit] = []
    for at, death in deaths():
        batch = units(3 * at, 3 * at + 3)
        expected += batch
        with dying(database, at=death):
            Lineage(database, str(root)).emit(batch, run=ingest_run(), contract=contract, fence=open_fence)
        # Between crash and retry, readers never find duplicates or a partial batch.
        assert set(readable(root).values()) <= {1}
        retried = Lineage(database, str(root)).emit(
            batch, run=ingest_run(minute=9), contract=contract, fence=open_fence
        )
        assert {result.status for result in retried.values()} == {ProvenanceStatus.OK}
        assert readable(root) == once_each(expected), death
    assert at > 30


OPENLINEAGE, PROV = "openlineage_emit_failed", "prov_store_unavailable"


@pytest.mark.clause("OPR-11")
@pytest.mark.parametrize(
    ("refused", "codes", "status", "severity"),
    [
        ([LineagePath.PROV], [PROV], ProvenanceStatus.PARTIAL, Severity.SUSPECT),
        ([LineagePath.OPENLINEAGE], [OPENLINEAGE], ProvenanceStatus.PARTIAL, Severity.SUSPECT),
        ([*LineagePath], [OPENLINEAGE, PROV], ProvenanceStatus.FAILED, Severity.FAILED),
    ],
    ids=["prov", "openlineage", "both"],
)
def test_a_failing_path_gives_an_issue_and_a_replay_emits_the_missing_lineage(
    lineage: Lineage, database: Database, root: Path, contract: DatasetContract, refused: list[LineagePath],
    codes: list[str], status: ProvenanceStatus, severity: Severity,
) -> None:  # fmt: skip
    with refusing(database, *refused):
        results = lineage.emit(units(0, 2), run=ingest_run(), contract=contract, fence=open_fence)
    for result in results.values():
        assert result.status is status
        assert [(issue.code, issue.severity) for issue in result.issues] == [(code, severity) for code in codes]
        assert "no_such_place" in result.issues[0].message
    envelope = registered(0).evolve(provenance=results[registered(0).wal_id])
    assert (envelope.failure is None) == (status is ProvenanceStatus.PARTIAL)
    before = files(root)
    assert len(before) == 2 - len(refused)
    repaired = lineage.emit(units(0, 2), run=ingest_run(minute=30), contract=contract, fence=open_fence)
    assert {result.status for result in repaired.values()} == {ProvenanceStatus.OK}
    assert before.items() <= files(root).items()
    assert readable(root) == once_each(units(0, 2))


@pytest.mark.clause("OPR-11", "BEY-08")
def test_a_unit_without_a_document_fails_no_other_unit(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    raw = dataclasses.replace(
        registered(1).raw, topic_arn="\ud800"
    )  # no UTF-8 form; only PROV documents have the topic
    batch = [
        registered(0),
        registered(1, raw=raw),
        registered(2, replay_run_id="\ud800"),
        registered(3),
    ]
    emitted = [LineageUnit.of(envelope) for envelope in batch]
    results = lineage.emit(emitted, run=ingest_run(), contract=contract, fence=open_fence)
    assert [results[unit.wal_id].status for unit in emitted] == [
        ProvenanceStatus.OK, ProvenanceStatus.PARTIAL, ProvenanceStatus.FAILED, ProvenanceStatus.OK,
    ]  # fmt: skip
    assert readable(root) == once_each([emitted[0], emitted[3]]) + Counter(
        {("START", emitted[1].wal_id): 1, ("COMPLETE", emitted[1].wal_id): 1}
    )


@pytest.mark.clause("BEY-07")
def test_a_full_root_costs_a_run_one_attempt_and_delays_no_other_file(
    database: Database, root: Path, contract: DatasetContract
) -> None:
    clock = Clock()
    lineage = Lineage(database, str(root), clock=clock)
    with mock.patch.object(LineageFiles, "publish", side_effect=OSError(28, "No space left on device")) as publish:
        for number in range(5):
            results = lineage.emit(units(number, number + 1), run=ingest_run(), contract=contract, fence=open_fence)
            assert {result.status for result in results.values()} == {ProvenanceStatus.OK}
            clock.advance(1)
        assert publish.call_count == 1
        assert lineage.publish_staged() == 0
        assert publish.call_count == 2
    waiting = lineage.undelivered()
    assert (waiting.files.batches, waiting.files.units, waiting.files.oldest) == (10, 10, Clock().now)
    assert "No space left" in waiting.failing[0].last_error
    # The two failed batches wait for their retry and do not delay the other batches.
    assert lineage.publish_staged() == 8
    clock.advance(60)
    assert lineage.publish_staged() == 2
    assert lineage.undelivered().files.batches == 0
    assert readable(root) == once_each(units(0, 5))


@pytest.mark.clause("BEY-02")
@pytest.mark.parametrize("refusal", FenceIssue)
def test_only_the_refused_unit_gets_no_lineage(
    lineage: Lineage, root: Path, contract: DatasetContract, refusal: FenceIssue
) -> None:
    batch = units(0, 3)
    calls: list[dict[WalId, int]] = []

    def fence(tx: Transaction, attempts: Mapping[WalId, int]) -> Mapping[WalId, FenceIssue]:
        calls.append(dict(attempts))
        return {batch[1].wal_id: refusal}

    results = lineage.emit(batch, run=ingest_run(), contract=contract, fence=fence)
    assert calls == [{unit.wal_id: 1 for unit in batch}]
    assert [results[unit.wal_id].status for unit in batch] == [
        ProvenanceStatus.OK, ProvenanceStatus.FAILED, ProvenanceStatus.OK,
    ]  # fmt: skip
    lost = results[batch[1].wal_id]
    assert [issue.code for issue in lost.issues] == [refusal]
    assert (lost.activity_id, lost.openlineage_run_id, lost.entity_ids) == (None, None, ())
    assert readable(root) == once_each([batch[0], batch[2]])
    assert lineage.links_of(batch[1].wal_id) == []
    # The current holder of the claim emits the unit's lineage.
    lineage.emit(batch, run=ingest_run(minute=9), contract=contract, fence=open_fence)
    assert readable(root) == once_each(batch)


@pytest.mark.clause("BEY-02")
def test_a_claim_lost_while_documents_are_built_publishes_nothing(
    lineage: Lineage, database: Database, root: Path, contract: DatasetContract
) -> None:
    """The claim is lost between the run's last check and its write."""
    ledger = Ledger(database, registry=ContractRegistry.of([contract]), worker_id="test", clock=Clock())
    own_tx(ledger).ensure([registered(number) for number in range(2)])
    claimed = own_tx(ledger).claim(dataset="goes-abi", partition="2025-12-03", run_id="slow", limit=10)
    batch = [LineageUnit.of(registered(number, attempt=claimed[0].attempt)) for number in range(2)]
    # The first transaction reads recorded lineage; the second writes, with the claims locked.
    with meanwhile(Failpoint.DATABASE_BEGIN, lambda: own_tx(ledger).release_lost(run_ids=["slow"]), nth=2):
        results = lineage.emit(batch, run=ingest_run(), contract=contract, fence=ledger.leases.fence("slow"))
    assert {issue.code for result in results.values() for issue in result.issues} == {FenceIssue.CLAIM_LOST}
    assert not root.exists()
    with database.snapshot() as tx:
        for table in ("lineage_batches", "lineage_emissions", "outbox"):
            assert tx.connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == 0


@pytest.mark.clause("OPR-11", "WAL-05")
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_workers_with_overlapping_units_emit_each_unit_once(
    database_url: str, root: Path, contract: DatasetContract
) -> None:
    Database.open(database_url).dispose()
    spans = [(0, 60), (30, 90), (60, 120), (0, 120)]
    ready = threading.Barrier(len(spans))

    def work(minute: int, first: int, stop: int) -> list[ProvenanceStatus]:
        database = Database.open(database_url)
        batch = units(first, stop)
        if minute % 2:
            batch.reverse()
        try:
            ready.wait()
            worker = Lineage(database, str(root))
            results = worker.emit(batch, run=ingest_run(minute=minute), contract=contract, fence=open_fence)
            return [result.status for result in results.values()]
        finally:
            database.dispose()

    with ThreadPoolExecutor(len(spans)) as pool:
        statuses = list(itertools.chain(*pool.map(work, itertools.count(10), *zip(*spans, strict=True))))
    assert set(statuses) == {ProvenanceStatus.OK}
    assert len(statuses) == sum(stop - first for first, stop in spans)
    assert readable(root) == once_each(units(0, 120))


def test_a_batch_is_written_to_one_file_per_partition(lineage: Lineage, root: Path, contract: DatasetContract) -> None:
    late = registered(7)
    late = late.evolve(time_range_start=late.time_range_start.replace(day=4))
    lineage.emit([*units(0, 2), LineageUnit.of(late)], run=ingest_run(), contract=contract, fence=open_fence)
    folders = Counter(name.rpartition("/")[0] for name in files(root))
    assert folders == {
        f"{path}/goes-abi/{day}": 1 for path in ("openlineage", "prov") for day in ("2025-12-03", "2025-12-04")
    }


@pytest.mark.clause("WAL-14")
def test_record_run_and_activity_refer_to_each_other(
    lineage: Lineage, database: Database, root: Path, contract: DatasetContract
) -> None:
    batch = units(0, 3)
    ledger = Ledger(database, registry=ContractRegistry.of([contract]), worker_id="test", clock=Clock())
    own_tx(ledger).ensure([unit.envelope for unit in batch])
    lineage.emit(batch, run=ingest_run(), contract=contract, fence=open_fence)
    unit = batch[1]
    openlineage, prov = lineage.links_of(unit.wal_id)
    assert (openlineage.lineage_id, prov.lineage_id) == (unit.openlineage_run_id, unit.activity_id)
    for link in (openlineage, prov):
        assert (link.state, link.run_id, link.object_uri) == (
            "published",
            ingest_run().run_id,
            unit.envelope.object_uri,
        )
        assert link.record_status == "pending"
        assert lineage.find(link.lineage_id) == link
        assert link.lineage_id.removeprefix("urn:uuid:") in (root / link.href).read_text(encoding="utf-8")
    assert lineage.find("urn:uuid:unknown") is None


@pytest.mark.clause("OPR-11", "RPL-05")
def test_a_path_that_missed_a_repair_gets_the_repair_later_in_the_same_revision(
    lineage: Lineage, root: Path, database: Database, contract: DatasetContract
) -> None:
    lineage.emit([LineageUnit.of(registered())], run=ingest_run(), contract=contract, fence=open_fence)
    with refusing(database, LineagePath.PROV):
        lineage.emit([LineageUnit.of(repaired("replay-1"))], run=ingest_run(), contract=contract, fence=open_fence)
    later = with_stac(repaired("replay-2"), write_status=StacStatus.NO_OP)
    [result] = lineage.emit([LineageUnit.of(later)], run=ingest_run(), contract=contract, fence=open_fence).values()
    second = LineageUnit.of(repaired("replay-1"), revision="replay-1")
    assert (result.openlineage_run_id, result.entity_ids) == (second.openlineage_run_id, second.entity_ids)
    links = [(link.revision, link.path) for link in lineage.links_of(registered().wal_id)]
    assert sorted(links) == [*product(("", "replay-1"), LineagePath)]
    first = LineageUnit.of(registered()).item_id
    assert [node["wasRevisionOf"] for node in nodes(root) if node["id"] == second.item_id] == [first]


@contextmanager
def refusing(database: Database, *paths: LineagePath) -> Iterator[None]:
    """Make the database refuse batches of these paths, as by a quota or a broken index."""
    refuse_rows(database, "lineage_batches", " OR ".join(f"NEW.path = '{path}'" for path in paths))
    yield
    with database.transaction() as tx:
        tx.connection.exec_driver_sql("DROP TRIGGER refused_lineage_batches")


def nodes(root: Path) -> list[dict[str, Any]]:
    """Return every node of the published PROV documents."""
    return [node for path in root.glob("prov/**/*.jsonld") for node in json.loads(path.read_bytes())["@graph"]]


def files(root: Path) -> dict[str, bytes]:
    """Return every file below the root by path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.clause("OPR-11")
def test_only_registered_units_get_lineage_and_the_order_is_kept(
    lineage: Lineage, root: Path, contract: DatasetContract
) -> None:
    issue = Issue(code="missing_object", severity=Severity.FAILED, message="gone")
    failed = Integrity(status=CheckStatus.FAILED, issues=(issue,))
    refused = Issue(code="stac_validation_failed", severity=Severity.FAILED, message="no")
    batch = [
        registered(0),
        registered(1, integrity=failed, metadata=None, stac=None),
        registered(2, stac=StacResult(write_status=StacStatus.FAILED, issues=(refused,))),
        with_stac(registered(3), write_status=StacStatus.NO_OP),
        with_stac(registered(4), write_status=StacStatus.UPDATED),
        registered(5, integrity=failed),
    ]
    times = {"occurred_at": NOON, "started_at": NOON - timedelta(minutes=1)}
    emitted_units = provenance_emit(batch, contract=contract, lineage=lineage, fence=open_fence, run_id="run", **times)
    assert [unit.wal_id for unit in emitted_units] == [unit.wal_id for unit in batch]
    assert [unit.provenance and unit.provenance.status for unit in emitted_units] == [
        ProvenanceStatus.OK, None, None, ProvenanceStatus.OK, ProvenanceStatus.OK, None,
    ]  # fmt: skip
    # Only the operator's own section changed.
    assert [unit.evolve(provenance=None) for unit in emitted_units] == batch
    emitted = {wal_id for _, wal_id in readable(root)}
    assert emitted == {batch[index].wal_id for index in (0, 3, 4)}


DATASET = "nexrad-l2"
RUNS = [f"{number}1111111-1111-4111-8111-111111111111" for number in range(3)]


def work(pipeline: Pipeline, objects: Path) -> None:
    """Run a unit with a missing object, a unit that succeeds, and a unit whose run dies."""
    good, bad, lost = chain.volumes(3)
    chain.put(objects, [good, chain.missing(bad), lost])
    chain.take(pipeline, chain.announce([good.event(), bad.event()], registry=pipeline.registry))
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[0], Source.LEDGER)
    chain.take(pipeline, chain.announce([lost.event()], registry=pipeline.registry))
    dies_at = chain.Failpoint(operator="stac_register", point="computed")
    with pytest.raises(chain.CrashError):
        chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[1], Source.LEDGER, dies_at=dies_at)
    own_tx(pipeline.ledger).release_lost(run_ids=[RUNS[1]])


def published(pipeline: Pipeline, root: Path) -> list[Event]:
    Lineage(pipeline.database, str(root), public=pipeline.registry.public_id).publish_staged()
    lines = (line for file in root.glob("failures/**/*.ndjson") for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines]


@pytest.mark.clause("RSP-16", "OPR-12")
def test_each_failed_attempt_is_a_valid_start_and_fail_event(
    pipeline: Pipeline, tmp_path: Path, official: dict[str, Any]
) -> None:
    work(pipeline, tmp_path / "objects")
    events = published(pipeline, tmp_path / "lineage")
    records = {record.wal_id: record for record in own_tx(pipeline.ledger).find()}
    ends = {event["run"]["facets"]["kfmWal"]["wal_id"]: event for event in events if event["eventType"] == "FAIL"}
    failed = {wal_id: record for wal_id, record in records.items() if record.status != "succeeded"}
    assert len(failed) == 2
    assert ends.keys() == failed.keys()
    codes = {"missing_object": RUNS[0], "worker_lost": RUNS[1]}
    assert {event["run"]["facets"]["errorMessage"]["message"] for event in ends.values()} == codes.keys()
    for wal_id, event in ends.items():
        run_facets = event["run"]["facets"]
        run_id = codes[run_facets["kfmWal"]["last_error_code"]]
        assert (run_facets["kfmRunState"]["outcome"], run_facets["kfmRunState"]["run_id"]) == ("failed", run_id)
        [input_dataset] = event["inputs"]
        assert f"{input_dataset['namespace']}/{input_dataset['name']}" == failed[wal_id].object_uri
        own = [candidate for candidate in events if candidate["run"]["runId"] == event["run"]["runId"]]
        [start] = [candidate for candidate in own if candidate["eventType"] == "START"]
        assert start["eventTime"] <= event["eventTime"]
        for document in (start, event):
            validate_event(document, official)


@pytest.mark.clause("RSP-16")
@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_concurrent_publishers_publish_a_failure_once(pipeline: Pipeline, tmp_path: Path) -> None:
    work(pipeline, tmp_path / "objects")
    root = tmp_path / "lineage"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: published(pipeline, root), range(4)))
    events = published(pipeline, root)
    assert len(events) == len({(event["run"]["runId"], event["eventType"]) for event in events}) == 4
    # A second failure gives the unit a second OpenLineage run.
    own_tx(pipeline.ledger).requeue([record.wal_id for record in own_tx(pipeline.ledger).find(code="missing_object")])
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), RUNS[2], Source.LEDGER)
    ends = [event["run"]["facets"] for event in published(pipeline, root) if event["eventType"] == "FAIL"]
    attempts = [(end["kfmWal"]["attempt"], end["kfmRunState"]["run_id"]) for end in ends]
    assert sorted(attempts) == [(1, RUNS[0]), (1, RUNS[1]), (2, RUNS[2])]


@pytest.mark.clause("RSP-16")
def test_a_collection_names_the_run_that_wrote_its_newest_item(pipeline: Pipeline, tmp_path: Path) -> None:
    first, second = chain.volumes(2)
    path = tmp_path / "home" / "catalog" / pipeline.registry[DATASET].stac.collection / "collection.json"

    def written_by() -> Any:
        return json.loads(path.read_text())["kfm:run_state"]

    for run_id, item in zip(RUNS, (first, second), strict=False):
        chain.put(tmp_path / "objects", [item])
        chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), run_id)
        assert written_by() == {"dataset_id": f"{DATASET}.stac_register", "run_id": run_id}
    # After an undo of the second run the Collection names the first run again.
    own_tx(pipeline.catalog).undo(DATASET, RUNS[1])
    assert written_by()["run_id"] == RUNS[0]


UNIT, OTHER = registered().wal_id, registered(1).wal_id
ITEM, REPAIRED_ITEM = item_entity(UNIT, ""), item_entity(UNIT, "r1")
FIRST, WITHDRAWN = registered(), None
CONTENT, REPAIRED = f"{0:064x}", "e" * 64
UNCHANGED, WITHOUT_HASH = {"write_status": StacStatus.NO_OP}, with_stac(FIRST, content_sha256=None)
CHANGED = {"write_status": StacStatus.UPDATED, "content_sha256": REPAIRED}
OTHERS = [registered(1), with_stac(registered(1, replay_run_id="r0"), **CHANGED)]
"""A second unit and its repair."""

CASES: dict[str, tuple[list[Envelope | None], list[str], str | None]] = {
    # emitted envelopes in order: the unit's revisions, and the Item that the last revision revises or yields to
    "first": ([FIRST], [""], None),
    "a failed unit's first lineage is of its replay": ([repaired("r1")], [""], None),
    "a second replay of such a unit changed nothing": ([repaired("r1"), repaired("r2", **UNCHANGED)], [""], None),
    "emitted twice": ([FIRST, FIRST], [""], None),
    "a repair that changed the Item": ([FIRST, repaired("r1")], ["", "r1"], ITEM),
    "the repair, after a crash": ([FIRST, repaired("r1", **UNCHANGED)], ["", "r1"], ITEM),
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
