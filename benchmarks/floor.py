"""The floor of the benchmark: a plain loop that makes the same reads and writes, and guarantees nothing.

Does not belong here: what it is compared with (`backlog.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.fast_queue import FastQueue
from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster.readers.base import ReadRequest
from kfm_dagster.readers.registry import READERS
from kfm_dagster.settings import Settings, environment


def floor_rate(home: Path, fauxqs: Path, bodies: Sequence[str]) -> float:
    """Return the units per second of a loop with no guarantees: receive, read headers, write Item and event, delete."""
    home.mkdir(parents=True)
    with FastQueue(fauxqs) as queue, environment(queue.environment()):
        queue.fill(bodies)
        registry, settings = ContractRegistry.load(), Settings.load()
        client = connect(settings)
        began = time.monotonic()
        done = 0
        with (home / "lineage.ndjson").open("ab") as lineage:
            while messages := client.receive(5000, budget_seconds=60):
                for message in messages:
                    for unit in parse_message(message, registry=registry, queue=client.name).envelopes:
                        item = _plain_item(unit, registry, settings.object_root or Path())
                        (home / f"{item['id']}.json").write_bytes(orjson.dumps(item, default=str))
                        lineage.write(orjson.dumps({"run": unit.wal_id, "output": item["id"]}) + b"\n")
                        done += 1
                client.delete([message.receipt_handle or "" for message in messages])
        return done / (time.monotonic() - began)


def _plain_item(unit: Envelope, registry: ContractRegistry, root: Path) -> dict[str, Any]:
    contract = registry[unit.dataset]
    match = registry.grammars[unit.dataset].match(unit.key)
    if match is None:
        raise ValueError(unit.key)
    path = root / unit.bucket / unit.key

    def sidecar(suffix: str) -> _FileSource | None:
        beside = path.with_name(path.name + suffix)
        return _FileSource(beside) if beside.is_file() else None

    request = ReadRequest(key=unit.key, groups=match.groups, source=_FileSource(path), sidecar=sidecar)
    header = READERS[contract.metadata_extract.reader](request)
    return {
        "type": "Feature",
        "stac_version": "1.1.0",
        "id": match.item_id,
        "geometry": header.geometry,
        "bbox": bounding_box(header.geometry),
        "properties": dict(header.properties),
        "links": [],
        "assets": {"data": {"href": unit.object_uri}},
    }


class _FileSource:
    """A file read by range, as plainly as can be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def read(self, start: int, length: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(length)
