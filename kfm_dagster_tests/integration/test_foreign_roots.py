"""Two ledgers on one place: whatever would write or remove there under the second one refuses in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.errors import ExitCode
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store
from kfm_dagster_tests.commands import caller
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, FakeQueue, enqueue, volumes
from kfm_dagster_tests.integration.face import Face

pytestmark = pytest.mark.clause("SEC-11")

BUCKET = "kfm-shared"
REFUSED = "is another deployment's"


@pytest.fixture(params=["folder", "bucket"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The place of a catalog and a store that both deployments name; the second one has the rest for itself."""
    place = str(tmp_path / "shared")
    if request.param == "bucket":
        aws: EmbeddedCloud = request.getfixturevalue("aws")
        aws.client("s3").create_bucket(Bucket=BUCKET)
        place = f"s3://{BUCKET}/{request.node.callspec.params['database_url']}"
    monkeypatch.setenv("KFM_CATALOG_URL", f"{place}/catalog")
    return place


@pytest.fixture
def first(shared: str, face: Face, queue: FakeQueue) -> Face:
    """A deployment that has ingested two volumes into the catalog."""
    enqueue(face.pipeline, queue, *volumes(2))
    [asked] = face.tick("nodd_messages").run_requests
    face.launch(asked)
    assert traces.statuses(face.pipeline) == {"succeeded": 2}
    return face


@pytest.fixture
def make_second(
    face: Face, shared: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Face]:
    """Open another ledger, whose settings name the catalog of the first deployment."""

    def make() -> Face:
        url = f"sqlite:///{tmp_path / 'second.db'}"
        if face.pipeline.database.dialect == "postgresql":
            url = str(request.getfixturevalue("empty_postgres_url"))
        Database.open(url).dispose()
        monkeypatch.setenv("KFM_WAL_DSN", url)
        monkeypatch.setenv("KFM_HOME", str(tmp_path / "second"))
        return face.reopened()

    return make


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run `kfm ...` in this process; return its exit code and what it says on stderr."""
    run = caller(capfd)
    return lambda *arguments: run(*arguments)[::2]


def _files(place: str) -> dict[str, bytes]:
    store = open_store(place)
    paths = [entry["path"] for page in store.list() for entry in page]
    return {path: bytes(store.get(path).bytes()) for path in paths}


def test_a_second_ledger_changes_and_removes_nothing_in_the_places_of_the_first(
    first: Face,
    make_second: Callable[[], Face],
    shared: str,
    queue: FakeQueue,
    call: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first one's own mark is no object of its catalog, and is read once a process.
    day = DAY.isoformat()
    assert call("reconcile", "--dataset", "nexrad-l2", "--from", day, "--to", day, "--read")[0] == ExitCode.DONE
    if "://" not in shared:
        assert len(traces.items(Path(shared) / "catalog")) == 2
        assert traces.catalog_tree(Path(shared) / "catalog")
    with monkeypatch.context() as patched:
        patched.setattr("kfm_dagster.ingest.preflight.hold", lambda *_: pytest.fail("it was read again"))
        assert first.execute("ingest_nexrad_l2", partition=day).success
    second = make_second()
    before = _files(f"{shared}/catalog")
    enqueue(second.pipeline, queue, *volumes(3))
    received = queue.receives
    for sensor in ("nodd_messages", "nodd_ledger"):
        said = second.tick(sensor).skip_message
        assert REFUSED in said
        assert "\n" not in said
    assert queue.receives == received
    assert not second.execute("ingest_nexrad_l2", partition=DAY.isoformat(), raise_on_error=False).success
    evidence = second.repository.get_job("nodd_evidence")
    assert not evidence.execute_in_process(instance=second.instance, raise_on_error=False).success
    assert traces.statuses(second.pipeline) == {}
    monkeypatch.setenv("KFM_GEOPARQUET", "true")
    for command in (
        ("reconcile", "--days", "1"),
        ("reconcile", "--days", "1", "--repair", "--reason", "x"),
        ("stac", "rebuild", "--place", "geoparquet"),
    ):
        code, said = call(*command)
        assert (code, REFUSED in said, said.count("\n")) == (ExitCode.REFUSED, True, 1), said
    assert _files(f"{shared}/catalog") == before
    # Its own places are as they were, too.
    assert not any(Path(os.environ["KFM_HOME"]).rglob("*.json*"))
    monkeypatch.setenv("KFM_STORAGE_URL", first.pipeline.settings.storage)
    for command in ("plan", "run"):
        code, said = call("retention", command)
        assert (code, REFUSED in said, said.count("\n")) == (ExitCode.REFUSED, True, 1), said
    second.pipeline.close()


@pytest.mark.one_database
def test_a_store_without_a_mark_is_refused_to_retention(
    face: Face, call: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFM_STORAGE_URL", str(tmp_path / "older"))
    Landing(open_store(str(tmp_path / "older"))).land([SqsMessage(message_id="m", body="{}")])
    code, said = call("retention", "plan")
    assert (code, "kfm init --adopt" in said) == (ExitCode.REFUSED, True)
