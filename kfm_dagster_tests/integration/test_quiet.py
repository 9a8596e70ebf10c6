"""What sensors do while nothing happens, counted; and that a message still starts its run at the next tick."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.notifications.sqs import Queue
from kfm_dagster_tests.integration.chain import announce, put, volumes
from kfm_dagster_tests.integration.face import Face

pytestmark = pytest.mark.one_database

MOST_STATEMENTS = 45
"""Of all sensors together, which ask 39; none of these reads a table that grows (test_ledger_plans)."""


class CountedSqs:
    """A client of a queue that is empty until it is filled; the requests that it got."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    def get_queue_url(self, **_: Any) -> dict[str, str]:
        return {"QueueUrl": "counted"}

    def receive_message(self, **request: Any) -> dict[str, Any]:
        self.requests.append(request)
        taken, self.waiting = self.waiting, []
        return {"Messages": taken}


@contextmanager
def statements(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect what is asked of an engine meanwhile."""
    asked: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", hear)
    yield asked
    sa.event.remove(engine, "before_cursor_execute", hear)


@pytest.mark.clause("DAG-14")
def test_a_quiet_interval_asks_little_and_a_message_in_it_starts_its_run_at_the_next_tick(
    face: Face, objects: Path, contracts: ContractRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = CountedSqs()
    counted = Queue(client, name="counted", threads=8)
    monkeypatch.setattr(face.pipeline, "connect_queue", lambda *_, **__: counted)
    vars(face.pipeline).pop("queue", None)
    sensors = [sensor.name for sensor in face.repository.sensor_defs]
    for sensor in sensors:
        face.tick(sensor)
    client.requests.clear()

    opened: list[str] = []
    with monkeypatch.context() as patch, statements(face.pipeline.database.engine) as asked:
        noted = property(lambda context: opened.append(context.sensor_name) or face.instance)
        patch.setattr(dg.SensorEvaluationContext, "instance", noted)
        for sensor in sensors:
            assert face.tick(sensor).run_requests == []
    # Nothing is asked of Dagster, whose storage a code server opens for every tick that does.
    assert opened == []
    questions = [one for one in asked if not one.startswith(("BEGIN", "PRAGMA"))]
    assert len(questions) <= MOST_STATEMENTS, "\n".join(questions)
    # A request that waits, if only for a second, asks all of SQS's servers: no other one is needed.
    assert [request["WaitTimeSeconds"] > 0 for request in client.requests] == [True]

    [unit] = volumes(1)
    put(objects, [unit])
    message = announce([unit.event()], registry=contracts)
    client.waiting = [{"MessageId": message.message_id, "Body": message.body, "ReceiptHandle": "r"}]
    assert [len(face.tick(sensor).run_requests) for sensor in sensors if sensor == "nodd_messages"] == [1]
