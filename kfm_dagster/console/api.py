"""The JSON API below /api/v1: units, failures, gaps, datasets, status, and its OpenAPI document. Only reads.

Every answer is bounded, and every refusal is a problem document (RFC 9457). Belongs here: reading a request and
answering it. Does not belong here: what is said of it to clients (`openapi.py`), finding (`exports/`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from kfm_dagster.console.openapi import BASE, MOST_DAYS, MOST_GAPS, OPERATIONS, document
from kfm_dagster.errors import ContractError, DependencyUnavailableError, KfmError
from kfm_dagster.exports.deployment_status import GAPS_SINCE, deployment_status
from kfm_dagster.exports.explanations.unit_history import unit_history
from kfm_dagster.exports.json_rows import json_row
from kfm_dagster.exports.unit_filter import BadFilterError, UnitFilter
from kfm_dagster.exports.unit_search import MOST_OF_A_PAGE, PAGE, failure_groups, search_units
from kfm_dagster.ingest.pipeline import Pipeline

Answer = Callable[[Pipeline, Request], Any]
_STATUS: Sequence[tuple[type[KfmError], HTTPStatus]] = (
    (DependencyUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ContractError, HTTPStatus.NOT_FOUND),
    (BadFilterError, HTTPStatus.BAD_REQUEST),
)


def routes(pipeline: Pipeline) -> list[BaseRoute]:
    """Return the routes of the API over a pipeline."""

    def endpoint(answer: Answer) -> Callable[[Request], Response]:
        def answered(request: Request) -> Response:
            return Response(json.dumps(answer(pipeline, request)), media_type="application/json")

        return answered

    api = Starlette(
        routes=[Route(path, endpoint(answer), methods=["GET"]) for path, answer in _ANSWERS.items()],
        exception_handlers={
            KfmError: _refused,
            DBAPIError: _no_database,
            NoConnectionFreeError: _no_database,
            HTTPException: _no_such,
        },
    )
    api.router.redirect_slashes = False
    mount = Mount(BASE, app=api)
    # Starlette's own pattern ends at a line break, and such a path would get the console's answer.
    mount.path_regex = re.compile(rf"^{BASE}/(?P<path>.*)$", re.DOTALL)
    return [mount]


def _units(pipeline: Pipeline, request: Request) -> Any:
    given = _given(request, "/units")
    limit = _number(given.pop("limit", str(PAGE)), "limit", most=MOST_OF_A_PAGE)
    after = given.pop("after", None)
    wanted = UnitFilter.of_query(list(given.items()))
    page = search_units(pipeline, wanted, after=after, limit=limit)
    query = [*wanted.query(), ("limit", str(limit)), ("after", page.after or "")]
    return {
        "units": [json_row(row) for row in page.rows],
        "next": f"{BASE}/units?{urlencode(query)}" if page.after else None,
    }


def _unit(pipeline: Pipeline, request: Request) -> Any:
    _given(request, "/units/{wal_id}")
    record = pipeline.ledger.get(request.path_params["wal_id"])
    if record is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "there is no such unit; next: search at /api/v1/units")
    return record.model_dump(mode="json") | unit_history(pipeline, record)


def _failures(pipeline: Pipeline, request: Request) -> Any:
    wanted = UnitFilter.of_query(list(_given(request, "/failures").items()))
    groups = failure_groups(pipeline, dataset=wanted.dataset, since=wanted.since)
    return {"failures": [json_row(group) for group in groups]}


def _gaps(pipeline: Pipeline, request: Request) -> Any:
    given = _given(request, "/gaps")
    days = _number(given.get("days", str(GAPS_SINCE.days)), "days", most=MOST_DAYS)
    closed = given.get("closed", "false")
    if closed not in {"true", "false"}:
        raise BadFilterError(observed=f"closed={closed[:80]!r}", expected="true or false")
    dataset = given.get("dataset")
    found = pipeline.gaps.list(
        since=pipeline.clock() - timedelta(days=days),
        dataset=None if dataset is None else pipeline.registry[dataset].id,
        closed=closed == "true",
        limit=MOST_GAPS + 1,
    )
    return {"gaps": [json_row(gap) for gap in found[:MOST_GAPS]], "complete": len(found) <= MOST_GAPS}


def _datasets(pipeline: Pipeline, request: Request) -> Any:
    _given(request, "/datasets")
    off = pipeline.ledger.switches.engaged()
    return {
        "datasets": [
            {
                "id": contract.id,
                "title": contract.metadata.title,
                "collection": contract.stac.collection,
                "switched_off": not off.keys().isdisjoint({contract.id, "*"}),
            }
            for contract in pipeline.registry
        ]
    }


def _status(pipeline: Pipeline, request: Request) -> Any:
    _given(request, "/status")
    return deployment_status(pipeline).as_json()


def _openapi(_: Pipeline, request: Request) -> Any:
    _given(request, "/openapi.json")
    return document()


_ANSWERS: Mapping[str, Answer] = {
    "/units": _units,
    "/units/{wal_id}": _unit,
    "/failures": _failures,
    "/gaps": _gaps,
    "/datasets": _datasets,
    "/status": _status,
    "/openapi.json": _openapi,
}


def _given(request: Request, path: str) -> dict[str, str]:
    """Return the parameters with a value. Raises BadFilterError for one that is unknown, or given twice."""
    known = [parameter["name"] for parameter in OPERATIONS[path].parameters if parameter["in"] == "query"]
    pairs = request.query_params.multi_items()
    names = {name for name, _ in pairs}
    if unknown := sorted(names - set(known)):
        raise BadFilterError(observed=repr(unknown[0][:40]), expected=", ".join(known) or "no parameter")
    if len(names) < len(pairs):
        raise BadFilterError(observed="a parameter twice", expected="each once at most")
    return {name: value for name, value in pairs if value}


def _number(text: str, name: str, *, most: int) -> int:
    # No more digits than a number may have: Python reads any script's, and thousands of them.
    if not re.fullmatch(r"[0-9]{1,4}", text) or not 1 <= int(text) <= most:
        raise BadFilterError(observed=f"{name}={text[:40]!r}", expected=f"a whole number from 1 to {most}")
    return int(text)


def _problem(request: Request, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
    }
    return Response(json.dumps(content), status, headers, media_type="application/problem+json")


def _refused(request: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    return _problem(request, status, str(error))


def _no_database(request: Request, _: Exception) -> Response:  # what a driver says may name a user
    return _problem(
        request, HTTPStatus.SERVICE_UNAVAILABLE, "the database does not answer; next: see its log, then ask again"
    )


def _no_such(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _problem(
        request, error.status_code, f"{error.detail}; {BASE}/openapi.json says what there is", error.headers
    )
