"""Old messages, outputs and evidence are deleted unless they are needed; ledger rows stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
import sqlalchemy as sa
from obstore.exceptions import GenericError

from kfm_dagster.errors import ArtifactError, DependencyUnavailableError
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest.evidence import EvidenceCollector, read_evidence
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import CaseState, QuarantineCases
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.retention import Pruned, Retention, RetentionKind, stored_files
from kfm_dagster.storage.artifacts import ArtifactReference
from kfm_dagster_tests.databases import every_row
from kfm_dagster_tests.factories import repeat_units
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.ledger.bench import JANE
from kfm_dagster_tests.retention.conftest import Keeping, files, written_at
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-10")

PARTITION = chain.DAY.isoformat()
SECOND = timedelta(seconds=1)
LONG_AGO = 0.0
"""The modification time of files whose deletion depends only on times in the database."""
LATER = timedelta(days=400)


def store_of(pipeline: Pipeline) -> Path:
    return Path(pipeline.settings.storage)


def grow_old(pipeline: Pipeline) -> None:
    """Date every file long ago, and move the clock by more than a year."""
    written_at(store_of(pipeline), LONG_AGO)
    pipeline.clock.now += LATER


def ingest(pipeline: Pipeline, *items: chain.StoredObject) -> None:
    chain.deliver_each(pipeline, *items)
    chain.work_until_done(pipeline)
    EvidenceCollector(pipeline).collect()


def planned(retention: Retention) -> tuple[int, int]:
    """Return how many files of the only kind are beyond the policy's age, and how many of these are deletable."""
    [pruned] = retention.plan()
    return pruned.old, pruned.removed


def removed(retention: Retention) -> Pruned:
    [pruned] = retention.run(actor="jane")
    return pruned


def outputs(pipeline: Pipeline) -> set[str]:
    return files(store_of(pipeline) / "artifacts")


def named_by(pipeline: Pipeline, run_id: str) -> set[str]:
    """Return the files that run-state names as a run's outputs."""
    return {str(state.artifact_uri).rpartition("/")[2] for state in pipeline.stages.run_states.of_run(run_id)}


def newest_stage(pipeline: Pipeline) -> datetime:
    with pipeline.database.engine.connect() as connection:
        newest: Any = connection.execute(sa.text("SELECT max(opened_at) FROM stage_state")).scalar_one()
    return newest if isinstance(newest, datetime) else datetime.fromisoformat(newest)


@pytest.mark.parametrize("kind", ["landing", "artifacts"])
def test_a_file_is_deleted_just_past_its_age_and_not_before(pipeline: Pipeline, keeping: Keeping, kind: str) -> None:
    ingest(pipeline, chain.volumes(1)[0])
    age = timedelta(days=30)
    # The database's times are older than the file's.
    wrote = newest_stage(pipeline) + timedelta(days=1)
    written_at(store_of(pipeline), wrote.timestamp())
    retention = keeping(**{kind: "30d"})
    pipeline.clock.now = wrote + age
    assert planned(retention) == (0, 0)
    pipeline.clock.now += SECOND
    old, deletable = planned(retention)
    assert old == deletable > 0
    before = files(store_of(pipeline) / kind)
    assert (removed(retention).removed, files(store_of(pipeline) / kind)) == (len(before), set())


def test_a_message_s_age_begins_with_its_receipt(pipeline: Pipeline, keeping: Keeping) -> None:
    ingest(pipeline, chain.volumes(1)[0])
    written_at(store_of(pipeline), LONG_AGO)
    retention = keeping(landing="15d")
    pipeline.clock.now = chain.START + timedelta(days=15)
    assert planned(retention) == (1, 0)
    pipeline.clock.now += SECOND
    assert planned(retention) == (1, 1)


def test_an_output_s_age_begins_with_the_last_stage_that_names_the_output(pipeline: Pipeline, keeping: Keeping) -> None:
    ingest(pipeline, chain.volumes(1)[0])
    for run_id in ("second", "third"):
        # These runs find nothing new; the third run names the outputs of the second.
        pipeline.clock.forward(3600)
        chain.run_chain(pipeline, "nexrad-l2", PARTITION, run_id)
    named = named_by(pipeline, "third")
    assert named == named_by(pipeline, "second")
    written_at(store_of(pipeline), LONG_AGO)
    retention = keeping(artifacts="8d")
    pipeline.clock.now = newest_stage(pipeline) + timedelta(days=8)
    removed(retention)
    assert named & outputs(pipeline) == named
    pipeline.clock.now += SECOND
    removed(retention)
    assert named & outputs(pipeline) == set()


@pytest.mark.parametrize("kind", ["landing", "artifacts"])
def test_files_that_a_unit_needs_stay_until_the_unit_is_terminal(
    pipeline: Pipeline, keeping: Keeping, kind: str
) -> None:
    lost = chain.missing(chain.volumes(1)[0])
    chain.notify_each(pipeline, lost)
    chain.run_chain(pipeline, "nexrad-l2", PARTITION, "first", Source.LEDGER)
    assert traces.records(pipeline)[lost.uri].status is Status.FAILED
    grow_old(pipeline)
    old, deletable = planned(keeping(**{kind: "30d"}))
    assert (old > 0, deletable) == (True, 0)
    chain.work_until_done(pipeline)
    assert traces.records(pipeline)[lost.uri].status is Status.QUARANTINED
    grow_old(pipeline)
    old, deletable = planned(keeping(**{kind: "30d"}))
    assert old == deletable > 0


