"""The JSON API below /api/v1 over HTTP. Only reads.

Each answer is bounded, and each refusal is a problem document (RFC 9457). Belongs here: reading a request and
writing the answer. Does not belong here: the answers and their OpenAPI document (`operations.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from kfm_dagster.console.operations import JSON, PATHS
from kfm_dagster.console.requests import REFUSALS, given, refusal
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.views.view import BASE


def routes(pipeline: Pipeline) -> list[BaseRoute]:
    """Return the routes of the API over a pipeline."""

    def endpoint(path: str) -> Callable[[Request], Response]:
        known = [name for name in PATHS[path].parameters if f"{{{name}}}" not in path]

        def answered(request: Request) -> Response:
            values = given(request.query_params.multi_items(), known=known)
            values = {name: value for name, value in values.items() if value}
            answer = PATHS[path].answer(pipeline, values | request.path_params)
            return Response(json.dumps(answer), media_type=JSON)

        return answered

    api = Starlette(
        routes=[Route(path, endpoint(path), methods=["GET"]) for path in PATHS],
        exception_handlers={**dict.fromkeys(REFUSALS, _refused), HTTPException: _no_such},
    )
    api.router.redirect_slashes = False
    mount = Mount(BASE, app=api)
    # Starlette's own pattern ends at a line break, so that such a path would get the console's answer.
    mount.path_regex = re.compile(rf"^{BASE}/(?P<path>.*)$", re.DOTALL)
    return [mount]


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
    return _problem(request, *refusal(error))


def _no_such(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _problem(
        request, error.status_code, f"{error.detail}; {BASE}/openapi.json says what there is", error.headers
    )
