"""The final check of a campaign: each unit has one record, one Item and one set of lineage.

Belongs here: comparing ledger, catalog and lineage with the announced objects. Does not belong here: starting
and watching (`campaign.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status


class CampaignError(KfmError):
    """Units of the campaign are lost, duplicated or unfinished."""

    exit_code = ExitCode.FINISHED_WITH_FAILURES


def assert_whole(pipeline: Pipeline, home: Path, *, dataset: str, events: Sequence[ObjectEvent]) -> int:
    """Check for one terminal record, Item and lineage per unit; return the maximum attempts.

    Raises CampaignError naming lost, duplicated or unfinished units.
    """
    with pipeline.database.snapshot() as tx:
        records = pipeline.ledger.find(limit=len(events) + 1, tx=tx)
    _compare("records", Counter(record.object_uri for record in records), {f"s3://{e.bucket}/{e.key}" for e in events})
    if unfinished := [record.wal_id for record in records if record.status is not Status.SUCCEEDED]:
        raise CampaignError("units did not succeed", observed=f"{len(unfinished)}, the first {unfinished[0]}")
    wal_ids = {WalId(record.wal_id) for record in records}
    items = Counter(path.stem for path in (home / "catalog" / dataset).rglob("*_V0?.json"))
    _compare("Items", items, {str(record.stac_item_id) for record in records})
    events_read = list(_events(home))
    # Events of a rolled-back run remain in its files; a further event withdraws them.
    withdrawn = {event["run"]["runId"] for event in events_read if "kfmInvalidation" in event["run"]["facets"]}
    valid = [(event["eventType"], run) for event in events_read if (run := event["run"]["runId"]) not in withdrawn]
    links = [link for wal_id in wal_ids for link in pipeline.lineage.links_of(wal_id)]
    runs = {link.lineage_id for link in links if link.path == "openlineage"}
    for kind in ("START", "COMPLETE"):
        _compare(f"{kind} events", Counter(run_id for event_type, run_id in valid if event_type == kind), runs)
    _compare("PROV activities", _activities(home), {link.lineage_id for link in links if link.path == "prov"})
    if len(links) != 2 * len(wal_ids):
        raise CampaignError("lineage is missing or doubled", observed=len(links), expected=2 * len(wal_ids))
    return max(record.attempts for record in records)


def _compare(what: str, observed: Counter[str], expected: set[str]) -> None:
    doubled = [name for name, count in observed.items() if count > 1]
    missing = expected - observed.keys()
    foreign = observed.keys() - expected
    if doubled or missing or foreign:
        raise CampaignError(
            f"{what}: each must exist exactly once",
            observed=f"{len(doubled)} doubled, {len(missing)} missing, {len(foreign)} unknown",
            expected=f"{len(expected)}, each once",
        )


def _events(home: Path) -> Iterator[dict[str, Any]]:
    for file in sorted((home / "lineage" / "openlineage").rglob("*.ndjson")):
        for line in file.read_bytes().splitlines():
            yield json.loads(line)


def _activities(home: Path) -> Counter[str]:
    """Return the PROV activities of ingests by id, without activities of withdrawn entities."""
    nodes = [
        node
        for file in (home / "lineage" / "prov").rglob("*.jsonld")
        for node in json.loads(file.read_bytes())["@graph"]
    ]
    gone = {node["id"] for node in nodes if "wasInvalidatedBy" in node}
    withdrawn = {node["wasGeneratedBy"] for node in nodes if node["id"] in gone and "wasGeneratedBy" in node}
    return Counter(node["id"] for node in nodes if "kfm:Ingest" in node.get("type", ()) and node["id"] not in withdrawn)
