"""The idempotent-node pattern: what it adds to a run, and what an unchanged partition costs.

    python -m benchmarks.idempotency [--units 10000] [--database sqlite|postgresql]

The chain runs in this process, as Dagster's ops and IO manager run it: once over new units, with the time that the
pattern's own parts take, and once more over the same partition, where every node must be handed on and no file of
catalog and lineage may change; then a third time as a Dagster run, beside one over a day without objects, which is what
Dagster itself takes. Does not belong here: whether it holds, which tests say.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from benchmarks.ledger import fresh
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.definitions import build_definitions
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.storage.database import Database

DAY = date(2025, 4, 1)
EMPTY_DAY = date(2025, 5, 1)


def run_day(pipeline: Pipeline, *, run_id: str, limit: int) -> list[StageBatch]:
    """Run the day's chain; return each node's output."""
    partition = DAY.isoformat()
    return run_chain(
        MessageParse(
            pipeline=pipeline,
            dataset="nexrad-l2",
            partition=partition,
            run_id=run_id,
            source=Source.LISTING,
            limit=limit,
        )
    )


@contextmanager
def timed(owner: type, name: str, seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up the time in a method while the block lasts."""
    method: Callable[..., Any] = getattr(owner, name)

    @wraps(method)
    def measured(*arguments: Any, **more: Any) -> Any:
        begun = time.perf_counter()
        try:
            return method(*arguments, **more)
        finally:
            seconds[f"{owner.__name__}.{name}"] += time.perf_counter() - begun

    with patch.object(owner, name, measured):
        yield


@contextmanager
def own_upsert(seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up the time in upserts that is not their effect's."""
    upsert = IdempotentNodes.upsert

    def measured(self: IdempotentNodes, intent: Any, effect: Any, **more: Any) -> Any:
        inside = 0.0

        def effect_measured(tx: Any) -> Any:
            nonlocal inside
            begun = time.perf_counter()
            try:
                return effect(tx)
            finally:
                inside += time.perf_counter() - begun

        begun = time.perf_counter()
        try:
            return upsert(self, intent, effect_measured, **more)
        finally:
            seconds["IdempotentNodes.upsert, without the effect"] += time.perf_counter() - begun - inside

    with patch.object(IdempotentNodes, "upsert", measured):
        yield


def through_dagster(settings: Settings, *, units: int) -> tuple[float, float, int]:
    """Run an empty day and the unchanged day as Dagster runs; return their seconds, and the nodes that were skipped."""
    variables = {
        "KFM_HOME": str(settings.home),
        "KFM_OBJECT_ROOT": str(settings.object_root),
        "KFM_WAL_DSN": settings.wal_dsn,
        "KFM_FIRST_DAY": DAY.isoformat(),
        "KFM_SCHEDULED_LISTINGS": "false",
        "KFM_MAX_UNITS_PER_RUN": str(units),
    }
    with patch.dict(os.environ, variables), tempfile.TemporaryDirectory() as folder:
        job = build_definitions(Settings.load()).get_repository_def().get_job("ingest_nexrad_l2")
        with dg.DagsterInstance.local_temp(folder) as instance:
            seconds = []
            # The first run pays for what a process does once.
            for day in (EMPTY_DAY, EMPTY_DAY + timedelta(days=1), DAY):
                begun = time.perf_counter()
                result = job.execute_in_process(
                    partition_key=day.isoformat(),
                    instance=instance,
                    run_config={"loggers": {"console": {"config": {"log_level": "ERROR"}}}},
                )
                seconds.append(time.perf_counter() - begun)
    skipped = [event for event in result.all_events if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    return seconds[1], seconds[2], len(skipped)


def tree(*folders: str) -> dict[str, str]:
    """Digest and modification time of every file."""
    return {
        str(path): f"{hashlib.sha256(path.read_bytes()).hexdigest()} {path.stat().st_mtime_ns}"
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def main() -> None:
    """Run, run again, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kfm-idempotency-") as folder, fresh(given.database) as url:
        home = Path(folder)
        for bucket, key, content in nexrad_level2_samples(DAY, given.units):
            path = home / "objects" / bucket / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        settings = Settings(home=home / "home", object_root=home / "objects", wal_dsn=url)
        pipeline = Pipeline(
            settings=settings, registry=ContractRegistry.load(), database=Database.open(settings.database_url)
        )
        seconds: defaultdict[str, float] = defaultdict(float)
        begun = time.perf_counter()
        with (
            timed(IdempotentNodes, "begin", seconds),
            timed(MessageParse, "inputs", seconds),
            timed(Catalog, "verify", seconds),
            own_upsert(seconds),
        ):
            run_day(pipeline, run_id="first", limit=given.units)
        whole = time.perf_counter() - begun
        print(f"{given.units:,} units on {given.database}: {whole:.1f} s, {given.units / whole:.0f} units/s")  # noqa: T201
        for name, took in sorted(seconds.items(), key=lambda part: -part[1]):
            print(f"  {name:<48}{took:8.3f} s {100 * took / whole:6.1f} %")  # noqa: T201
        total = sum(seconds.values())
        print(f"  {'the pattern':<48}{total:8.3f} s {100 * total / whole:6.1f} %")  # noqa: T201
        before = tree(settings.catalog, settings.lineage)
        begun = time.perf_counter()
        batches = run_day(pipeline, run_id="second", limit=given.units)
        again = time.perf_counter() - begun
        skipped = sum(batch.reused for batch in batches)
        changed = tree(settings.catalog, settings.lineage) != before
        print(  # noqa: T201
            f"again: {again:.2f} s, {skipped} of {len(batches)} nodes handed on, "
            f"catalog and lineage {'CHANGED' if changed else 'unchanged'}"
        )
        empty, unchanged, observed = through_dagster(settings, units=given.units)
        print(  # noqa: T201
            f"as a Dagster run: {unchanged:.2f} s, {unchanged - empty:.2f} s more than an empty day's {empty:.2f} s, "
            f"{observed} of {len(batches)} nodes handed on"
        )
        changed = changed or tree(settings.catalog, settings.lineage) != before
        pipeline.close()
        if changed or min(skipped, observed) < len(batches):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
