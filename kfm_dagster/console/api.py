"""The JSON API below /api/v1: units, failures, gaps, datasets, status, and its OpenAPI document. Only reads.

Every answer is bounded, and every refusal is a problem document (RFC 9457). Belongs here: reading a request and
writing the answer. Does not belong here: what is answered (`answers.py`), what clients are said of it (`openapi.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from kfm_dagster.console import answers
from kfm_dagster.console.openapi import BASE, JSON, OPERATIONS, document
from kfm_dagster.errors import ContractError, DependencyUnavailableError, KfmError
from kfm_dagster.exports.unit_filter import BadFilterError
from kfm_dagster.ingest.pipeline import Pipeline

_STATUS: Sequence[tuple[type[KfmError], HTTPStatus]] = (
    (DependencyUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ContractError, HTTPStatus.NOT_FOUND),
    (answers.UnknownUnitError, HTTPStatus.NOT_FOUND),
    (BadFilterError, HTTPStatus.BAD_REQUEST),
)


def routes(pipeline: Pipeline) -> list[BaseRoute]:
    """Return the routes of the API over a pipeline."""

    def endpoint(path: str) -> Callable[[Request], Response]:
        def answered(request: Request) -> Response:
            found = _ANSWERS[path](pipeline, _given(request, path) | request.path_params)
            return Response(json.dumps(found), media_type=JSON)

        return answered

    api = Starlette(
        routes=[Route(path, endpoint(path), methods=["GET"]) for path in _ANSWERS],
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


_ANSWERS: Mapping[str, answers.Answer] = {
    "/units": answers.units,
    "/units/{wal_id}": answers.unit,
    "/failures": answers.failures,
    "/gaps": answers.gaps,
    "/datasets": answers.datasets,
    "/status": answers.status,
    "/openapi.json": lambda *_: document(),
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
