"""Serve an application on a real socket as `kfm console` does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from kfm_dagster.console.bounds import BoundedConnection


@contextmanager
def served(application: ASGIApp) -> Iterator[int]:
    """Serve an application on a free local port, and yield the port."""
    config = uvicorn.Config(application, port=0, log_level="critical", lifespan="off", http=BoundedConnection)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
