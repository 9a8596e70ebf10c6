"""Registered envelopes of a GOES scan, and a reader of a lineage root."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    Metadata,
    RawReference,
    StacResult,
    StacStatus,
)
from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.lineage.unit import IngestRun, LineageUnit
from kfm_dagster_tests.factories import envelope

START = datetime(2025, 12, 3, 0, 1, 17, 600000, tzinfo=UTC)
RUN_ID = "3b0f1c1e-9f5e-4a53-9c8e-5b7a6a0d6a11"


def ingest_run(*, minute: int = 5) -> IngestRun:
    return IngestRun(
        run_id=RUN_ID,
        dataset="goes-abi",
        started_at="2025-12-03T00:04:00Z",
        occurred_at=f"2025-12-03T00:{minute:02d}:00Z",
    )


def registered(number: int = 0, **changes: Any) -> Envelope:
    """Return the envelope of scan `number` after stac-register."""
    key = f"ABI-L1b-RadC/2025/337/00/OR_ABI-L1b-RadC-M6C02_G19_s2025337000{number:05d}.nc"
    uri = f"s3://noaa-goes19/{key}"
    etag = f"{number:032x}"
    unit = envelope(
        dataset="goes-abi",
        object_uri=uri,
        event_time=datetime(2025, 12, 3, 0, 3, 41, 318000, tzinfo=UTC),
        time_range_start=START,
        time_range_end=datetime(2025, 12, 3, 0, 3, 54, tzinfo=UTC),
        object_version=etag,
        object_size=20_971_520,
        raw=RawReference(
            sqs_message_id=uuid8("sqs", str(number)),
            sns_message_id=uuid8("sns", str(number)),
            topic_arn="arn:aws:sns:us-east-1:123901341784:NewGOES19Object",
        ),
        attempt=1,
        integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=20_971_521, actual_etag=etag),
        metadata=Metadata(
            status=CheckStatus.SUSPECT,
            issues=(Issue(code="time_mismatch", severity=Severity.SUSPECT, message="0.1 s"),),
        ),
        stac=StacResult(
            write_status=StacStatus.CREATED,
            item_id=f"scan-{number}",
            collection_id="goes-abi",
            item_href=f"goes-abi/2025/2025-12-03/scan-{number}.json",
            content_sha256=f"{number:064x}",
        ),
    )
    return unit.evolve(**changes)


def units(first: int, stop: int) -> list[LineageUnit]:
    return [LineageUnit.of(registered(number)) for number in range(first, stop)]


def superseded(number: int, *, by: int) -> Envelope:
    """Return the envelope of a scan that was registered after the newer scan `by`, which supersedes it."""
    return with_stac(
        registered(number),
        write_status=StacStatus.NO_OP,
        superseded=True,
        superseded_by=registered(by).wal_id,
        content_sha256=f"{by:064x}",
    )


def repaired(replay: str, **changes: Any) -> Envelope:
    """Return scan 0 after a repair that changed its Item's content."""
    unit = registered(attempt=2, replay_run_id=replay, replay_reason="incident")
    values = {"write_status": StacStatus.UPDATED, "content_sha256": "e" * 64, "replaces": unit.wal_id}
    return with_stac(unit, **{**values, **changes})


def with_stac(unit: Envelope, **changes: Any) -> Envelope:
    return unit.evolve(stac=dataclasses.replace(unit.stac, **changes))


def readable(root: Path) -> Counter[tuple[str, str]]:
    """Count each (event type or `activity`, wal_id) in the published files."""
    counts: Counter[tuple[str, str]] = Counter()
    for path in root.glob("openlineage/**/*.ndjson"):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            counts[event["eventType"], event["run"]["facets"]["kfmWal"]["wal_id"]] += 1
    for path in root.glob("prov/**/*.jsonld"):
        for node in json.loads(path.read_text(encoding="utf-8"))["@graph"]:
            if "Activity" in node["type"]:
                counts["activity", node["kfm:wal_id"]] += 1
    return counts


def once_each(expected: list[LineageUnit]) -> Counter[tuple[str, str]]:
    """Return the counts of `readable` if every unit is published once."""
    return Counter((kind, unit.wal_id) for unit in expected for kind in ("START", "COMPLETE", "activity"))
