"""Announcements by webhook to a real service on loopback: what it answers, and what becomes of the events then."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.announcements.plan import AnnouncementPlan
from kfm_dagster.followers.announcements.sending import ReceiverUnavailableError, Reception
from kfm_dagster.followers.announcements.webhook import Webhook
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.catalog.envelopes import goes
from kfm_dagster_tests.followers.announcements.changes import TEXT, announcers_of, item_of
from kfm_dagster_tests.followers.announcements.test_event import writer
from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebServer, open_web_server
from kfm_dagster_tests.followers.changes import change

SECRET = "s3cr3t-word"
SHORT_SECONDS = 0.5
"""How long a test waits for a receiver that never answers."""


@pytest.fixture
def server() -> Iterator[WebServer]:
    with open_web_server() as opened:
        yield opened


def reception(contracts: ContractRegistry, webhook: Webhook) -> Reception | str:
    event = writer().write("c", change(1, item_of(contracts)), ChangeKind.CREATED)
    try:
        [answer] = webhook.send([event])
    except ReceiverUnavailableError as error:
        return str(error)
    return answer.reception


@pytest.mark.clause("OPR-22")
def test_a_webhook_gets_events_by_the_http_binding_with_its_token(
    server: WebServer, database: Database, contracts: ContractRegistry
) -> None:
    text = TEXT.replace("https://hooks.example.org/items", server.url("items?topic=a"))
    plan = AnnouncementPlan.parse(text)
    [one] = announcers_of(plan, database, contracts, token=SecretStr(SECRET))
    items = [item_of(contracts, goes(number)) for number in range(12)]
    one.follow(contracts["goes-abi"], [change(number, item) for number, item in enumerate(items, 1)])
    assert len(server.asked) == 12
    for command, path, headers, body in server.asked:
        assert (command, path) == ("POST", "/items?topic=a")
        assert headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
        assert headers["authorization"] == f"Bearer {SECRET}"
        assert json.loads(body)["specversion"] == "1.0"
    assert {json.loads(body)["data"]["id"] for *_, body in server.asked} == {item["id"] for item in items}


STATUSES: dict[Reception, tuple[int, ...]] = {
    Reception.TAKEN: (200, 299),
    Reception.REFUSED: (400, 409, 413, 415),
    Reception.FAILED: (408, 500, 502, 504),
}
ANSWERS: list[tuple[WebAnswer, Reception | str]] = [
    *((WebAnswer(status=status), becomes) for becomes, statuses in STATUSES.items() for status in statuses),
    (WebAnswer(status=202, body=b"thanks"), Reception.TAKEN),
    (WebAnswer(status=200, endless=True), Reception.TAKEN),
    (WebAnswer(status=422, body=b"x" * 100_000), Reception.REFUSED),
    *((WebAnswer(status=status), f"HTTP {status}") for status in (401, 404, 410, 429, 503)),
]


@pytest.mark.clause("OPR-22")
def test_an_answer_is_about_the_event_or_about_the_receiver(server: WebServer, contracts: ContractRegistry) -> None:
    webhook = Webhook(server.url())
    for answer, becomes in ANSWERS:
        server.answers = lambda _, answer=answer: answer
        assert reception(contracts, webhook) == becomes, answer.status


@pytest.mark.clause("OPR-22")
def test_a_redirect_is_not_followed(server: WebServer, contracts: ContractRegistry) -> None:
    with open_web_server() as elsewhere:
        for status in (301, 302, 303, 307, 308):
            server.answers = lambda _, status=status: WebAnswer(status=status, headers={"Location": elsewhere.url()})
            found = reception(contracts, Webhook(server.url(), token=SecretStr(SECRET)))
            assert found == f"HTTP {status}, a redirect, which is not followed"
        assert elsewhere.asked == []


@pytest.mark.clause("OPR-22")
def test_a_receiver_that_hangs_or_is_dead_costs_bounded_time_and_says_no_credential(
    server: WebServer, contracts: ContractRegistry
) -> None:
    server.answers = lambda _: WebAnswer(status=None)
    hanging = Webhook(server.url(f"items?code={SECRET}"), seconds=SHORT_SECONDS)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and nobody listens
        dead = Webhook(f"http://127.0.0.1:{closed.getsockname()[1]}/{SECRET}", seconds=SHORT_SECONDS)
        found = [str(reception(contracts, one)) for one in (hanging, dead)]
    assert [text.startswith("no answer (") for text in found] == [True, True]
    assert SECRET not in "".join(found)
