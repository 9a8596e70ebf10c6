"""The Dagster UI's web server: Dagster's command, guarded against pages of other sites.

Dagster's server has no login, and accepts a mutation from any page that is open in a user's browser. Run it as

    python -m kfm_dagster.defs.web_server -h 127.0.0.1 -p 3000 -w workspace.yaml

with the options of `dagster-webserver`. Does not belong here: the guard's general rules (`web_guard.py`);
starting the server (`deployment/local.py`, `deploy/`).
"""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from dagster_webserver import app
from dagster_webserver.cli import dagster_webserver
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware
from starlette.types import Scope
from typing_extensions import override

from kfm_dagster.errors import KfmError
from kfm_dagster.settings import Settings
from kfm_dagster.web_guard import Refusal, WebGuard, host_names

main = dagster_webserver
"""Dagster's command, under the name that the commands of our modules have."""


class DagsterGuard(WebGuard):
    """The guard, which also refuses GraphQL by GET, because any link could send it."""

    @override
    def refusal(self, scope: Scope) -> Refusal | None:
        refused = super().refusal(scope)
        # Searched in the whole path: a route also matches a path that ends in a line feed or begins with a prefix.
        if refused is None and "/graphql" in scope["path"] and b"query" in parse_qs(scope["query_string"]):
            return HTTPStatus.METHOD_NOT_ALLOWED, "send GraphQL by POST, as application/json"
        return refused


class GuardedWebserver(DagsterWebserver[Any, Any]):
    """Dagster's web server behind the guard; no other page may show it in a frame."""

    @override
    def build_middleware(self) -> list[Middleware]:
        hosts = host_names(Settings.load())
        return [Middleware(DagsterGuard, hosts=hosts, changes_by="application/json"), *super().build_middleware()]

    @override
    def make_security_headers(self) -> dict[str, str]:
        return {**super().make_security_headers(), "X-Frame-Options": "DENY"}


if __name__ == "__main__":
    try:
        Settings.load()
    except KfmError as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    app.DagsterWebserver = GuardedWebserver  # type: ignore[attr-defined]
    main(auto_envvar_prefix="DAGSTER_WEBSERVER")
