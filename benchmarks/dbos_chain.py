"""The same five steps as DBOS workflows: the cost of durable steps alone.

    HOME/dbos/bin/python -m benchmarks.dbos_chain HOME [--all-remote]

Each message has a workflow with the message's id, so that a second delivery has no effect. Each of our steps is a step
of this workflow; DBOS stores its output in PostgreSQL before the next step begins. There are no gates, no run-state and
no ledger; the catalog is only Items. Each core has a process, with as many workflows at a time as a run has parallel
reads. Belongs here: workflow and installation. Does not belong here: reading and writing (`floor.py`).
"""

from __future__ import annotations

import os
import site
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import orjson

from benchmarks.floor import MESSAGES, Done, blocking_item, print_done, source_of, threads_of, writer
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import Queue, connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.settings import Settings

PACKAGE = "dbos==3.4.0"
INSTALL_SECONDS = 300
CONNECTIONS = 20
"""Connections of a process, DBOS's own default; a PostgreSQL server accepts 100 in all."""
FIRST_BYTES = 8
"""Minimum bytes that integrity-check requests."""


def ensure_environment(folder: Path) -> Path:
    """Install DBOS into an environment in `folder` if it is missing; return its interpreter.

    The other packages that the steps import come from the environment of the calling interpreter. DBOS's own
    dependencies come first, because it needs another SQLAlchemy. Needs the network the first time. Raises
    DependencyUnavailableError.
    """
    python = folder / "bin" / "python"
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    if (packages / "dbos").is_dir():
        return python
    for command in (
        (sys.executable, "-m", "venv", str(folder)),
        (str(python), "-m", "pip", "install", "--disable-pip-version-check", PACKAGE),
    ):
        done = subprocess.run(  # noqa: S603, our own arguments
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
        if done.returncode:
            raise DependencyUnavailableError(
                f"{PACKAGE} cannot be installed",
                observed=(done.stderr.strip().splitlines() or ["no output"])[-1],
                next_step="check the network and try again",
            )
    ours = [*site.getsitepackages(), str(Path(__file__).resolve().parent.parent)]
    (packages / "ours.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    return python


def chain(home: Path, settings: Settings, queue: Queue, *, all_remote: bool) -> Callable[[str, str], int]:
    """Declare the workflow over a message's id and body; it returns the number of its units."""
    from dbos import DBOS  # type: ignore[import-not-found]  # noqa: PLC0415 - of the other environment

    registry, write, root = ContractRegistry.load(), writer(home, all_remote=all_remote), settings.object_root
    lineage = (home / f"lineage-{os.getpid()}.ndjson").open("ab")

    def units_of(message_id: str, body: str) -> Any:
        message = SqsMessage(message_id=message_id, body=body)
        return parse_message(message, registry=registry, queue=queue.name).envelopes

    @DBOS.step()  # type: ignore[untyped-decorator]
    def message_parse(message_id: str, body: str) -> list[str]:
        return [unit.wal_id for unit in units_of(message_id, body)]

    @DBOS.step()  # type: ignore[untyped-decorator]
    def integrity_check(message_id: str, body: str) -> list[bool]:
        units = units_of(message_id, body)
        return [bool(source_of(root, unit.bucket, unit.key, size=None).read(0, FIRST_BYTES)) for unit in units]

    @DBOS.step()  # type: ignore[untyped-decorator]
    def metadata_extract(message_id: str, body: str) -> list[str]:
        items = [blocking_item(unit, registry, root) for unit in units_of(message_id, body)]
        return [orjson.dumps(item, default=str).decode() for item in items]

    @DBOS.step()  # type: ignore[untyped-decorator]
    def stac_register(items: list[str]) -> list[str]:
        names = [str(orjson.loads(item)["id"]) for item in items]
        for name, item in zip(names, items, strict=True):
            write(f"{name}.json", item.encode())
        return names

    @DBOS.step()  # type: ignore[untyped-decorator]
    def provenance_emit(units: list[str], items: list[str]) -> int:
        for wal_id, item_id in zip(units, items, strict=True):
            lineage.write(orjson.dumps({"run": wal_id, "output": item_id}) + b"\n")
        lineage.flush()
        return len(units)

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    def ingest(message_id: str, body: str) -> int:
        units = message_parse(message_id, body)
        integrity_check(message_id, body)
        names = stac_register(metadata_extract(message_id, body))
        return int(provenance_emit(units, names))

    return ingest  # type: ignore[no-any-return]


def work(settings: Settings, queue: Queue, ingest: Callable[[str, str], int]) -> Done:
    """Work until the queue is empty."""
    from dbos import SetWorkflowID  # noqa: PLC0415 - of the other environment

    def ingest_message(message: SqsMessage) -> int:
        with SetWorkflowID(message.message_id):
            return ingest(message.message_id, message.body)

    done, ended, began = 0, time.monotonic(), time.process_time()
    with ThreadPoolExecutor(threads_of(settings)) as pool:
        while messages := queue.receive(MESSAGES, budget_seconds=60):
            done += sum(pool.map(ingest_message, messages))
            queue.delete([message.receipt_handle or "" for message in messages])
            ended = time.monotonic()
    return Done(done, ended, time.process_time() - began)


@click.command()
@click.argument("home", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--all-remote", is_flag=True, help="Write Items to the store.")
def main(*, home: Path, all_remote: bool) -> None:
    """Print `ready`, wait for a line, process the queue, and print the result."""
    from dbos import DBOS  # noqa: PLC0415 - of the other environment

    settings = Settings.load()
    queue = connect(settings)
    # DBOS uses psycopg 3.
    url = settings.database_url.replace("+psycopg2", "+psycopg")
    DBOS(
        config={
            "name": "nodd",
            "system_database_url": url,
            "executor_id": str(os.getpid()),
            "log_level": "ERROR",
            "sys_db_pool_size": CONNECTIONS,
        }
    )
    ingest = chain(home, settings, queue, all_remote=all_remote)
    DBOS.launch()
    click.echo("ready")
    sys.stdin.readline()
    print_done(work(settings, queue, ingest))
    sys.stdout.flush()
    DBOS.destroy()


if __name__ == "__main__":
    main()
