"""Who decides: a person signs in with a token of KFM_CONSOLE_TOKENS, and a signed cookie says so for some hours.

The governance log has the name that the token belongs to. The cookie goes along with no request of another site
(SameSite=Strict). Does not belong here: what is decided (`actions.py`), refusing forms of other sites (`web_guard.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kfm_dagster.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

COOKIE = "kfm_console"
SESSION_SECONDS = 8 * 3600
"""A working day."""
SHORTEST_TOKEN = 16
"""Characters; 16 random ones of base64 have 96 bits."""
MOST_ATTEMPTS, ATTEMPT_SECONDS = 5, 60.0
"""Sign-ins that may fail from one address in so long a time; behind a proxy its address is everybody's."""
MOST_ADDRESSES = 1024
"""Addresses of which failures are known; the one that failed first is forgotten."""
_NAME = re.compile(r"[\w.@-]{1,80}", re.ASCII)


class SignInAttempts:
    """Sign-ins by address. An attempt counts before it is looked at, so that many at once are not more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, list[float]] = {}

    def take(self, address: str) -> None:
        """Count an attempt. Raises HTTPException beyond MOST_ATTEMPTS."""
        now = time.monotonic()
        with self._lock:
            recent = [at for at in self._of.pop(address, []) if at > now - ATTEMPT_SECONDS]
            self._of[address] = recent
            if len(recent) >= MOST_ATTEMPTS:
                raise HTTPException(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    "too many sign-ins have failed; next: try again in a minute",
                    headers={"retry-after": str(int(ATTEMPT_SECONDS))},
                )
            recent.append(now)
            if len(self._of) > MOST_ADDRESSES:
                del self._of[next(iter(self._of))]

    def forget(self, address: str) -> None:
        """Forget the attempts of an address, one of which has come through."""
        with self._lock:
            self._of.pop(address, None)


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Signs people in. `tokens` are theirs by name; nobody can sign in where there are none."""

    tokens: Mapping[str, SecretStr]
    attempts: SignInAttempts = field(default_factory=SignInAttempts)

    @classmethod
    def of(cls, tokens: SecretStr | None) -> Sessions:
        """Read NAME=TOKEN, separated by blanks. Raises ConfigurationError, which shows no token."""
        found: dict[str, SecretStr] = {}
        for part in (tokens.get_secret_value() if tokens else "").split():
            name, _, token = part.partition("=")
            taken = name in found or token in {one.get_secret_value() for one in found.values()}
            if not _NAME.fullmatch(name) or len(token) < SHORTEST_TOKEN or taken:
                raise ConfigurationError(
                    "environment variable KFM_CONSOLE_TOKENS is wrong",
                    observed="a value that is not shown",
                    expected=f"NAME=TOKEN, separated by blanks, each once, {SHORTEST_TOKEN} characters or more",
                    next_step="correct or unset KFM_CONSOLE_TOKENS",
                )
            found[name] = SecretStr(token)
        return cls(tokens=found)

    def actor_of(self, request: Request) -> str | None:
        """Return who is signed in, or None."""
        name, _, rest = request.cookies.get(COOKIE, "").partition("|")
        until, _, signature = rest.partition("|")
        if name not in self.tokens or not hmac.compare_digest(
            signature.encode(), self._signature(name, until).encode()
        ):
            return None
        # Signed, so a number.
        return name if int(until) > time.time() else None

    def sign_in(self, token: str, request: Request, response: Response) -> str | None:
        """Sign in whom a token belongs to, and return the name; None for a token of nobody.

        Each attempt is logged. Raises HTTPException where too many have failed.
        """
        address = request.client.host if request.client else "an unknown address"
        self.attempts.take(address)
        given = hashlib.sha256(token.encode()).digest()
        actor = None
        for name, own in self.tokens.items():
            # Each is compared, and digests are of one length: time betrays nothing.
            if hmac.compare_digest(given, hashlib.sha256(own.get_secret_value().encode()).digest()):
                actor = name
        if actor is None:
            _LOG.warning("a sign-in from %s is refused: no such token", address)
        else:
            self.attempts.forget(address)
            _LOG.info("%s has signed in from %s", actor, address)
            until = str(int(time.time()) + SESSION_SECONDS)
            response.set_cookie(
                COOKIE,
                f"{actor}|{until}|{self._signature(actor, until)}",
                max_age=SESSION_SECONDS,
                httponly=True,
                samesite="strict",
                secure=_is_over_tls(request),
            )
        return actor

    def sign_out(self, response: Response) -> None:
        """Forget who is signed in."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def _signature(self, name: str, until: str) -> str:
        # Of the person's own token and this process: another token, or another start, ends the session.
        key = _PROCESS_KEY + self.tokens[name].get_secret_value().encode()
        return hmac.new(key, f"{name}|{until}".encode(), "sha256").hexdigest()


def _is_over_tls(request: Request) -> bool:
    """Tell whether a browser speaks TLS, to this server or to a proxy before it.

    The browser's own Origin says it, or the proxy. Who makes either up has a cookie that is sent less often.
    """
    proxy = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in {request.url.scheme, urlsplit(request.headers.get("origin", "")).scheme, proxy}


def came_from(request: Request) -> str:
    """Return the page of this server on which somebody chose to sign in, as a browser states it, or the front page."""
    page = urlsplit(request.headers.get("referer", ""))
    is_own = page.netloc == request.headers.get("host") and page.path != request.url.path
    return own_path(f"{page.path}?{page.query}" if page.query else page.path) if is_own else "/"


def own_path(path: str) -> str:
    """Return a path of this server as it is, and the front page for anything that could lead elsewhere."""
    # A browser takes two slashes, or a backslash for one, as the beginning of another host.
    return path if re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", path) else "/"


_PROCESS_KEY = secrets.token_bytes(32)
