"""A temporary STAC API (stac-fastapi-pgstac) on a loopback port, as in deploy/stac-api.

Belongs here: its start, its environment and its stop. Does not belong here: the requests to it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy.engine import make_url

from kfm_dagster.deployment.local import free_port

COMPOSE = Path(__file__).resolve().parents[1] / "deploy" / "stac-api" / "compose.yaml"
START_SECONDS = 60.0


def service(name: str) -> dict[str, Any]:
    """Return a service of the compose file."""
    definition: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"][name]
    return definition


@contextmanager
def stac_api_server(database: str) -> Iterator[str]:
    """Serve a database's Items, with the settings of the compose file; yield the API's URL."""
    url, port = make_url(database), free_port()
    place = {
        "PGHOST": str(url.host),
        "PGPORT": str(url.port),
        "PGUSER": str(url.username),
        "PGPASSWORD": url.password or "none",
        "PGDATABASE": str(url.database),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "KFM_"))}
    settings = {name: str(value) for name, value in service("api")["environment"].items() if name not in place}
    command = ["-m", "uvicorn", *service("api")["command"][1:-4], "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(  # noqa: S603, our own arguments
        [sys.executable, *command, "--log-level", "warning"],
        env={**kept, **settings, **place},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        _wait(server, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=START_SECONDS)


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/_mgmt/ping", timeout=START_SECONDS):  # noqa: S310, our own server
                return
        except (urllib.error.URLError, ConnectionError):
            if server.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the STAC API does not start") from None
            time.sleep(0.1)
