"""What failed runs intended is carried out from the payload: by the ledger's sensor, and by `kfm replay intents`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.cli.main import main
from kfm_dagster.defs.jobs import INGEST_JOB, PATH_JOB
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest import path_arrivals
from kfm_dagster.ingest.discovery import MessageParse
from kfm_dagster.ingest.nodes import IntegrityCheck
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import PARTITION, deliver, put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

WHY = Decision(actor="ada", reason="wrong projection upstream", change_ref="INC-7")
REPLAY = ("replay", "intents", "--json")

Answer = tuple[int, list[dict[str, Any]], str]


@pytest.fixture
def kfm(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The command line: exit code, the rows that are printed, and what is said of an error."""

    monkeypatch.setattr("sys.stdin", StringIO())

    def run(*arguments: str) -> Answer:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capfd.readouterr()
        return int(ended.value.code or 0), json.loads(shown.out or "[]"), shown.err

    return run


def failing(face: Face, node: type[Any], method: str, *, job: str = "ingest_nexrad_l2") -> None:
    """A run of the day of which a node fails for good, at once: the card retries no wrong input."""

    def fail(*_: object, **__: object) -> Any:
        raise ConfigurationError(observed="injected")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, method, fail)
        assert not face.execute(job, partition=PARTITION, raise_on_error=False).success


def intents(face: Face) -> list[tuple[str, str]]:
    """Node and status of every intent that is unresolved."""
    return [(intent.node.partition("@")[0], intent.status.value) for intent in face.pipeline.nodes.intents.unresolved()]


def status_of(face: Face, intent: int) -> IntentStatus:
    return face.pipeline.nodes.intents.get(intent).status


def work(face: Face) -> int:
    """Do what the ledger's sensor asks for, until it asks for nothing twice; return how many ingests that was."""
    return sum(request.job_name == INGEST_JOB for request in face.work("nodd_ledger", quiet=2))


@pytest.mark.clause("IEN-16", "IEN-09")
def test_a_listing_whose_run_failed_is_entered_by_the_sensor_and_ingested_once(face: Face, objects: Path) -> None:
    failing(face, MessageParse, "transform")
    assert intents(face) == [("nexrad-l2.message_parse", "FAILED")]
    # With nothing to claim it is closed.
    face.tick("nodd_ledger")
    assert (intents(face), status_of(face, 1)) == ([], IntentStatus.SKIPPED)
    put(objects, volumes(3))
    failing(face, MessageParse, "transform")
    [intent] = face.pipeline.nodes.intents.unresolved()
    assert traces.statuses(face.pipeline) == Counter()
    # It is entered as it was listed, not as the bucket is by now.
    put(objects, volumes(4))

    face.tick("nodd_ledger")
    assert traces.statuses(face.pipeline) == {Status.PENDING: 3}
    assert {record.attempts for record in traces.records(face.pipeline).values()} == {0}
    # A partition whose runs fail waits before it has another.
    face.pipeline.clock = lambda: datetime.now(UTC) + timedelta(minutes=20)
    assert work(face) == 1
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 3}
    assert (intents(face), status_of(face, intent.wal_id)) == ([], IntentStatus.SKIPPED)


@pytest.mark.clause("IEN-16")
def test_a_failed_batch_is_left_to_the_run_that_claims_its_units_again(face: Face, kfm: Callable[..., Answer]) -> None:
    deliver(face.pipeline, *volumes(2))
    failing(face, IntegrityCheck, "transform")
    code, [row], _ = kfm(*REPLAY, "--dry-run")
    assert (code, row["node"], row["action"]) == (0, f"nexrad-l2.integrity_check@{PARTITION}", "wait")
    assert work(face) == 1
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    assert intents(face) == []


@pytest.mark.clause("IEN-16")
@pytest.mark.parametrize("retry_backoff_seconds", [3600])
def test_units_that_failed_with_their_intent_are_let_in_by_the_command_under_every_guard_and_done_once(
    face: Face, kfm: Callable[..., Answer]
) -> None:
    deliver(face.pipeline, *volumes(2))
    switches = face.pipeline.ledger.switches

    def fail(_: object) -> Any:
        # A unit of a dataset that is off is not let in by the rollback: it stays failed.
        switches.engage("nexrad-l2", WHY)
        raise ConfigurationError(observed="injected")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IntegrityCheck, "transform", fail)
        assert not face.execute("ingest_nexrad_l2", partition=PARTITION, raise_on_error=False).success
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}
    assert kfm(*REPLAY, "--dry-run")[1][0]["action"] == "hold"
    assert kfm(*REPLAY, "--confirm", "--reason", "tried")[0] == 0
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}

    switches.release("nexrad-l2", WHY)
    code, [row], _ = kfm(*REPLAY, "--dry-run")
    assert (code, row["action"], row["units"]) == (0, "let in", 2)
    assert kfm(*REPLAY)[0] == 2
    assert kfm(*REPLAY, "--reason", "the reader is fixed")[0] == 3
    assert traces.statuses(face.pipeline) == {Status.FAILED: 2}
    code, [row], _ = kfm(*REPLAY, "--reason", "the reader is fixed", "--confirm")
    assert (code, row["why"].split()[0]) == (0, "replay")
    work(face)
    assert traces.statuses(face.pipeline) == {Status.SUCCEEDED: 2}
    assert (intents(face), kfm(*REPLAY)[:2]) == ([], (0, []))


@pytest.mark.clause("IEN-16")
def test_an_intent_whose_units_are_in_quarantine_waits_for_a_person(face: Face, kfm: Callable[..., Answer]) -> None:
    deliver(face.pipeline, *volumes(1))
    failing(face, IntegrityCheck, "transform")
    waiting = [record.wal_id for record in traces.records(face.pipeline).values()]
    own_tx(face.pipeline.ledger).quarantine(waiting, reason_code="by_hand", decision=WHY)
    assert work(face) == 0
    code, [row], _ = kfm(*REPLAY, "--confirm")
    assert (code, row["action"]) == (0, "hold")
    assert intents(face) == [("nexrad-l2.integrity_check", "FAILED")]


@pytest.mark.clause("IEN-16")
def test_a_node_that_claims_nothing_is_applied_from_its_own_intent(
    face: Face, objects: Path, kfm: Callable[..., Answer]
) -> None:
    put(objects, volumes(2))
    assert face.execute("ingest_nexrad_l2", partition=PARTITION).success
    failing(face, path_arrivals.PathArrivals, "transform", job=PATH_JOB)
    [intent] = face.pipeline.nodes.intents.unresolved()
    assert work(face) == 0
    code, [row], _ = kfm(*REPLAY, "--confirm")
    assert (code, row["intent"], row["action"]) == (0, intent.wal_id, "run")
    assert face.pipeline.nodes.intents.get(intent.wal_id).status is IntentStatus.APPLIED
    assert face.pipeline.nodes.newest(intent.node).record["units"] == 2
    assert kfm(*REPLAY)[:2] == (0, [])
