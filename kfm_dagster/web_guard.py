"""Guard a web server: refuse requests that other sites' pages make through a browser.

Browsers state in headers for which host a request is (Host), and which page sends the request (Origin, Sec-Fetch-Site).
Belongs here: refusals by these headers, for the console and for the Dagster UI. Does not belong here: the visitor's
identity (`console/session.py`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from kfm_dagster.settings import Settings

READS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, 9.2.1)."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:@/\[\]]+)(:[0-9]{1,5})?")
_OWN_SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for a request by a page of this server, and for a request by a person who typed or chose the
address (Fetch Metadata, 2.4)."""

Refusal = tuple[HTTPStatus, str]


def host_names(settings: Settings) -> frozenset[str]:
    """Return the host names of console and Dagster UI, besides localhost and IP addresses."""
    urls = (settings.dagster_url, settings.console_url)
    return frozenset(settings.allowed_hosts.lower().split()) | {urlsplit(url).hostname or "" for url in urls if url}


class WebGuard:
    """ASGI middleware for HTTP and WebSocket.

    `changes_by` is the media type that HTTP requests with other methods than READS must have; None: any.
    """

    def __init__(self, app: ASGIApp, *, hosts: Iterable[str], changes_by: str | None = None) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._changes_by = changes_by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it in a single line."""
        refused = self.refusal(scope) if scope["type"] in {"http", "websocket"} else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        status, line = refused
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": line})  # RFC 6455, 7.4.1
            return
        await PlainTextResponse(f"{line}\n", status_code=status)(scope, receive, send)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return the status and reason for refusing a request, or None."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0].lower()):
            return HTTPStatus.BAD_REQUEST, "the host is unknown here; next: name it in KFM_ALLOWED_HOSTS"
        own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        site = headers.get("sec-fetch-site", "none")
        if not {origin.lower() for origin in headers.getlist("origin")} <= own or not (
            site in _OWN_SITES or _follows_a_link(scope, headers)
        ):
            return HTTPStatus.FORBIDDEN, "the request comes from a page of another site"
        if scope["type"] == "http" and scope["method"] not in READS and self._changes_by:
            media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
            if media_type != self._changes_by:
                return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a request that changes state must be {self._changes_by}"
        return None

    def _is_own_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = match[1].strip("[]") if match else ""
        return name == "localhost" or name in self._hosts or _is_address(name)


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address, which DNS rebinding cannot redirect."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _follows_a_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a person follows a link of another site, outside of any frame."""
    return (
        scope["type"] == "http"
        and scope["method"] in READS
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )
