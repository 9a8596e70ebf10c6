"""Fixtures of the retention tests: a pipeline over a folder, and retention by its own role."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.retention import KeptFor, Retention, RetentionPolicy, stored_files
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.roles import grant_retention_role
from kfm_dagster_tests.databases import as_role

Keeping = Callable[..., Retention]


@pytest.fixture
def retention_url(request: pytest.FixtureRequest, database_url: str) -> str:
    """URL of the test's database; on PostgreSQL as the role of retention."""
    if database_url.startswith("sqlite"):
        return database_url
    role = request.getfixturevalue("retention_role")
    owner = Database.open(database_url)
    grant_retention_role(owner, role)
    owner.dispose()
    return as_role(database_url, role)


@pytest.fixture
def keeping(pipeline: Pipeline, retention_url: str) -> Iterator[Keeping]:
    """Return a function that builds the retention of `pipeline` from the age of each kind of file."""
    database = Database.open(retention_url)

    def make(**ages: object) -> Retention:
        return Retention(
            policy=RetentionPolicy(version="1.0.0", keep=KeptFor.model_validate(ages)),
            pruners=stored_files(pipeline.store, database),
            database=database,
            clock=pipeline.clock,
        )

    yield make
    database.dispose()


def written_at(folder: Path, seconds: float) -> None:
    """Set the modification time of every file below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (seconds, seconds))


def files(folder: Path) -> set[str]:
    """Return the names of the files below a folder."""
    return {path.name for path in folder.rglob("*") if path.is_file()}
