"""Serve the console on an address until a signal, and send metrics to a collector, if set.

Does not belong here: the answers (`app.py`).
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import uvicorn
from botocore.exceptions import BotoCoreError

from kfm_dagster.console.app import console_app
from kfm_dagster.console.bounds import BoundedConnection
from kfm_dagster.console.overview import FRONT
from kfm_dagster.errors import ConfigurationError, KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.redaction import error_text
from kfm_dagster.telemetry.traces import exports
from kfm_dagster.web_guard import host_names

EVERY_SECONDS = 15.0
"""Prometheus's usual interval; each poll is a request to each queue."""
FRESH_SECONDS = 60.0
"""An older answer of a queue is not reported."""

_LOG = logging.getLogger(__name__)


class QueueWatch:
    """Polls the depths of the primary queue and the dead-letter queue."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._depths: dict[str, tuple[float, int]] = {}

    def depths(self) -> Mapping[str, int]:
        """Return the number of messages by queue, for queues that answered within FRESH_SECONDS."""
        since = time.monotonic() - FRESH_SECONDS
        return {queue: messages for queue, (at, messages) in list(self._depths.items()) if at >= since}

    def look(self) -> None:
        """Poll the numbers of visible messages and of dead letters, also hidden dead letters."""
        settings = self._pipeline.settings
        # The lambdas connect to the queues, because a failure to connect is handled like a failed request.
        self._ask(settings.sqs_primary_queue, lambda: self._pipeline.queue.depth().visible)
        self._ask(settings.sqs_dlq_queue, lambda: self._pipeline.dead_letters.depth().total)

    def watching(self) -> AbstractContextManager[None]:
        """Poll now and every EVERY_SECONDS; at the end, wait up to SHUTDOWN_SECONDS for the thread."""
        # A thread that outlives the interpreter keeps DuckDB's objects, and DuckDB's extension reports these as leaked.
        return self._pipeline.threads.repeating(
            self.look, seconds=EVERY_SECONDS, name="queue-watch", at_once=True, patience=SHUTDOWN_SECONDS
        )

    def _ask(self, queue: str, ask: Callable[[], int]) -> None:
        try:
            self._depths[queue] = (time.monotonic(), ask())
        except (KfmError, BotoCoreError) as error:
            _LOG.info("the depth of %s is not known: %s", queue, error_text(error))


SHUTDOWN_SECONDS = 5
"""Seconds after the signal until an answer under way must have finished."""


def serve(
    pipeline: Pipeline, *, host: str, port: int, ready: Callable[[str], None], deciding: Pipeline | None = None
) -> None:
    """Serve until SIGINT or SIGTERM, then raise the signal again; `ready` receives the address.

    `pipeline` only reads; decisions use `deciding` (None without tokens). Raises ConfigurationError if the address
    cannot be bound.
    """
    with _listening(host, port) as listening:
        watch = QueueWatch(pipeline)
        hosts = {host.lower(), *host_names(pipeline.settings)}
        app = console_app(pipeline, hosts=hosts, depths=watch.depths, deciding=deciding)
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=BoundedConnection,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        name = f"[{host}]" if ":" in host else host
        with watch.watching(), _pushing(pipeline, watch):
            ready(f"http://{name}:{port}{FRONT}")
            uvicorn.Server(config).run(sockets=[listening])


def _pushing(pipeline: Pipeline, watch: QueueWatch) -> AbstractContextManager[None]:
    if not exports("metrics", os.environ):
        return nullcontext()
    from kfm_dagster.exports.otlp_metrics import pushing  # noqa: PLC0415, an extra that few have installed

    return pushing(pipeline, watch.depths)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            "the address cannot be served",
            observed=f"{host} port {port}: {error.strerror}",
            expected="an address of this machine and a port that is free",
            next_step="kfm console with another --host or --port",
        ) from None
