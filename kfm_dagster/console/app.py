"""The console's web application: `GET /`, `/validate` and `/metrics`, and nothing that changes anything.

An answer is made for each request, from a database that refuses writes. Whatever a page might do but show itself
is forbidden by its headers. Belongs here: routes, headers, what a refusal looks like. Does not belong here: contents
(`exports/deployment_status.py`, `validation.py` and `metrics.py` beside it), or the server (`serving.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kfm_dagster.console import api
from kfm_dagster.console.asking import BadRequestError, Form, NotAcceptableError, asked_of, form_of
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.exports.deployment_status import deployment_status
from kfm_dagster.exports.metrics import NO_DEPTHS, exposition
from kfm_dagster.exports.status_page import status_page
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.exports.validation_page import STYLE, validation_page
from kfm_dagster.ingest.pipeline import Pipeline

FRONT = "/"
PATH = "/validate"
METRICS = "/metrics"
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS: Mapping[str, str] = {
    # The page has one style of its own, no script, no picture, no form, and nobody frames it.
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_DIGEST}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # It tells how things are now.
    "cache-control": "no-store",
    "vary": "accept",
}
_STATUS: Sequence[tuple[type[KfmError], int]] = (
    (BadRequestError, 400),
    (NotAcceptableError, 406),
    (DependencyUnavailableError, 503),
)


def console_app(
    pipeline: Pipeline, *, hosts: Sequence[str], depths: Callable[[], Mapping[str, int]] = lambda: NO_DEPTHS
) -> Starlette:
    """Return the application over a pipeline; it answers requests to these host names, "*" for any.

    `depths` tells how many messages are on each queue, and must not wait.
    """

    def front(request: Request) -> Response:
        form = form_of(request.query_params.multi_items(), accept=request.headers.get("accept", ""))
        found = deployment_status(pipeline)
        content = json.dumps(found.as_json()) if form is Form.JSON else status_page(found, links=(PATH, METRICS))
        return Response(content, media_type=form.media_type)

    def validate(request: Request) -> Response:
        asked = asked_of(request.query_params.multi_items(), accept=request.headers.get("accept", ""))
        report = validate_report(pipeline, since=pipeline.clock() - timedelta(days=asked.days))
        content = json.dumps(report) if asked.form is Form.JSON else validation_page(report)
        return Response(content, media_type=asked.form.media_type)

    def metrics(_: Request) -> Response:
        return Response(exposition(pipeline, depths()), headers={"content-type": CONTENT_TYPE_LATEST})

    application = Starlette(
        routes=[
            Route(FRONT, front, methods=["GET"]),
            Route(PATH, validate, methods=["GET"]),
            Route(METRICS, metrics, methods=["GET"]),
            *api.routes(pipeline),
        ],
        middleware=[
            Middleware(_Hardened),
            # A page of somebody else's whose name is made to lead here (DNS rebinding) reads nothing.
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers={
            KfmError: _refused,
            DBAPIError: _no_database,
            # The driver's errors are not the only ones: every connection may be in use for too long.
            NoConnectionFreeError: _no_database,
            HTTPException: _no_such,
        },
    )
    application.router.redirect_slashes = False
    return application


class _Hardened:
    """Puts HEADERS on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, hardened)


def _refused(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    return PlainTextResponse(f"{error}\n", status_code=status)


def _no_database(_: Request, error: Exception) -> Response:  # noqa: ARG001, what a driver says may name a user
    return PlainTextResponse("the database does not answer; next: see its log, then ask again\n", status_code=503)


def _no_such(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    text = f"{error.detail.lower()}; expected GET {FRONT}, {PATH} or {METRICS}\n"
    return PlainTextResponse(text, status_code=error.status_code, headers=error.headers)
