"""Runs that are announced: what they made, what became of it when they were taken back, and that nobody waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.followers.announcements import announcer
from kfm_dagster.followers.announcements.webhook import Webhook
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.outbox.store import LONGEST_PAUSE
from kfm_dagster_tests.followers.announcements.changes import subscribed
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, Clock, announce, put, run_chain, take, volumes
from kfm_dagster_tests.transactions import own_tx

PARTITION = DAY.isoformat()


@pytest.fixture
def server() -> Iterator[WebServer]:
    with open_web_server() as opened:
        yield opened


@pytest.fixture
def announcing(pipeline: Pipeline, server: WebServer, tmp_path: Path) -> Pipeline:
    """The pipeline, with one subscription."""
    configs = subscribed(tmp_path / "configs", f'webhook: "{server.url()}"')
    pipeline.settings = pipeline.settings.model_copy(update={"configs_dir": configs})
    return pipeline


def events(server: WebServer) -> list[dict[str, Any]]:
    return [json.loads(body) for *_, body in server.asked]


def ingest(pipeline: Pipeline, objects: Path, count: int, run_id: str) -> None:
    items = volumes(count)
    put(objects, items)
    take(pipeline, announce([item.event() for item in items], registry=pipeline.registry))
    run_chain(pipeline, "nexrad-l2", PARTITION, run_id, Source.LEDGER)


@pytest.mark.clause("OPR-22")
def test_a_runs_items_are_announced_at_its_end_and_withdrawn_when_it_is_taken_back(
    announcing: Pipeline, objects: Path, server: WebServer
) -> None:
    ingest(announcing, objects, 2, "run")
    created = events(server)
    assert [event["type"] for event in created] == ["kfm.nodd.item.created"] * 2
    catalog = Path(announcing.settings.catalog)
    for event in created:
        [path] = catalog.glob(f"**/{event['data']['id']}.json")
        assert event["data"] == json.loads(path.read_bytes())
    own_tx(announcing.catalog).undo("nexrad-l2", "run")
    announcing.following.catch_up(announcing.followers)
    withdrawn = events(server)[2:]
    assert [event["type"] for event in withdrawn] == ["kfm.nodd.item.withdrawn"] * 2
    assert {event["subject"] for event in withdrawn} == {event["subject"] for event in created}
    announcing.following.catch_up(announcing.followers)
    assert len(events(server)) == 4


@pytest.mark.clause("OPR-22")
@pytest.mark.parametrize("status", [503, 302, 422, None], ids=["down", "redirects", "refuses", "hangs"])
def test_a_dead_receiver_costs_no_unit(
    announcing: Pipeline, objects: Path, server: WebServer, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long a receiver has that never answers.
    monkeypatch.setattr(announcer, "Webhook", partial(Webhook, seconds=0.5))
    server.answers = lambda _: WebAnswer(status=status, headers={"Location": server.url("elsewhere")})
    ingest(announcing, objects, 2, "run")
    assert set(traces.statuses(announcing)) == {Status.SUCCEEDED}
    [place] = announcing.following.states()
    assert (place.follower, place.behind, place.failures) == ("announcements.one", 2, 1)
    server.answers, clock = (lambda _: WebAnswer()), announcing.clock
    asked = len(server.asked)
    assert isinstance(clock, Clock)
    clock.forward(LONGEST_PAUSE.total_seconds())
    announcing.following.catch_up(announcing.followers)
    assert len({event["id"] for event in events(server)[asked:]}) == 2
    assert {(one.behind, one.last_error) for one in announcing.following.states()} == {(0, None)}
