"""The JSON API: answers agree with its OpenAPI document; refusals are problem documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import AlertState, AlertStore
from kfm_dagster.console.app import console_app
from kfm_dagster.console.operations import PATHS, document
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState
from kfm_dagster.ledger.gaps import FeedWindow
from kfm_dagster.ledger.rejections import Rejection
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.settings import Environment, Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.views.view import BASE
from kfm_dagster_tests.alerts.recorded import open_alert
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.integration.chain import Clock
from kfm_dagster_tests.ledger.bench import DAY, make_bench
from kfm_dagster_tests.transactions import own_tx

EXAMPLES = 25
"""Number of generated requests for each operation."""


@pytest.fixture
def api(database: Database, contracts: ContractRegistry, tmp_path: Path) -> Iterator[TestClient]:
    """Open the console over a ledger of five units."""
    bench = make_bench(database, contracts)
    bench.ledger.ensure([envelope(number) for number in range(5)])
    claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id="run-1", limit=4)
    bench.ledger.settle([finished(claimed[0]), *map(failed, claimed[1:3])], run_id="run-1")
    pipeline = Pipeline(
        settings=Settings(home=tmp_path, geoparquet=False), registry=contracts, database=database, clock=bench.clock
    )
    with TestClient(console_app(pipeline, hosts=["testserver"]), base_url="http://localhost") as client:
        yield client


@pytest.mark.one_database
def test_the_document_is_openapi_and_names_every_route(api: TestClient) -> None:
    published = api.get(f"{BASE}/openapi.json").json()
    assert published == json.loads(json.dumps(document()))
    from openapi_spec_validator import OpenAPIV31SpecValidator

    OpenAPIV31SpecValidator(published).validate()
    # Clients are generated from these names.
    assert {path: operation["get"]["operationId"] for path, operation in published["paths"].items()} == {
        "/units": "searchUnits", "/units/{wal_id}": "explainUnit", "/failures": "listFailures", "/gaps": "listGaps",
        "/rejections": "searchRejections", "/alerts": "listAlerts", "/datasets": "listDatasets",
        "/status": "getStatus", "/openapi.json": "getOpenapi",
    }  # fmt: skip


def in_pages(client: TestClient, rows: str, *, limit: int, also: str = "") -> list[dict[str, Any]]:
    """Follow a list's links from page to page, check each page's size, and return all rows."""
    listed: list[dict[str, Any]] = []
    link: str | None = f"{BASE}/{rows}?limit={limit}{also}"
    while link:
        page = client.get(link).json()
        assert len(page[rows]) <= limit
        listed += page[rows]
        link = page["next"]
    return listed


@pytest.mark.one_database
def test_the_links_to_the_next_page_lead_through_all_units(api: TestClient) -> None:
    ids = [unit["wal_id"] for unit in in_pages(api, "units", limit=2, also="&dataset=nexrad-l2")]
    assert len(ids) == len(set(ids)) == 5
    [unit] = api.get(f"{BASE}/units", params={"status": "succeeded"}).json()["units"]
    assert unit["event_time"].endswith("Z")
    whole = api.get(f"{BASE}/units/{unit['wal_id']}").json()
    assert [change["to_status"] for change in whole["history"]] == ["pending", "in_progress", "succeeded"]


@pytest.mark.one_database
def test_failures_gaps_datasets_and_status_agree_with_the_ledger(api: TestClient) -> None:
    [group] = api.get(f"{BASE}/failures", params={"dataset": "nexrad-l2"}).json()["failures"]
    assert (group["code"], group["operator"], group["units"]) == ("missing_object", "integrity_check", 2)
    page = api.get("/failures", headers={"accept": "text/html"}).text
    assert re.search(r'<a href="/units\?[^"]*code=missing_object[^"]*">missing_object</a>', page)
    assert api.get(f"{BASE}/gaps", params={"days": "9", "closed": "true"}).json() == {"gaps": [], "complete": True}
    datasets = {dataset["id"]: dataset for dataset in api.get(f"{BASE}/datasets").json()["datasets"]}
    assert datasets["nexrad-l2"]["switched_off"] is False
    status = api.get(f"{BASE}/status").json()
    assert status["units"]["nexrad-l2"]["failed"] == 2


@pytest.mark.one_database
def test_a_refusal_is_a_problem_document(api: TestClient) -> None:
    for path, status, detail in (
        ("/units?colour=red", 400, "observed 'colour'; expected dataset, status, code"),
        ("/units?limit=0", 400, "observed limit='0'; expected a whole number from 1 to 1000"),
        ("/units?limit=x", 400, "observed limit='x'; expected a whole number"),
        ("/units?after=x", 400, "expected the value in the `next` of the page before"),
        ("/units?limit=1&limit=2", 400, "observed a parameter twice"),
        ("/units?dataset=no-such", 404, "no-such"),
        ("/units/x", 404, "there is no such unit"),
        ("/units/%0Ax", 404, "there is no such unit"),
        ("/gaps?closed=maybe", 400, "expected true or false"),
        ("/gaps?days=400", 400, "expected a whole number from 1 to 366"),
        ("/status?x=1", 400, "expected no parameter"),
        ("/nothing", 404, "/api/v1/openapi.json lists the paths"),
    ):
        answer = api.get(BASE + path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        problem: dict[str, Any] = answer.json()
        assert (problem["status"], problem["type"]) == (status, "about:blank")
        assert detail in problem["detail"]
        assert problem["instance"] == BASE + path.replace("%0A", "").partition("?")[0]
        assert api.post(BASE + path).status_code in {404, 405}


@pytest.mark.one_database
def test_an_unavailable_database_is_a_problem_document(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = OperationalError("SELECT", {}, Exception("s3cr3t"))
    monkeypatch.setattr(Database, "snapshot", Mock(side_effect=gone))
    answer = api.get(f"{BASE}/units")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert "s3cr3t" not in answer.text


@pytest.mark.one_database
@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
def test_answers_to_generated_requests_agree_with_the_document(api: TestClient, kind: str) -> None:
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    mode = schemathesis.GenerationMode[kind]
    every = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_asgi(f"{BASE}/openapi.json", api.app)
    # An operation without parameters has no invalid requests.
    paths = [path for path in PATHS if PATHS[path].parameters or kind == "POSITIVE"]
    for path in paths:

        @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=schema[path]["GET"].as_strategy(generation_mode=mode))
        def request(case: Any) -> None:
            case.validate_response(case.call(), checks=every)

        request()


TOKEN = "annas-token-of-20-chars"
HOSTILE = '{"key": "<script>alert(1)</script>\u202eslipped",\n\t1'
MESSAGES = 5
DEPTHS = {"kfm-nodd-primary": 7, "kfm-nodd-dlq": 3}


@pytest.fixture
def pipeline(database: Database, contracts: ContractRegistry, tmp_path: Path) -> Pipeline:
    """Open a pipeline with five rejected messages of one batch, the first with two reasons."""
    settings = Settings(home=tmp_path, geoparquet=False, console_tokens=SecretStr(f"anna={TOKEN}"))
    clock = Clock()
    bench = make_bench(database, contracts)
    opened = Pipeline(settings=settings, registry=contracts, database=database, clock=clock)
    deliveries = opened.deliveries
    messages = [*(f"message-{number}" for number in range(MESSAGES - 1)), "message-4/of-a-kind"]
    digest = opened.landing.land([SqsMessage(message_id=message, body=HOSTILE) for message in messages])
    own_tx(deliveries).record(
        Delivery(message_id=message, queue="q", receipt_handle="r", landing_sha256=digest, state=DeliveryState.REJECTED)
        for message in messages
    )
    own_tx(deliveries).reject(
        Rejection(message_id=message, record_index=0, reason_code="malformed_json", detail="no <JSON>")
        for message in messages
    )
    own_tx(deliveries).reject(
        [Rejection(message_id=messages[0], record_index=3, reason_code="unknown_bucket", detail="whose")]
    )
    assert bench.ledger.find() == []
    return opened


@pytest.fixture
def browser(pipeline: Pipeline) -> Iterator[TestClient]:
    application = console_app(pipeline, depths=lambda: DEPTHS, deciding=pipeline)
    with TestClient(application, headers={"accept": "text/html"}, base_url="http://localhost") as client:
        yield client


def test_the_front_page_links_to_the_rejections_and_each_rejection_to_its_message(browser: TestClient) -> None:
    front = browser.get("/").text
    assert '<li class="bad">dead letters<b><a href="/rejected#dead">3</a>' in front
    # Messages in the queue and notices are not counted as problems.
    assert '<li class="">queue<b>7</b>' in front
    assert '<li class="good">problems<b><a href="#matters">0</a>' in front
    assert '<a href="/rejected?reason=malformed_json">5 messages rejected within a day: malformed_json</a>' in front
    page = browser.get("/rejected?reason=malformed_json").text
    assert page.count("no &lt;JSON&gt;") == MESSAGES
    assert "3 dead letters" in page
    [link] = re.findall(r'href="(/rejected/message-4[^"]*)"', page)
    message = browser.get(link).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u202eslipped&#34;,\n\t1" in message
    assert "<script>" not in message
    assert '<span class="badge rejected">' in message
    refused = browser.get("/rejected/none")
    assert (refused.status_code, "no message of that id was rejected" in refused.text) == (404, True)


def test_the_page_of_a_message_has_no_reasons_of_a_message_with_a_longer_id(
    browser: TestClient, pipeline: Pipeline
) -> None:
    longer = Delivery(message_id="message-12", queue="q", receipt_handle="r", landing_sha256="a" * 64)
    own_tx(pipeline.deliveries).record([longer])
    own_tx(pipeline.deliveries).reject(
        [Rejection(message_id="message-12", record_index=0, reason_code="unknown_bucket", detail="another")]
    )
    page = browser.get("/rejected/message-1").text
    assert "no &lt;JSON&gt;" in page
    assert "another" not in page


def test_a_long_message_is_shown_in_part(
    browser: TestClient, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfm_dagster.console.records.MOST_SHOWN", 6)
    page = browser.get("/rejected/message-1").text
    assert '<pre tabindex="0">{&#34;key</pre>' in page.replace("&#34;</pre>", "</pre>")
    assert f"And {len(HOSTILE) - 6} characters more: <code>kfm units rejected --message message-1 --body</code>" in page


def test_pages_of_rejections_are_complete_although_all_rejections_of_a_batch_have_the_same_time(
    browser: TestClient, pipeline: Pipeline
) -> None:
    whole = [(row.message_id, row.record_index) for row in pipeline.deliveries.rejected()]
    assert len(whole) == len(set(whole)) == MESSAGES + 1
    for limit in (1, 2, 3):
        rows = in_pages(browser, "rejections", limit=limit)
        assert [(row["message_id"], row["record_index"]) for row in rows] == whole


def test_pages_of_rejections_apply_the_filter_in_the_url(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfm_dagster.console.pages.PAGE", 2)
    page = browser.get("/rejected?message=message").text
    assert "s3://b/" not in page
    assert 'aria-label="Rejected messages"' in page
    [following] = re.findall(r'href="([^"]*)" rel="next"', page)
    assert 'href="/rejected?message=message">First page' in browser.get(following.replace("&amp;", "&")).text
    assert "<option selected>unknown_bucket</option>" in browser.get("/rejected?reason=unknown_bucket").text
    for wrong in ("reason=whim", "after=x", "message=%00", "colour=red"):
        assert browser.get(f"/rejected?{wrong}").status_code == 400, wrong


def test_an_alert_has_its_cause_and_next_steps_and_can_be_acknowledged(browser: TestClient, pipeline: Pipeline) -> None:
    open_alert(pipeline.database, AlertRule.RETRY_STORM, "all stages", run_id="run-7")
    open_alert(pipeline.database, AlertRule.UNLOCK, "clock")
    front = browser.get("/").text
    assert '<a href="/alerts?rule=retry_storm">alert retry_storm (warning) of all stages</a>' in front
    page = browser.get("/alerts?rule=retry_storm").text
    for text in (
        "Many stages are retried",
        "kfm runs show run-7",
        'href="/runs/run-7"',
        "docs/alerts.md#retry_storm",
    ):
        assert text in page
    assert "clock" not in page.partition("<section")[2]
    assert "kfm alerts ack 1" in page
    assert browser.post("/alerts/1/acknowledge", data={"reason": "mine"}).status_code == 403
    assert browser.post("/sign-in", data={"token": TOKEN}).status_code == 200
    # As on the command line, no change reference is needed, even in prod.
    pipeline.settings = pipeline.settings.model_copy(update={"env": Environment.PROD})
    assert "acknowledged</dt><dd>by anna" in browser.post("/alerts/1/acknowledge", data={"reason": "mine"}).text
    [alert, _] = AlertStore(pipeline.database, clock=pipeline.clock).listed()
    assert (alert.state, alert.acknowledged_by, alert.acknowledged_why) == (AlertState.ACKNOWLEDGED, "anna", "mine")
    assert [entry.actor for entry in own_tx(pipeline.ledger.log).entries()] == ["anna"]
    answers = [browser.post(f"/alerts/{number}/acknowledge", data={"reason": "mine"}) for number in (1, 9)]
    assert [answer.status_code for answer in answers] == [409, 404]


def test_alerts_are_listed_in_pages(browser: TestClient, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in AlertRule:
        open_alert(pipeline.database, rule, "x")
    assert [alert["rule"] for alert in in_pages(browser, "alerts", limit=3)] == [*AlertRule]
    monkeypatch.setattr("kfm_dagster.console.pages.PAGE", 5)
    first = browser.get("/alerts").text
    [following] = re.findall(r'href="([^"]*)" rel="next"', first)
    headings = [re.findall(r'<h2 id="alert-(\d+)"', text) for text in (first, browser.get(following).text)]
    assert headings == [["1", "2", "3", "4", "5"], ["6", "7", "8", "9"]]
    for wrong in ("rule=whim", "days=0", "after=x"):
        assert browser.get(f"/alerts?{wrong}").status_code == 400, wrong


@pytest.mark.one_database
def test_the_page_of_gaps_is_filtered_by_dataset_and_marks_an_incomplete_list(
    browser: TestClient, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = pipeline.clock()
    pace = {"silent_since": now - timedelta(minutes=20), "since": now - timedelta(minutes=40)}
    pipeline.gaps.look_at(
        [
            FeedWindow(dataset=dataset, product=dataset, groups={}, expected=8, least=4, **pace)
            for dataset in ("hrrr", "nexrad-l2")
        ],
        at=now,
    )

    def shown(query: str) -> tuple[list[str], bool]:
        page = browser.get(f"/gaps?{query}").text
        return re.findall('<a href="/datasets/([^"]*)">', page), "There are more" in page

    assert sorted(shown("")[0]) == ["hrrr", "nexrad-l2"]
    assert shown("dataset=hrrr") == (["hrrr"], False)
    monkeypatch.setattr("kfm_dagster.console.pages.MOST_ROWS", 1)
    assert "gaps.svg?dataset=hrrr&amp;days=14" in browser.get("/gaps?dataset=hrrr&days=300").text
    assert browser.get("/gaps?after=x").status_code == 400
    datasets, is_more = shown("")
    assert (len(datasets), is_more) == (1, True)