def test_messages_stay_until_the_case_that_shows_them_has_evidence(pipeline: Pipeline, keeping: Keeping) -> None:
    item = chain.volumes(1)[0]
    chain.notify_each(pipeline, item)
    own_tx(pipeline.ledger).quarantine(
        [traces.records(pipeline)[item.uri].wal_id], reason_code="looked_odd", decision=JANE
    )
    pipeline.acknowledger.acknowledge()
    grow_old(pipeline)
    assert planned(keeping(landing="30d")) == (1, 0)
    assert EvidenceCollector(pipeline).collect() == 1
    assert planned(keeping(landing="30d")) == (1, 1)


@pytest.mark.parametrize("status", ["pending", "in_progress"])
def test_messages_of_a_pending_or_in_progress_unit_stay(pipeline: Pipeline, keeping: Keeping, status: str) -> None:
    item = chain.volumes(1)[0]
    chain.notify_each(pipeline, item)
    if status == "in_progress":
        own_tx(pipeline.ledger).claim(dataset="nexrad-l2", partition=PARTITION, run_id="run", limit=1)
    assert traces.records(pipeline)[item.uri].status == status
    with pipeline.database.engine.begin() as connection:
        # The unit's status protects the file, whatever the message's state is.
        connection.execute(sa.text("UPDATE nodd_wal_deliveries SET state = 'ignored'"))
    grow_old(pipeline)
    assert planned(keeping(landing="30d")) == (1, 0)


def test_evidence_is_deleted_by_its_age_since_the_case_was_closed_and_the_case_stays(
    pipeline: Pipeline, keeping: Keeping
) -> None:
    ingest(pipeline, chain.missing(chain.volumes(1)[0]))
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    [case] = cases.find(CaseState.OPEN)
    written_at(store_of(pipeline), LONG_AGO)
    retention = keeping(evidence_samples="30d")
    pipeline.clock.now += LATER
    assert planned(retention) == (1, 0)
    own_tx(cases).discard({case.wal_id: case.quarantined_version}, decision=JANE)
    pipeline.clock.now += timedelta(days=30)
    assert planned(retention) == (1, 0)
    pipeline.clock.now += SECOND
    assert removed(retention).removed == 1
    [left] = cases.find(CaseState.DISCARDED)
    assert left.evidence_file == case.evidence_file
    with pytest.raises(ArtifactError, match="is gone"):
        read_evidence(pipeline.store, case.evidence_file)
    assert EvidenceCollector(pipeline).collect() == 0


def test_retention_changes_only_the_governance_log_which_names_each_kind_with_deletions(
    pipeline: Pipeline, keeping: Keeping
) -> None:
    ingest(pipeline, *chain.volumes(2))
    grow_old(pipeline)
    retention = keeping(landing="15d", artifacts="30d", evidence_samples="1d")
    before = every_row(pipeline.database)
    assert [pruned.removed for pruned in retention.plan()][:2] != [0, 0]
    assert every_row(pipeline.database) == before
    done = {pruned.kind: pruned for pruned in retention.run(actor="jane")}
    assert done[RetentionKind.EVIDENCE_SAMPLES].removed == 0
    assert all(done[kind].bytes for kind in (RetentionKind.LANDING, RetentionKind.ARTIFACTS))
    after = every_row(pipeline.database)
    after.pop("governance_log"), before.pop("governance_log")
    assert after == before
    entries = own_tx(pipeline.ledger.log).entries(action=GovernanceAction.RETENTION)
    assert [(entry.actor, entry.details["kind"]) for entry in reversed(entries)] == [
        ("jane", "landing"),
        ("jane", "artifacts"),
    ]
    assert entries[0].details["keep_seconds"] == 30 * 86_400
    # Nothing is left to delete or to log.
    assert [pruned.removed for pruned in retention.run(actor="jane")] == [0, 0, 0]
    assert len(own_tx(pipeline.ledger.log).entries(action=GovernanceAction.RETENTION)) == 2


