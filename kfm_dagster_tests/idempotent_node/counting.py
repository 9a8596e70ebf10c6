"""A small node that counts lines of files, and calls a hook at which a test can stop it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, ManifestEntry
from kfm_dagster.idempotent_node.node import content_of
from kfm_dagster.idempotent_node.transaction import Effect, IdempotentNodes
from kfm_dagster.idempotent_node.wal import Intent
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.telemetry.measures import StepVolume

CODE = CodeFingerprint(code_sha="c0ffee", lockfile_hash="10cc")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
RUN = "0f0e0d0c-0b0a-4908-8706-050403020100"
OTHER_RUN = "1" + RUN[1:]


def open_nodes(database: Database) -> IdempotentNodes:
    return IdempotentNodes(database, clock=lambda: NOW)


def begin(nodes: IdempotentNodes, node: CountLines, run_id: str = RUN) -> Intent:
    """Write the intent of a run of a node."""
    with nodes.database.transaction() as tx:
        return nodes.begin(content_of(node, code=CODE, run_id=run_id), run_id=run_id, tx=tx)[0]


@dataclass(kw_only=True)
class CountLines:
    """Counts the lines of files and writes the counts to a file named by their hash; `calls` counts runs.

    `reached` is called before and after the file operation, so that a test can raise there.
    """

    files: Sequence[Path]
    folder: Path
    minimum: int = 0
    name: str = "count-lines"
    kind: str = "count-lines"
    step: str = "count"
    calls: int = 0
    reached: Callable[[], None] = lambda: None

    def inputs(self) -> Sequence[ManifestEntry]:
        return [
            ManifestEntry(
                uri=path.name, size=path.stat().st_size, checksum=hashlib.sha256(path.read_bytes()).hexdigest()
            )
            for path in self.files
        ]

    def params(self) -> Mapping[str, Any]:
        return {"minimum": self.minimum}

    def context(self) -> Mapping[str, Any]:
        return {"files": [str(path) for path in self.files], "folder": str(self.folder), "kind": self.kind}

    def transform(self) -> Effect:
        self.calls += 1
        counts = {path.name: len(path.read_text().splitlines()) for path in sorted(self.files)}
        content = json.dumps({name: n for name, n in counts.items() if n >= self.minimum}, sort_keys=True).encode()
        digest = hashlib.sha256(content).hexdigest()
        self.reached()
        self.folder.mkdir(exist_ok=True)
        (self.folder / digest).write_bytes(content)
        self.reached()
        return Effect(record={"sha256": digest, "files": len(counts)}, volume=StepVolume(rows_out=len(counts)))

    def apply(self, tx: Transaction, effect: Effect) -> Effect:
        return effect

    def verify(self, effect: Effect) -> None:
        digest = hashlib.sha256((self.folder / effect.record["sha256"]).read_bytes()).hexdigest()
        if digest != effect.record["sha256"]:
            raise OSError(f"the content of {effect.record['sha256']} has the hash {digest}")


def rebuilt(intent: Intent) -> CountLines:
    """Create the node from its payload."""
    payload = intent.payload
    return CountLines(
        files=[Path(file) for file in payload["context"]["files"]],
        folder=Path(payload["context"]["folder"]),
        minimum=payload["params"]["minimum"],
        name=intent.node,
        kind=payload["context"]["kind"],
        step=intent.step,
    )
