"""The console's web application: pages, JSON API, Prometheus metrics and health.

Each request is answered from a database that refuses writes; only the decision of a signed-in person uses a connection
that accepts writes. Headers allow a page only its own styles, pictures and forms. Belongs here: the common parts of all
answers, and the form of a refusal. Does not belong here: pages (the modules that return routes), the API's answers and
their OpenAPI document (`operations.py`), or the server (`serving.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfm_dagster.console import decisions, overview, records
from kfm_dagster.console.bounds import BoundedRequests
from kfm_dagster.console.operations import JSON, PATHS
from kfm_dagster.console.pages import STATIC, Pages, query_of, static
from kfm_dagster.console.requests import REFUSALS, is_page, parameters_by_name, refusal, whole_number
from kfm_dagster.console.session import Sessions
from kfm_dagster.exports.metrics import NO_DEPTHS, exposition
from kfm_dagster.exports.validation import DAYS, MOST_DAYS, report_tables, validate_report
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.views.view import BASE
from kfm_dagster.web_guard import WebGuard

PATH = "/validate"
METRICS = "/metrics"
HEALTH = "/healthz"
HEADERS: Mapping[str, str] = {
    # A page has styles, pictures and forms of this server, no script, and no frame around it.
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not stored, because pages show the current state.
    "cache-control": "no-store",
    "vary": "accept",
}


def console_app(
    pipeline: Pipeline,
    *,
    hosts: Iterable[str] = (),
    depths: Callable[[], Mapping[str, int]] = lambda: NO_DEPTHS,
    deciding: Pipeline | None = None,
) -> Starlette:
    """Return the application; `hosts` are its host names besides localhost and IP addresses.

    Decisions use `deciding`; without it the console only reads. Raises ConfigurationError for wrong tokens.

    `depths` returns the number of messages on each queue, and must not wait.
    """
    sessions = Sessions.of(pipeline.settings.console_tokens if deciding else None)
    pages = Pages(pipeline=pipeline, sessions=sessions, deciding=deciding)

    def validate(request: Request) -> Response:
        values = query_of(request, "days", "format")
        days = whole_number("days", values.get("days", str(DAYS)), most=MOST_DAYS)
        as_page = is_page(values, request.headers.get("accept", ""))
        report = validate_report(pipeline, since=pipeline.clock() - timedelta(days=days))
        if not as_page:
            return Response(json.dumps(report), media_type=JSON)
        return pages.page(request, "validation.html", report=report, tables=report_tables(report), days=days)

    def metrics(_: Request) -> Response:
        return Response(exposition(pipeline, depths()), headers={"content-type": CONTENT_TYPE_LATEST})

    def health(_: Request) -> Response:
        pipeline.database.schema()
        return PlainTextResponse("ok\n")

    def refused(request: Request, error: Exception) -> Response:
        """Answer with a line; a browser gets the line on a page with the navigation."""
        hint = f"the pages of the console are linked from {overview.FRONT}"
        status, line, headers = _refusal(error, hint=hint)
        if is_page({}, request.headers.get("accept", "")):
            answer = pages.page(request, "error.html", status=status, heading=HTTPStatus(status).phrase, line=line)
            answer.headers.update(headers or {})
            return answer
        return PlainTextResponse(f"{line}\n", status_code=status, headers=headers)

    application = Starlette(
        routes=[
            *overview.routes(pages, depths),
            *records.routes(pages, depths),
            *decisions.routes(pages),
            Route(PATH, validate, methods=["GET"]),
            Route(METRICS, metrics, methods=["GET"]),
            Route(HEALTH, health, methods=["GET"]),
            *(Route(f"/static/{name}", static, methods=["GET"]) for name in STATIC),
            _api(pipeline),
        ],
        middleware=[
            Middleware(_hardened),
            Middleware(BoundedRequests, exempt=(HEALTH,)),
            Middleware(WebGuard, hosts=hosts),
        ],
        exception_handlers=dict.fromkeys((*REFUSALS, HTTPException), refused),
    )
    application.router.redirect_slashes = False
    return application


def _hardened(app: ASGIApp) -> ASGIApp:
    """Add HEADERS to every answer."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, with_headers)

    return answered


def _refusal(error: Exception, *, hint: str) -> tuple[int, str, Mapping[str, str] | None]:
    """Return status, line and headers; `hint` is added to Starlette's generic line for a status."""
    if isinstance(error, HTTPException):
        is_default = error.detail in {phrase.phrase for phrase in HTTPStatus}
        return error.status_code, f"{error.detail.lower()}; {hint}" if is_default else error.detail, error.headers
    return *refusal(error), None


def _api(pipeline: Pipeline) -> Mount:
    """Return the JSON API below /api/v1; each refusal is a problem document (RFC 9457)."""

    def endpoint(path: str) -> Callable[[Request], Response]:
        query_names = [name for name in PATHS[path].parameters if f"{{{name}}}" not in path]

        def answered(request: Request) -> Response:
            values = parameters_by_name(request.query_params.multi_items(), known=query_names)
            values = {name: value for name, value in values.items() if value}
            answer = PATHS[path].answer(pipeline, values | request.path_params)
            return Response(json.dumps(answer), media_type=JSON)

        return answered

    api = Starlette(
        routes=[Route(path, endpoint(path), methods=["GET"]) for path in PATHS],
        exception_handlers=dict.fromkeys((*REFUSALS, HTTPException), _problem),
    )
    api.router.redirect_slashes = False
    mount = Mount(BASE, app=api)
    # By Starlette's own pattern, a path with a line break would get the console's answer instead of the API's.
    mount.path_regex = re.compile(rf"^{BASE}/(?P<path>.*)$", re.DOTALL)
    return mount


def _problem(request: Request, error: Exception) -> Response:
    status, detail, headers = _refusal(error, hint=f"{BASE}/openapi.json lists the paths")
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": request.url.path,
    }
    return Response(json.dumps(content), status, headers, media_type="application/problem+json")
