"""Fixtures of the integration tests: a clean environment, and pipelines that are closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.defs.resources import SqsQueueResource, open_pipeline
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.settings import Settings
from kfm_dagster.storage.s3 import Fetched, S3Bucket
from kfm_dagster_tests.clocks import locked
from kfm_dagster_tests.commands import Call, caller
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.integration.face import Face


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("KFM_", "OPENLINEAGE")) and not name.startswith(("KFM_TEST_", "KFM_WRITE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KFM_SNS_VERIFY", "off")  # these tests build unsigned messages
    monkeypatch.setenv("KFM_SCHEDULED_LISTINGS", "false")  # as for all tests
    monkeypatch.setenv("KFM_GEOPARQUET", "false")  # as for all tests
    # The default, 1,000 days ago, will in some year be later than the days of these tests.
    monkeypatch.setenv("KFM_FIRST_DAY", "2025-01-01")


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a fresh database; on PostgreSQL for the role of a deployment, which is not the owner."""
    if request.param == "sqlite":
        return migrated_sqlite(tmp_path / "kfm.db")
    return str(request.getfixturevalue("deployment_url"))


@pytest.fixture
def make_pipeline(tmp_path: Path, objects: Path) -> Iterator[Callable[..., Pipeline]]:
    """Open pipelines over `objects`; all have the same KFM_HOME unless `home` names another folder."""
    opened: list[Pipeline] = []

    def make(*, home: str = "home", **settings: Any) -> Pipeline:
        pipeline = chain.open_pipeline(tmp_path / home, objects, **settings)
        hold_roots(
            pipeline.settings, pipeline.database
        )  # as after `kfm init`, because tests put files into these roots before the first tick
        opened.append(pipeline)
        return pipeline

    yield make
    for pipeline in opened:
        pipeline.close()


@pytest.fixture
def pipeline(make_pipeline: Callable[..., Pipeline], database_url: str, queue: chain.FakeQueue) -> Pipeline:
    """A pipeline over `objects` and the database of `database_url`."""
    return make_pipeline(url=database_url, queue=queue)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `kfm ...` in this process and its environment."""
    return caller(capfd)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record the path of each request to a store, and the size of its answer (0 for an error)."""
    requests: list[tuple[str, int]] = []
    get = S3Bucket.get

    def recorded(store: S3Bucket, path: str, **options: Any) -> Fetched:
        size = 0
        try:
            answer = get(store, path, **options)
            size = len(answer.content)
            return answer
        finally:
            requests.append((path, size))

    monkeypatch.setattr(S3Bucket, "get", recorded)
    return requests


@pytest.fixture
def dagster_home(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk in the folder `dagster`, as re-executions, schedules and the worker's reports require."""
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        yield instance


@pytest.fixture
def followed() -> str:
    """Datasets that `face` follows: few, because each test builds the Dagster definitions of all of them."""
    return "goes-abi hrrr nexrad-l2"


@pytest.fixture
def retry_backoff_seconds() -> int:
    """The default backoff of a failed unit of `face`."""
    return 0


@pytest.fixture
def face(
    tmp_path: Path,
    objects: Path,
    database_url: str,
    queue: chain.FakeQueue,
    instance: dg.DagsterInstance,
    followed: str,
    retry_backoff_seconds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Face]:
    """Sensors and jobs over `objects`, `queue` and the database of `database_url`."""
    variables = {
        "KFM_HOME": str(tmp_path / "home"),
        "KFM_DATASETS": followed,
        "KFM_OBJECT_ROOT": str(objects),
        "KFM_WAL_DSN": database_url,
        "KFM_RETRY_BACKOFF_SECONDS": str(retry_backoff_seconds),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SqsQueueResource, "connect", lambda self, settings, dates=None: queue)
    pipeline = locked(open_pipeline(Settings.load(), SqsQueueResource()))
    hold_roots(pipeline.settings, pipeline.database)
    yield Face(instance=instance, pipeline=pipeline)
    pipeline.close()
    open_pipeline.cache_clear()
