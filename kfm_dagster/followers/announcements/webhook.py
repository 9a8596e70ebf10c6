"""Web receivers: an event per request, by the structured mode of CloudEvents' HTTP binding.

Belongs here: the request, which follows no redirect, ends in bounded time, and reads a bounded part of the answer. Does
not belong here: handling of answers (`sending.py`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from pydantic import SecretStr
from pyreqwest.client import SyncClient, SyncClientBuilder
from pyreqwest.exceptions import PyreqwestError

from kfm_dagster.errors import ConfigurationError
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.sending import TAKEN, ReceiverAnswer, ReceiverUnavailableError, Reception
from kfm_dagster.settings import LOOPBACK_HOSTS

SECONDS = 10.0
"""Timeout of a whole request, from the connection to the answer's end."""
ANSWER_BYTES = 16 * 1024
"""Most bytes to read of an answer's body, so that the connection can be reused; the content is ignored."""
REFUSED = frozenset({400, 409, 413, 415, 422})
"""HTTP statuses by which a receiver refuses the event."""
FAILED = frozenset({408, 500, 502, 504})
"""HTTP statuses of a working receiver that failed on this event. Any other error has its cause in the sender, the
address or a temporary state, so the receiver counts as unavailable."""


class Webhook:
    """An HTTP receiver. `token` is sent as bearer token (CloudEvents' web hooks, 3.1)."""

    most = 1

    def __init__(self, url: str, *, token: SecretStr | None = None, seconds: float = SECONDS) -> None:
        self._url = url
        self._token = token
        self._seconds = seconds
        self._lock = threading.Lock()
        self._connected: tuple[int, SyncClient] | None = None

    def send(self, events: Sequence[OutgoingEvent]) -> Sequence[ReceiverAnswer]:
        """Send an event. Raises ReceiverUnavailableError."""
        [event] = events
        try:
            status = self._post(event)
        except (PyreqwestError, OSError) as error:
            # The error's text can contain the URL, and the URL can contain a credential.
            raise ReceiverUnavailableError(f"no answer ({type(error).__name__})") from None
        if 200 <= status < 300:
            return [TAKEN]
        if status in REFUSED:
            return [ReceiverAnswer(reception=Reception.REFUSED, error=f"HTTP {status}")]
        if status in FAILED:
            return [ReceiverAnswer(reception=Reception.FAILED, error=f"HTTP {status}")]
        redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
        raise ReceiverUnavailableError(f"HTTP {status}{redirect}")

    def ask(self) -> bool:
        """Check by HEAD, without a token, that a server answers. Raises ReceiverUnavailableError."""
        try:
            with self._client.head(self._url).build_streamed():
                return True  # for any status: a server that takes POST need not support HEAD
        except (PyreqwestError, OSError) as error:
            raise ReceiverUnavailableError(f"no answer ({type(error).__name__})") from None

    def _post(self, event: OutgoingEvent) -> int:
        request = self._client.post(self._url).header("Content-Type", event.content_type).body_bytes(event.body)
        if self._token is not None:
            request = request.bearer_auth(self._token.get_secret_value())
        with request.build_streamed() as answer:
            status = answer.status
            with suppress(PyreqwestError, OSError):  # only the status is needed
                answer.body_reader.read(ANSWER_BYTES)
            return status

    @property
    def _client(self) -> SyncClient:
        with self._lock:
            # A forked process needs its own connections.
            if self._connected is None or self._connected[0] != os.getpid():
                off = False
                builder = (
                    SyncClientBuilder()
                    .follow_redirects(off)
                    .connect_timeout(timedelta(seconds=min(5.0, self._seconds)))
                    .timeout(timedelta(seconds=self._seconds))
                )
                if urlsplit(self._url).hostname in LOOPBACK_HOSTS:
                    # A configured proxy cannot reach the loopback address of this machine.
                    builder = builder.no_proxy()
                self._connected = (os.getpid(), builder.build())
            return self._connected[1]


def tokens_of(text: SecretStr | None, names: Collection[str]) -> dict[str, SecretStr]:
    """Parse NAME=TOKEN of subscriptions, separated by blanks. Raises ConfigurationError."""
    tokens: dict[str, SecretStr] = {}
    for place, entry in enumerate(("" if text is None else text.get_secret_value()).split(), start=1):
        name, equals, token = entry.partition("=")
        if not equals or not token or name not in names:
            raise ConfigurationError(
                "environment variable KFM_WEBHOOK_TOKENS is wrong",
                observed=f"entry {place}" + (f", subscription {name}" if equals else ""),
                expected=f"NAME=TOKEN, separated by blanks; the subscriptions are {', '.join(names) or 'none'}",
                next_step="correct the entry, or name its subscription in announcements.yaml",
            )
        tokens[name] = SecretStr(token)
    return tokens
