"""Sessions: sign-in with a token of KFM_CONSOLE_TOKENS; the signed cookie is valid for 8 h.

The governance log records the token's name. If another site sends a request, the browser leaves out the cookie
(SameSite=Strict). Does not belong here: decisions (`decisions.py`), refusing forms of other sites (`web_guard.py`).
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
"""Least characters of a token; 16 random characters of base64 have 96 bits."""
MOST_ATTEMPTS, ATTEMPT_SECONDS = 5, 60.0
"""Failed sign-ins allowed from an address in ATTEMPT_SECONDS; behind a proxy, all users share the proxy's address."""
MOST_ADDRESSES = 1024
"""Addresses whose attempts are kept; if there are more, the one without attempts for the longest time is dropped."""
_NAME = re.compile(r"[\w.@-]{1,80}", re.ASCII)


class SignInAttempts:
    """Sign-ins by address. An attempt counts before its check, so parallel attempts are bounded."""

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
        """Forget the attempts of an address after a success."""
        with self._lock:
            self._of.pop(address, None)


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Signs people in. `tokens` are by the person's name; without tokens, sign-in is disabled."""

    tokens: Mapping[str, SecretStr]
    attempts: SignInAttempts = field(default_factory=SignInAttempts)

    @classmethod
    def of(cls, tokens: SecretStr | None) -> Sessions:
        """Read NAME=TOKEN, separated by blanks. Raises ConfigurationError that shows no token."""
        owned: dict[str, SecretStr] = {}
        for part in (tokens.get_secret_value() if tokens else "").split():
            name, _, token = part.partition("=")
            is_duplicate = name in owned or token in {secret.get_secret_value() for secret in owned.values()}
            if not _NAME.fullmatch(name) or len(token) < SHORTEST_TOKEN or is_duplicate:
                raise ConfigurationError(
                    "environment variable KFM_CONSOLE_TOKENS is wrong",
                    observed="a value that is not shown",
                    expected=f"NAME=TOKEN, separated by blanks, each once, {SHORTEST_TOKEN} characters or more",
                    next_step="correct or unset KFM_CONSOLE_TOKENS",
                )
            owned[name] = SecretStr(token)
        return cls(tokens=owned)

    def actor_of(self, request: Request) -> str | None:
        """Return the name of the signed-in person, or None."""
        name, _, rest = request.cookies.get(COOKIE, "").partition("|")
        until, _, signature = rest.partition("|")
        if name not in self.tokens or not hmac.compare_digest(
            signature.encode(), self._signature(name, until).encode()
        ):
            return None
        # The signature is right, so `until` is a number.
        return name if int(until) > time.time() else None

    def sign_in(self, token: str, request: Request, response: Response) -> str | None:
        """Sign in the token's owner and return the name; None for an unknown token.

        Logs success or refusal. If too many attempts have failed, it raises HTTPException and logs nothing.
        """
        address = request.client.host if request.client else "an unknown address"
        self.attempts.take(address)
        digest = hashlib.sha256(token.encode()).digest()
        actor = None
        for name, secret in self.tokens.items():
            # Compare all tokens, as digests of equal length, so that timing reveals nothing.
            if hmac.compare_digest(digest, hashlib.sha256(secret.get_secret_value().encode()).digest()):
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
        """Sign out by deleting the cookie."""
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    def _signature(self, name: str, until: str) -> str:
        # Keyed by the person's token and this process: a new token or a restart ends the session.
        key = _PROCESS_KEY + self.tokens[name].get_secret_value().encode()
        return hmac.new(key, f"{name}|{until}".encode(), "sha256").hexdigest()


def _is_over_tls(request: Request) -> bool:
    """Return whether a browser uses TLS, to this server or to a proxy in front of it.

    The browser's Origin or the proxy's header shows this. A client that forges one of these headers harms only itself:
    its cookie is then sent over TLS only.
    """
    proxy = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in {request.url.scheme, urlsplit(request.headers.get("origin", "")).scheme, proxy}


def came_from(request: Request) -> str:
    """Return this server's page that led to the sign-in, by its Referer, or the front page."""
    page = urlsplit(request.headers.get("referer", ""))
    is_own = page.netloc == request.headers.get("host") and page.path != request.url.path
    return own_path(f"{page.path}?{page.query}" if page.query else page.path) if is_own else "/"


def own_path(path: str) -> str:
    """Return a path of this server, or the front page for a text that could lead elsewhere."""
    # A browser reads two slashes or backslashes as the start of another host.
    return path if re.fullmatch(r"/(?![/\\])[!-\[\]-~]*", path) else "/"


_PROCESS_KEY = secrets.token_bytes(32)
