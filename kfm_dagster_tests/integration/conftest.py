"""Fixtures of the integration tests: an environment of our own, and pipelines that are closed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.integration import chain


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("KFM_", "OPENLINEAGE")) and not name.startswith("KFM_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """Folder in the place of the providers' object stores."""
    folder = tmp_path / "objects"
    folder.mkdir()
    return folder


@pytest.fixture
def make_pipeline(tmp_path: Path, objects: Path) -> Iterator[Callable[..., Pipeline]]:
    """Open pipelines over `objects`; each has its own home unless one is named."""
    opened: list[Pipeline] = []

    def make(*, home: str = "home", **settings: Any) -> Pipeline:
        pipeline = chain.open_pipeline(tmp_path / home, objects, **settings)
        opened.append(pipeline)
        return pipeline

    yield make
    for pipeline in opened:
        pipeline.close()


@pytest.fixture
def queue() -> chain.FakeQueue:
    """The queue of `pipeline`."""
    return chain.FakeQueue()


@pytest.fixture
def pipeline(make_pipeline: Callable[..., Pipeline], database_url: str, queue: chain.FakeQueue) -> Pipeline:
    """A pipeline over `objects`, once on SQLite and once on PostgreSQL."""
    return make_pipeline(url=database_url, queue=queue)
