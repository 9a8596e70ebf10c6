"""Crashes after each statement, transaction and file operation, and re-execution.

The re-execution has the run's id, as in Dagster, so it resumes the run's intents and claims; the result must equal
that of a run without a crash. Each death begins with a copy of the state that the earlier operators left. A death that
leaves the same files and rows as an earlier death is not followed by another re-execution.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.idempotent_node.wal import IntentStatus, run_uuid
from kfm_dagster.ingest.nodes import MessageParse, Source, chain, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster_tests import databases
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.commands import state_of
from kfm_dagster_tests.databases import BOTH_DATABASES
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import LIMIT, assert_conserved, node, open_pipeline, put, volumes
from kfm_dagster_tests.moments import dying
from kfm_dagster_tests.transactions import own_tx

RUN = run_uuid("the run of the day")
STRIDE = {
    dialect: int(os.environ.get("KFM_CRASH_STRIDE", default)) for dialect, default in (("sqlite", 1), ("postgresql", 3))
}
"""On SQLite each moment is tested; on PostgreSQL, since the code is the same, each third, or all by `make soak`."""


def run(pipeline: Pipeline, names: Iterable[str], batch: StageBatch | None = None) -> StageBatch | None:
    """Run and commit the operators with these names over the day; return the last output."""
    for kind in chain():
        if kind.operator in names:
            first = {"source": Source.LISTING, "limit": LIMIT} if kind is MessageParse else {}
            stage = pipeline.stages.run(node(pipeline, kind, RUN, **first), run_id=RUN, upstream=batch)
            batch = pipeline.stages.commit(stage)
    return batch


@contextmanager
def restored(recorded: Path, work: Path, url: str, server: str) -> Iterator[str]:
    """Replace a folder by the recorded one, and yield the URL of a copy of the database."""
    shutil.rmtree(work)
    shutil.copytree(recorded, work)
    if not server:
        yield url
        return
    role = sa.make_url(url)
    with databases.created(server, template=str(role.database)) as copy:
        yield databases.as_role(copy, str(role.username))


def story(pipeline: Pipeline) -> dict[str, Any]:
    """Return the run's results after checking the catalog."""
    [record] = own_tx(pipeline.ledger).find()
    intents = pipeline.nodes.intents.of_run(RUN)
    trees.assert_consistent(Path(pipeline.settings.catalog))
    assert not list(pipeline.nodes.intents.unresolved())
    return {
        **{name: getattr(record, name) for name in traces.OUTCOME},
        "attempts": record.attempts,
        "history": [(entry.from_status, entry.to_status) for entry in own_tx(pipeline.ledger).history(record.wal_id)],
        "intents": [(intent.node, intent.status) for intent in intents],
        "outputs": [pipeline.nodes.newest(intent.node).content_hash == intent.content_hash for intent in intents],
        "run_states": [(state.dataset_id, state.outcome) for state in pipeline.stages.run_states.of_run(RUN)],
        "steps": databases.ask(pipeline.database, "SELECT status FROM etl_steps ORDER BY wal_id, status"),
        "lineage": sorted((link.path, link.state) for link in pipeline.lineage.links_of(record.wal_id)),
    }


@pytest.mark.clause("IEN-06", "IEN-09", "IEN-11", "RSP-10", "WAL-08")
@pytest.mark.parametrize("operator", operators(), ids=str)
@BOTH_DATABASES
def test_a_run_that_dies_anywhere_in_an_operator_equals_a_clean_run_after_re_execution(
    operator: str, database_url: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    earlier, later = operators()[: operators().index(operator)], operators()[operators().index(operator) :]
    server = "" if database_url.startswith("sqlite") else request.getfixturevalue("postgres_server")
    work, recorded = tmp_path / "work", tmp_path / "recorded"
    url = database_url if server else databases.migrated_sqlite(work / "kfm.db")

    def opened(at: str) -> closing[Pipeline]:
        return closing(open_pipeline(work / "home", work / "objects", url=at))

    put(work / "objects", volumes(1))
    with opened(url) as pipeline:
        stride, upstream = STRIDE[pipeline.database.dialect], run(pipeline, earlier)
    shutil.copytree(work, recorded)
    with restored(recorded, work, url, server) as copy, opened(copy) as pipeline:
        run(pipeline, later, upstream)
        expected = story(pipeline)
    assert expected["status"] is Status.SUCCEEDED
    assert [status for _, status in expected["intents"]] == [IntentStatus.APPLIED] * len(operators())
    assert expected["steps"] == [IntentStatus.APPLIED] * len(operators())
    left: list[Any] = []
    for at in count(1, stride):
        with restored(recorded, work, url, server) as copy:
            with opened(copy) as pipeline:
                with dying(pipeline.database, at=at) as death:
                    run(pipeline, [operator], upstream)
                assert_conserved(pipeline)
                state = state_of(work / "home"), databases.every_row(pipeline.database)
            if state not in left:
                left.append(state)
                with opened(copy) as pipeline:
                    run(pipeline, operators())
                    assert story(pipeline) == expected, f"{operator} {death}"
        if not death.died:
            break
    assert len(death.reached) > 15, "an operator has more than 15 moments"
