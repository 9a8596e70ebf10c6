"""Maintenance: a failing step does not prevent the other steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from kfm_dagster.errors import DatabaseUnavailableError
from kfm_dagster.ingest import maintenance
from kfm_dagster.ingest.acknowledgement import Acknowledger
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.maintenance import maintain
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster_tests.integration.chain import open_pipeline

STEPS = ("release_dead_runs", "retry_due", "acknowledge", "watch", "flush", "catch_up")


@pytest.mark.clause("SEC-09")
@pytest.mark.parametrize("failing", STEPS)
def test_the_steps_do_not_depend_on_each_other(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = open_pipeline(tmp_path, tmp_path)
    done: list[str] = []
    error: Exception = OverflowError("a secret")

    def step(name: str) -> Callable[..., Any]:
        def work(*_: object, **__: object) -> Any:
            done.append(name)
            if name == failing:
                raise error
            return {("hrrr", "2025-04-02"): 1} if name == "retry_due" else None

        return work

    owners = (maintenance, pipeline.ledger, Acknowledger, FeedWatch, pipeline.lineage, pipeline.following)
    for owner, name in zip(owners, STEPS, strict=True):
        monkeypatch.setattr(owner, name, step(name))
    warnings: list[str] = []
    due = maintain(pipeline, ProcessState(), dead=lambda _: (), warn=warnings.append)
    assert done == list(STEPS)
    assert list(due) == ([] if failing == "retry_due" else [("hrrr", "2025-04-02")])
    assert ["OverflowError" in line and "secret" not in line for line in warnings] == [True]
    # Without the database no step works.
    for error in (OperationalError("SELECT", {}, Exception("away")), DatabaseUnavailableError()):
        with pytest.raises((type(error), DatabaseUnavailableError)):
            maintain(pipeline, ProcessState(), dead=lambda _: (), warn=warnings.append)
