"""The benchmark's floor by event loops: the same reads and writes, in a process per core.

    python -m benchmarks.async_floor HOME [--all-remote]

Readers are synchronous. If a reader needs bytes that were not read yet, it is interrupted, and restarted when the bytes
are there. This benchmark needs a store, because reads from a folder do not wait. Does not belong here: the loop of
threads and the form of an Item (`floor.py`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import obstore
import orjson

from benchmarks.floor import MESSAGES, Done, plain_item, print_done, store_of
from benchmarks.store import OWN_BUCKET
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.base import ByteSource
from kfm_dagster.settings import Settings

BATCHES = 2
"""Batches of messages per loop at a time, so that a batch is received while the objects of another are read."""


class _UnreadError(BaseException):
    """A reader needs unread bytes; no reader catches this error."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        self.fetch = fetch


class _ReadParts:
    """An object with some parts read; reading another part raises _UnreadError."""

    def __init__(self, bucket_name: str, key: str, size: int) -> None:
        self._store, self._key, self.size = store_of(bucket_name), key, size
        self._parts: dict[int, bytes] = {}

    def read(self, start: int, length: int) -> bytes:
        stop = min(start + length, self.size)
        if stop <= start:
            return b""
        for first, part in self._parts.items():
            if first <= start and stop <= first + len(part):
                return part[start - first : stop - first]

        async def fetch() -> None:
            self._parts[start] = bytes(await obstore.get_range_async(self._store, self._key, start=start, end=stop))

        raise _UnreadError(fetch)


class _WholeObject:
    """An object that was read completely."""

    def __init__(self, content: bytes) -> None:
        self._content, self.size = content, len(content)

    def read(self, start: int, length: int) -> bytes:
        return self._content[start : start + length]


async def read_item(unit: Envelope, registry: ContractRegistry) -> dict[str, Any]:
    """Read an object's headers and return its Item."""
    source = _ReadParts(unit.bucket, unit.key, unit.object_size or 0)
    sidecars: dict[str, ByteSource | None] = {}

    def sidecar(suffix: str) -> ByteSource | None:
        async def fetch() -> None:
            try:
                answer = await obstore.get_async(store_of(unit.bucket), unit.key + suffix)
                sidecars[suffix] = _WholeObject(bytes(await answer.bytes_async()))
            except FileNotFoundError:
                sidecars[suffix] = None

        if suffix not in sidecars:
            raise _UnreadError(fetch)
        return sidecars[suffix]

    while True:
        try:
            return plain_item(unit, registry, source, sidecar)
        except _UnreadError as unread:
            await unread.fetch()


async def work(home: Path, *, all_remote: bool) -> Done:
    """Work until the queue is empty."""
    registry, client = ContractRegistry.load(), connect(Settings.load())
    units, ended, began = 0, time.monotonic(), time.process_time()

    async def ingest(unit: Envelope) -> bytes:
        item = await read_item(unit, registry)
        content = orjson.dumps(item, default=str)
        if all_remote:
            await obstore.put_async(store_of(OWN_BUCKET), f"floor/{item['id']}.json", content)
        else:
            (home / f"{item['id']}.json").write_bytes(content)
        return orjson.dumps({"run": unit.wal_id, "output": item["id"]}) + b"\n"

    async def ingest_batch(messages: list[SqsMessage]) -> int:
        parsed = [parse_message(message, registry=registry, queue=client.name).envelopes for message in messages]
        lines = await asyncio.gather(*(ingest(unit) for envelopes in parsed for unit in envelopes))
        lineage.write(b"".join(lines))
        await asyncio.to_thread(client.delete, [message.receipt_handle or "" for message in messages])
        return len(lines)

    async def work_batches() -> None:
        nonlocal units, ended
        while messages := await asyncio.to_thread(client.receive, MESSAGES, budget_seconds=60):
            # Not `units += await ...`, which reads `units` before the other batch has added its own.
            ingested = await ingest_batch(messages)
            units += ingested
            ended = time.monotonic()

    with (home / f"lineage-{os.getpid()}.ndjson").open("ab") as lineage:
        await asyncio.gather(*(work_batches() for _ in range(BATCHES)))
    return Done(units, ended, time.process_time() - began)


@click.command()
@click.argument("home", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--all-remote", is_flag=True, help="Write Items to the store.")
def main(*, home: Path, all_remote: bool) -> None:
    """Print `ready`, wait for a line, process the queue, and print the result."""
    click.echo("ready")
    sys.stdin.readline()
    print_done(asyncio.run(work(home, all_remote=all_remote)))


if __name__ == "__main__":
    main()
