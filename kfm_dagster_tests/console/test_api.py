"""The JSON API: it answers as its document says, to requests drawn from that, too; refusals are problem documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from kfm_dagster.console.app import console_app
from kfm_dagster.console.operations import PATHS, document
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.views.view import BASE
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.ledger.bench import DAY, make_bench

pytestmark = pytest.mark.one_database

EXAMPLES = 25
"""Requests that are drawn for each operation."""


@pytest.fixture
def api(database: Database, contracts: ContractRegistry, tmp_path: Path) -> Iterator[TestClient]:
    """The console over a ledger of five units."""
    bench = make_bench(database, contracts)
    bench.ledger.ensure([envelope(number) for number in range(5)])
    claimed = bench.ledger.claim(dataset="nexrad-l2", partition=DAY, run_id="run-1", limit=4)
    bench.ledger.settle([finished(claimed[0]), *map(failed, claimed[1:3])], run_id="run-1")
    pipeline = Pipeline(
        settings=Settings(home=tmp_path, geoparquet=False), registry=contracts, database=database, clock=bench.clock
    )
    with TestClient(console_app(pipeline, hosts=["testserver"]), base_url="http://localhost") as client:
        yield client


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
    """Follow the links of a list from page to page, none with more rows than the limit; return all rows."""
    seen: list[dict[str, Any]] = []
    link: str | None = f"{BASE}/{rows}?limit={limit}{also}"
    while link:
        page = client.get(link).json()
        assert len(page[rows]) <= limit
        seen += page[rows]
        link = page["next"]
    return seen


def test_pages_follow_each_other_by_their_links(api: TestClient) -> None:
    seen = [unit["wal_id"] for unit in in_pages(api, "units", limit=2, also="&dataset=nexrad-l2")]
    assert len(seen) == len(set(seen)) == 5
    [unit] = api.get(f"{BASE}/units", params={"status": "succeeded"}).json()["units"]
    assert unit["event_time"].endswith("Z")
    whole = api.get(f"{BASE}/units/{unit['wal_id']}").json()
    assert [change["to_status"] for change in whole["history"]] == ["pending", "in_progress", "succeeded"]


def test_the_rest_says_what_is_recorded(api: TestClient) -> None:
    [group] = api.get(f"{BASE}/failures", params={"dataset": "nexrad-l2"}).json()["failures"]
    assert (group["code"], group["operator"], group["units"]) == ("missing_object", "integrity_check", 2)
    page = api.get("/failures", headers={"accept": "text/html"}).text
    assert re.search(r'<a href="/units\?[^"]*code=missing_object[^"]*">missing_object</a>', page)
    assert api.get(f"{BASE}/gaps", params={"days": "9", "closed": "true"}).json() == {"gaps": [], "complete": True}
    datasets = {one["id"]: one for one in api.get(f"{BASE}/datasets").json()["datasets"]}
    assert datasets["nexrad-l2"]["switched_off"] is False
    status = api.get(f"{BASE}/status").json()
    assert status["units"]["nexrad-l2"]["failed"] == 2


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


def test_a_database_that_is_gone_is_a_problem_document(
    api: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("s3cr3t"))

    monkeypatch.setattr(Database, "snapshot", gone)
    answer = api.get(f"{BASE}/units")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert "s3cr3t" not in answer.text


@pytest.mark.parametrize("kind", ["POSITIVE", "NEGATIVE"])
def test_whatever_is_asked_the_answer_is_as_published(api: TestClient, kind: str) -> None:
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
    # Nothing can be wrong with a request that has no parameter.
    asked = [path for path in PATHS if PATHS[path].parameters or kind == "POSITIVE"]
    for path in asked:

        @settings(max_examples=EXAMPLES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=schema[path]["GET"].as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            case.validate_response(case.call(), checks=every)

        ask()
