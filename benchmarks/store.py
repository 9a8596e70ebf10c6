"""The store of a benchmark: a separate server (`store_server.py`), its counts and its CPU.

Belongs here: its start and stop, and the variables that point a deployment at it. Does not belong here: its objects
(`objects.py`).
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from benchmarks.processes import cpu_seconds_of
from kfm_dagster.demo.child_server import ChildServer

OWN_BUCKET = "kfm-bench"
"""Bucket of the deployment's own files: artifacts, catalog, lineage."""
TIMEOUT_SECONDS = 30
REQUESTS = ("GET", "HEAD", "PUT", "DELETE", "LIST", "POST")


class StoreServer:
    """A server over ROOT/bucket/key while the context is open; `latency_ms` delays answers.

    Unless `odd_every` is 0, one in `odd_every` answers about objects is an answer that S3 never gives.
    """

    def __init__(self, root: Path, *, latency_ms: float, odd_every: int = 0) -> None:
        self._server = ChildServer(
            name="the store server",
            command=[
                sys.executable,
                "-m",
                "benchmarks.store_server",
                str(root.absolute()),
                "--latency-ms",
                str(latency_ms),
                "--odd-every",
                str(odd_every),
            ],
            environment=os.environ,
        )

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`. Raises DependencyUnavailableError outside the context."""
        return self._server.endpoint_url

    def environment(self, *, all_remote: bool) -> dict[str, str]:
        """Variables to read objects from this server; `all_remote` puts the deployment's files there, too."""
        own = {
            f"KFM_{name.upper()}_URL": f"s3://{OWN_BUCKET}/{name}"
            for name in ("storage", "catalog", "lineage")
            if all_remote
        }
        return {"AWS_ENDPOINT_URL_S3": self.endpoint_url, **own}

    def counts(self) -> dict[str, int]:
        """Return the counts since the last call: requests by kind, bytes, peak concurrency."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.endpoint_url}/__counts", timeout=TIMEOUT_SECONDS) as answer:
            counts: dict[str, int] = orjson.loads(answer.read())
        return counts

    def cpu_seconds(self) -> float:
        """CPU seconds of the server, which are not the product's."""
        pid = self._server.pid
        return 0.0 if pid is None else cpu_seconds_of([pid])


def requests_of(counts: dict[str, int]) -> int:
    """Return the requests of all kinds."""
    return sum(counts.get(kind, 0) for kind in REQUESTS)
