"""A fast queue for benchmarks: the npm package `fauxqs`, which speaks SQS.

On two cores it accepts 4,800 messages of 1.9 kB a second, and delivers and deletes 2,500, also from a long queue. moto
reaches 1,000 and 450 with a thousand messages on the queue, and less with more. Demo and tests do not use fauxqs,
because it needs Node and has a single account, so no topic has its true ARN. Belongs here: installing, starting,
stopping and filling the queue.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchmarks.processes import cpu_seconds_of
from kfm_dagster.demo.child_server import ChildServer
from kfm_dagster.demo.cloud import ProvisionedQueues, aws_client, aws_environment, create_queues
from kfm_dagster.errors import DependencyUnavailableError, QueueUnavailableError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

PACKAGE = "fauxqs@1.9.2"
"""The last version for Node 20; later versions need Node 22."""
INSTALL_SECONDS = 300
BATCH = 10
"""Maximum entries of a SendMessageBatch."""
THREADS = 4
"""Parallel senders; more do not help, because boto3 holds the interpreter for most of a call."""

# The package's own command listens on every interface. This server listens on loopback, and ends with our process.
_SERVE = """
import { buildApp } from "fauxqs";
const app = buildApp({ logger: false });
await app.listen({ port: 0, host: "127.0.0.1" });
const latency = Number(process.env.QUEUE_LATENCY_MS);
if (latency) {
  const answers = app.server.listeners("request");
  app.server.removeAllListeners("request");
  app.server.on("request", (...call) => setTimeout(() => answers.forEach((answer) => answer(...call)), latency));
}
process.stdin.on("end", () => process.exit(0)).resume();
process.stdout.write(`${app.server.address().port}\\n`);
"""


def ensure_installed(folder: Path) -> Path:
    """Install the package into `folder` if missing; return the folder.

    Needs the network the first time. Raises DependencyUnavailableError when npm is missing or fails.
    """
    if (folder / "node_modules" / "fauxqs").is_dir():
        return folder
    npm = _executable("npm")
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise DependencyUnavailableError(
            f"npm did not install {PACKAGE} within {INSTALL_SECONDS} s", next_step="check the network and try again"
        ) from None
    if done.returncode:
        raise DependencyUnavailableError(
            f"npm cannot install {PACKAGE}",
            observed=(done.stderr.strip().splitlines() or ["no output"])[-1],
            next_step="check the network and try again",
        )
    return folder


class FastQueue:
    """A queue and its dead-letter queue on loopback, in memory, while the context is open."""

    def __init__(
        self,
        folder: Path,
        *,
        primary_queue: str = "kfm-nodd-primary",
        dlq: str = "kfm-nodd-dlq",
        visibility_timeout: int = 900,
        max_receive_count: int = 5,
        latency_ms: float = 0.0,
    ) -> None:
        """Take the `folder` of `ensure_installed`; timeouts are in s, `latency_ms` delays answers."""
        self.primary_queue = primary_queue
        self.dlq = dlq
        self._folder = folder
        self._visibility_timeout = visibility_timeout
        self._max_receive_count = max_receive_count
        self._latency_ms = latency_ms
        self._server: ChildServer | None = None
        self._queues: ProvisionedQueues | None = None

    def __enter__(self) -> Self:
        if not (self._folder / "node_modules" / "fauxqs").is_dir():
            raise DependencyUnavailableError(
                "fauxqs is not installed", observed=self._folder, next_step="call ensure_installed on the folder first"
            )
        server = ChildServer(
            name="the fast queue (fauxqs)",
            command=[_executable("node"), "--input-type=module", "--eval", _SERVE],
            environment={**os.environ, "QUEUE_LATENCY_MS": str(self._latency_ms)},
            folder=self._folder,
        )
        server.start()
        self._server = server
        try:
            self._queues = create_queues(
                self.client(),
                primary_queue=self.primary_queue,
                dlq=self.dlq,
                visibility_timeout=self._visibility_timeout,
                max_receive_count=self._max_receive_count,
            )
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def queues(self) -> ProvisionedQueues:
        """URLs and ARNs of the queues. Raises QueueUnavailableError outside the context."""
        if self._queues is None:
            raise QueueUnavailableError("the fast queue is not started", next_step="enter it with `with`")
        return self._queues

    @property
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`. Raises QueueUnavailableError outside the context."""
        if self._server is None:
            raise QueueUnavailableError("the fast queue is not started", next_step="enter it with `with`")
        return self._server.endpoint_url

    def environment(self) -> dict[str, str]:
        """Variables that point boto3 and `Settings` of another process at this queue."""
        return aws_environment(self.endpoint_url, primary_queue=self.primary_queue, dlq=self.dlq)

    def cpu_seconds(self) -> float:
        """CPU seconds of the server, which are not the product's."""
        pid = None if self._server is None else self._server.pid
        return 0.0 if pid is None else cpu_seconds_of([pid])

    def client(self) -> SQSClient:
        """Build a boto3 client of this queue."""
        client: SQSClient = aws_client("sqs", endpoint_url=self.endpoint_url)
        return client

    def fill(self, bodies: Iterable[str]) -> int:
        """Send every body, in batches of ten by several threads; return their number.

        Only a bounded number of bodies is in memory. Raises QueueUnavailableError if the queue refuses a message.
        """
        sqs, url, sent = self.client(), self.queues.queue_url, 0

        def send(batch: list[str]) -> int:
            entries: list[SendMessageBatchRequestEntryTypeDef] = [
                {"Id": str(index), "MessageBody": body} for index, body in enumerate(batch)
            ]
            if refused := sqs.send_message_batch(QueueUrl=url, Entries=entries).get("Failed"):
                raise QueueUnavailableError("the queue refused a message", observed=refused[0])
            return len(batch)

        batches = _batches(iter(bodies))
        with ThreadPoolExecutor(THREADS) as pool:
            # In groups, because the pool's map would read all bodies at once.
            while group := list(islice(batches, 16 * THREADS)):
                sent += sum(pool.map(send, group))
        return sent

    def _stop(self) -> None:
        server, self._server, self._queues = self._server, None, None
        if server is not None:
            server.stop()


def _batches(bodies: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(bodies, BATCH)):
        yield batch


def _executable(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise DependencyUnavailableError(
            f"{name} is not on the PATH", expected="Node 20 or later with npm", next_step="install Node.js"
        )
    return path
