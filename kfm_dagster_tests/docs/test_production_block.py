"""The commands for production in docs/deploy.md, run on empty services until an Item exists."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.sample_day import sample_objects
from kfm_dagster_tests.databases import execute
from kfm_dagster_tests.docs.console import session
from kfm_dagster_tests.timeouts import HANG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
BUCKETS = ("my-catalog", "my-artifacts", "my-lineage", "my-logs")


def block() -> list[str]:
    """Return the lines of the code block with these commands."""
    section = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8").split("## Start it\n")[1]
    lines = section.split("\n    export ", 1)[1].split("\n\n", 1)[0].splitlines()
    return ["export " + lines[0], *(line.removeprefix("    ") for line in lines[1:])]


@contextmanager
def as_host_db(server: str) -> Iterator[dict[str, str]]:
    """Create the user and database that the commands name, and yield libpq's variables for the host name.

    The server listens on a Unix socket; a TCP port is forwarded to it.
    """
    url = sa.make_url(server)
    execute(server, "CREATE ROLE kfm LOGIN", "CREATE DATABASE kfm OWNER kfm")
    target = f"{url.query['host']}/.s.PGSQL.{url.port or 5432}" if "host" in url.query else (url.host, url.port or 5432)

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def connect(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX if isinstance(target, str) else socket.AF_INET) as inner:
            inner.connect(target)
            back = threading.Thread(target=pump, args=(inner, client), daemon=True)
            back.start()
            pump(client, inner)
            back.join()

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=connect, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        try:
            yield {"PGHOSTADDR": "127.0.0.1", "PGPORT": str(listener.getsockname()[1])}
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            execute(server, "DROP DATABASE kfm WITH (FORCE)", "DROP ROLE kfm")


@dataclass
class Terminal:
    """A shell that executes typed lines, one after the other."""

    process: subprocess.Popen[str]
    log: Path
    typed: int = 0

    def type(self, line: str, *, wait: bool = True) -> None:
        """Type a line, wait until it has ended, and fail if its exit code is not 0."""
        self.typed += 1
        self.process.stdin.write(f"{line}\necho typed-{self.typed}=$?\n")
        self.process.stdin.flush()
        if wait:
            until(lambda: f"typed-{self.typed}=" in self.shown(), lambda: f"{line}\n{self.shown()}")
            assert f"typed-{self.typed}=0\n" in self.shown(), f"{line}\n{self.shown()}"

    def shown(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def terminal(folder: Path, variables: Mapping[str, str]) -> Iterator[Terminal]:
    """Open a shell in a folder; on exit, end all its processes."""
    log, shown = folder / "terminal.log", {**variables, "PYTHONUNBUFFERED": "1"}
    with session(["bash", "--norc"], folder, log, shown, stdin=subprocess.PIPE, end=signal.SIGKILL) as shell:
        yield Terminal(shell, log)


def items(cloud: EmbeddedCloud) -> list[dict[str, Any]]:
    """Return the Items of the catalog."""
    s3 = cloud.client("s3")
    keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKETS[0]).get("Contents", [])]
    bodies = [s3.get_object(Bucket=BUCKETS[0], Key=key)["Body"].read() for key in keys if key.endswith(".json")]
    return [document for document in map(json.loads, bodies) if document.get("type") == "Feature"]


def ingested_by_steps(cloud: EmbeddedCloud) -> list[str]:
    """Return the keys of the steps' logs in the bucket."""
    entries = cloud.client("s3").list_objects_v2(Bucket="my-logs").get("Contents", [])
    return [entry["Key"] for entry in entries if entry["Key"].endswith(".err") and entry["Size"]]


@contextmanager
def outside(server: str, contracts: ContractRegistry) -> Iterator[tuple[EmbeddedCloud, dict[str, str]]]:
    """Provide empty PostgreSQL, S3 and SQS, and the AWS and libpq variables that lead there."""
    with ExitStack() as stack:
        cloud = stack.enter_context(EmbeddedCloud())
        cloud.provision(contracts)
        for bucket in BUCKETS:
            cloud.client("s3").create_bucket(Bucket=bucket)
        named = {name: value for name, value in cloud.environment().items() if not name.startswith("KFM_SQS_")}
        yield cloud, {**named, **stack.enter_context(as_host_db(server))}


@pytest.mark.clause("DAG-13")
@pytest.mark.deployment
@pytest.mark.timeout(3 * HANG_SECONDS)
def test_the_commands_as_written_ingest_a_published_message(
    tmp_path: Path, postgres_server: str, contracts: ContractRegistry
) -> None:
    (tmp_path / "workspace.yaml").write_bytes((ROOT / "workspace.yaml").read_bytes())
    with outside(postgres_server, contracts) as (cloud, variables), terminal(tmp_path, variables) as typist:
        for line in block():
            typist.type(line)
        feed = Feed(cloud, contracts)
        volume = next(item for item in sample_objects() if item.bucket.endswith("nexrad-level2"))
        feed.announce([feed.deliver(volume)])
        [item] = until(lambda: items(cloud), typist.shown)
        assert item["collection"] == "nexrad-l2"
        address = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", typist.shown()), typist.shown)[0]
        with urllib.request.urlopen(f"{address}/server_info", timeout=60) as answer:
            assert answer.status == 200

        def settled() -> bool:
            typist.type("kfm units list --json")
            return '"status": "succeeded"' in typist.shown()

        until(settled, typist.shown)  # the Item exists before the unit has its final status
        typist.type("test -z \"$(find .kfm -name '*.db')\"")  # no database file on this machine
        admin = sa.create_engine(sa.make_url(postgres_server).set(database="kfm"))
        with admin.connect() as connection:
            [head] = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
            assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one() > 0
        admin.dispose()
        assert head
        assert ingested_by_steps(cloud)
        assert "Traceback" not in typist.shown()  # checked before the servers are killed
        typist.type("kill $(jobs -p)")
        typist.type("wait")