def test_a_retention_that_is_killed_midway_is_completed_by_the_next_retention(
    pipeline: Pipeline, keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(pipeline, *chain.volumes(3))
    grow_old(pipeline)
    retention = keeping(artifacts="30d")
    old, _ = planned(retention)
    monkeypatch.setattr("kfm_dagster.retention.BATCH", 1)
    assert planned(retention) == (old, old)
    monkeypatch.setattr("kfm_dagster.retention.DELETES", 1)
    pruner = retention.pruners[RetentionKind.ARTIFACTS]
    dying = Mock(wraps=pruner.store)
    dying.delete.side_effect = [DEFAULT, DEFAULT, chain.CrashError]
    with pytest.raises(chain.CrashError):
        removed(replace(retention, pruners={RetentionKind.ARTIFACTS: replace(pruner, store=dying)}))
    assert len(outputs(pipeline)) == old - 2
    meanwhile = list(pruner.batches(pipeline.clock.now))
    assert removed(retention).removed == old - 2
    assert outputs(pipeline) == set()
    # Files that are already gone, for example by a concurrent retention, are deleted without an error.
    for batch in meanwhile:
        pruner.remove(batch)


@pytest.mark.clause("SEC-11")
def test_files_of_another_ledger_stay_whatever_their_kind(
    pipeline: Pipeline, tmp_path: Path, objects: Path, keeping: Keeping
) -> None:
    other = chain.open_pipeline(tmp_path / "home", objects)
    ingest(other, chain.volumes(1)[0], chain.missing(chain.volumes(2)[1]))
    cases = QuarantineCases(other.database, clock=other.clock)
    [case] = cases.find(CaseState.OPEN)
    own_tx(cases).discard({case.wal_id: case.quarantined_version}, decision=JANE)
    written_at(store_of(pipeline), LONG_AGO)
    other.clock.now += LATER
    pipeline.clock.now = other.clock.now
    retention = keeping(landing="15d", artifacts="8d", evidence_samples="1d")
    own = replace(retention, pruners=stored_files(other.store, other.database), database=other.database)
    assert all(pruned.removed for pruned in own.plan())
    before = files(store_of(pipeline))
    for pruned in retention.run(actor="jane"):
        assert (pruned.old > 0, pruned.removed) == (True, 0)
    assert files(store_of(pipeline)) == before
    other.close()


@pytest.mark.one_database
def test_the_inputs_of_a_failed_intent_and_files_that_no_stage_wrote_stay(pipeline: Pipeline, keeping: Keeping) -> None:
    ingest(pipeline, chain.volumes(1)[0])
    orphan = pipeline.artifacts.put(b"{}\n", suffix="ndjson")
    (store_of(pipeline) / "artifacts" / "README").write_text("somebody's own")
    [first] = [
        intent
        for intent in pipeline.nodes.intents.of_run(f"round-0-{PARTITION}")
        if intent.payload["context"]["operator"] == "metadata_extract"
    ]
    named = first.payload["inputs"][-1]["checksum"]
    typed = (
        "INSERT INTO etl_wal (run_id, node, step, payload, content_hash, status) SELECT run_id, node, step, payload, "
    )
    with pipeline.database.engine.begin() as connection:
        connection.exec_driver_sql(f"{typed} '{'0' * 64}', 'PENDING' FROM etl_wal WHERE wal_id = {first.wal_id}")
        connection.exec_driver_sql(f"UPDATE etl_wal SET status = 'FAILED' WHERE content_hash = '{'0' * 64}'")
    grow_old(pipeline)
    removed(keeping(artifacts="30d"))
    assert outputs(pipeline) == {f"{named}.parquet", "README", orphan.uri.rpartition("/")[2]}


@pytest.mark.one_database
def test_a_unit_whose_outputs_and_messages_are_deleted_is_repeated_from_its_object(
    pipeline: Pipeline, keeping: Keeping
) -> None:
    item = chain.volumes(1)[0]
    ingest(pipeline, item)
    chain.run_chain(pipeline, "nexrad-l2", PARTITION, "nothing-new")
    before = traces.outcomes(pipeline)
    grow_old(pipeline)
    list(keeping(artifacts="30d", landing="30d").run(actor="jane"))
    assert {Path(name).suffix for name in files(store_of(pipeline))} == {".ndjson"}  # the bucket's listing
    # A run that finds nothing new needs none of the deleted files.
    seen: list[Any] = []
    chain.run_chain(pipeline, "nexrad-l2", PARTITION, "nothing-new-either", seen=seen.append)
    assert [list(batch.envelopes) for batch in seen] == [[]] * len(seen)
    for state in pipeline.stages.run_states.of_run("nothing-new-either"):
        assert pipeline.artifacts.has(ArtifactReference(uri=str(state.artifact_uri), sha256=str(state.artifact_sha256)))
    repeat_units(pipeline.ledger, traces.records(pipeline)[item.uri].wal_id)
    chain.run_chain(pipeline, "nexrad-l2", PARTITION, "again", Source.LEDGER)
    assert traces.records(pipeline)[item.uri].status is Status.SUCCEEDED
    assert traces.outcomes(pipeline) == before
    # Loading the deleted output of the first run fails in one line.
    with pytest.raises(ArtifactError, match=r"is gone; next: .*kfm retention plan"):
        pipeline.stages.port.load_output("nexrad-l2.metadata_extract", f"round-0-{PARTITION}")


@pytest.mark.one_database
def test_a_store_that_does_not_answer_gives_an_error_in_one_line(
    pipeline: Pipeline, keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = Mock(**{"list.side_effect": GenericError("connection refused: http://signed?secret")})
    retention = replace(keeping(landing="30d"), pruners=stored_files(away, pipeline.database))
    with pytest.raises(DependencyUnavailableError, match=r"the store does not answer; observed G.*KFM_STOR") as refused:
        retention.plan()
    assert "secret" not in str(refused.value)
