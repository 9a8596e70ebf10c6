"""The commands for production in docs/deploy.md, run on empty services until an Item exists."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed
from kfm_dagster.demo.sample_day import sample_objects
from kfm_dagster_tests.clouds import catalog_items
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
    """Create the user and database that the commands name, and yield libpq's variables for the host name."""
    url = sa.make_url(server)
    execute(server, "CREATE ROLE kfm LOGIN", "CREATE DATABASE kfm OWNER kfm")
    try:
        yield {"PGHOSTADDR": str(url.host), "PGPORT": str(url.port)}
    finally:
        execute(server, "DROP DATABASE kfm WITH (FORCE)", "DROP ROLE kfm")


@dataclass
class Terminal:
    """A shell that executes typed lines, one after the other."""

    process: subprocess.Popen[str]
    log: Path
    typed: int = 0

    def type(self, line: str) -> None:
        """Type a line, wait until it has ended, and fail if its exit code is not 0."""
        self.typed += 1
        self.process.stdin.write(f"{line}\necho typed-{self.typed}=$?\n")
        self.process.stdin.flush()
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


def step_logs(cloud: EmbeddedCloud) -> list[str]:
    """Return the keys of the steps' logs in the bucket."""
    entries = cloud.client("s3").list_objects_v2(Bucket="my-logs").get("Contents", [])
    return [entry["Key"] for entry in entries if entry["Key"].endswith(".err") and entry["Size"]]


@pytest.mark.clause("DAG-13")
@pytest.mark.deployment
@pytest.mark.timeout(3 * HANG_SECONDS)
def test_the_commands_as_written_ingest_a_published_message(
    tmp_path: Path, postgis_server: str, cloud: EmbeddedCloud, contracts: ContractRegistry
) -> None:
    (tmp_path / "workspace.yaml").write_bytes((ROOT / "workspace.yaml").read_bytes())
    cloud.provision(contracts)
    for bucket in BUCKETS:
        cloud.client("s3").create_bucket(Bucket=bucket)
    of_aws = {name: value for name, value in cloud.environment().items() if not name.startswith("KFM_SQS_")}
    with as_host_db(postgis_server) as of_libpq, terminal(tmp_path, of_aws | of_libpq) as typist:
        for line in block():
            typist.type(line)
        feed = Feed(cloud, contracts)
        volume = next(item for item in sample_objects() if item.bucket.endswith("nexrad-level2"))
        feed.announce([feed.deliver(volume)])
        [item] = until(lambda: catalog_items(cloud, BUCKETS[0]), typist.shown)
        assert item["collection"] == "nexrad-l2"
        address = until(lambda: re.search(r"http://127\.0\.0\.1:\d+", typist.shown()), typist.shown)[0]
        with urllib.request.urlopen(f"{address}/server_info", timeout=60) as answer:
            assert answer.status == 200

        def settled() -> bool:
            typist.type("kfm units list --json")
            return '"status": "succeeded"' in typist.shown()

        until(settled, typist.shown)  # the Item exists before the unit has its final status
        typist.type("test -z \"$(find .kfm -name '*.db')\"")  # no database file on this machine
        admin = sa.create_engine(sa.make_url(postgis_server).set(database="kfm"))
        with admin.connect() as connection:
            [head] = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
            assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one() > 0
        admin.dispose()
        assert head
        assert step_logs(cloud)
        assert "Traceback" not in typist.shown()  # checked before the servers are killed
        typist.type("kill $(jobs -p)")
        typist.type("wait")
