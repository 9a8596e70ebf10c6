"""The pages about the ledger agree with code and databases."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import OVERRIDES, TRANSITIONS, Status
from kfm_dagster.storage.statements import DIALECTS
from kfm_dagster_tests.docs.wal_pages import PAGES, written
from kfm_dagster_tests.factories import PERSON
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import announce, open_pipeline, put, run_chain, take, volumes
from kfm_dagster_tests.integration.test_run_replay import PARTITION
from kfm_dagster_tests.schemas import wal_record_schema
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("WAL-18")

ROOT = PAGES.parents[1]
SCHEMA = (ROOT / "sql" / "schema" / "0001_first_schema.sql").read_text(encoding="utf-8")
DRAWING = PAGES.parent / "images" / "concepts" / "unit-states.svg"
DATASET = "nexrad-l2"
NAMES = sorted(page.name for page in PAGES.glob("*.md"))


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def test_the_required_pages_exist() -> None:
    assert NAMES == ["README.md", "record-model.md", "state-machine.md", "storage-backends.md"]
    for name in NAMES[1:]:
        assert f"({name})" in page("README.md")


def test_the_generated_parts_are_current() -> None:
    for name in NAMES:
        assert page(name) == written(page(name)), "python -m kfm_dagster_tests.docs.wal_pages"


def test_the_drawing_has_every_legal_transition_and_no_other() -> None:
    drawing = ET.parse(DRAWING)
    arrows = {arrow.get("id"): arrow.findtext("{*}title") for arrow in drawing.iterfind(".//{*}path[@id]")}
    rules = [*TRANSITIONS, *OVERRIDES]
    assert arrows == {f"{rule.from_status or 'new'}-{rule.to_status}": rule.trigger for rule in rules}
    shown = {text.text for text in drawing.iterfind(".//{*}text")}
    assert set(Status) <= shown
    assert "(../images/concepts/unit-states.svg)" in page("state-machine.md")


def test_the_page_names_the_existing_tables_and_backends() -> None:
    text = page("storage-backends.md")
    named = set(re.findall(r"`(\w+)`", text.partition("## Its tables")[2].partition("## Migrations")[0]))
    assert named <= set(re.findall(r"^CREATE TABLE (\w+)", SCHEMA, re.MULTILINE))
    assert set(re.findall(r"^CREATE TABLE (nodd_wal_\w+)", SCHEMA, re.MULTILINE)) <= named
    assert re.findall(r"^\| \| (\w+) \| (\w+) \|$", text, re.MULTILINE) == [("SQLite", "PostgreSQL")]
    assert DIALECTS == ("sqlite", "postgresql")


def test_the_examples_of_all_fields_are_a_valid_record() -> None:
    properties = wal_record_schema()["properties"]
    record = NoddWalRecord.model_validate({name: entry["examples"][0] for name, entry in properties.items()})
    assert record.status is Status.SUCCEEDED


def at(document: Any, path: str) -> Any:
    """Return the value at a dotted path, or None if the path does not exist."""
    for name in path.split("."):
        if isinstance(document, list):
            document = document[int(name)]
        elif not isinstance(document, dict) or name not in document:
            return None
        else:
            document = document[name]
    return document


@pytest.mark.clause("WAL-14")
def test_each_field_has_its_documented_source_and_places(tmp_path: Path) -> None:
    """The unit fails, because its object is late, and then a replay succeeds; so every field has a value."""
    objects = tmp_path / "objects"
    objects.mkdir()
    pipeline = open_pipeline(tmp_path / "home", objects)
    (volume,) = volumes(1)
    message = announce([volume.event()], registry=pipeline.registry)
    take(pipeline, message)
    run_chain(pipeline, DATASET, PARTITION, "early", Source.LEDGER)
    (failed,) = own_tx(pipeline.ledger).find(limit=2)
    own_tx(pipeline.ledger).quarantine([failed.wal_id], reason_code="person", decision=PERSON)
    versions = {WalId(failed.wal_id): failed.version + 1}
    own_tx(pipeline.ledger).override(
        versions,
        from_status=Status.QUARANTINED,
        action=GovernanceAction.RELEASE,
        decision=PERSON,
        replay_reason="incident",
        replay_run_id="replay-1",
    )
    put(objects, [volume])
    run_chain(pipeline, DATASET, PARTITION, "late", Source.LEDGER)
    (record,) = own_tx(pipeline.ledger).find(limit=2)
    assert record.status is Status.SUCCEEDED
    notification = json.loads(message.body)
    received = {
        "s3": json.loads(notification["Message"])["Records"][0],
        "sns": notification,
        "sqs": {"MessageId": message.message_id},
    }
    lineage = Path(pipeline.settings.lineage)
    (item,) = traces.items(Path(pipeline.settings.catalog)).values()
    lines = [line for file in lineage.rglob("*.ndjson") for line in file.read_bytes().splitlines()]
    events = [event for event in map(json.loads, lines) if at(event, "run.facets.kfmWal")]
    nodes = [node for file in lineage.rglob("*.jsonld") for node in json.loads(file.read_bytes())["@graph"]]
    for name, entry in wal_record_schema()["properties"].items():
        value = record.model_dump(mode="json")[name]
        origin, _, path = entry["x-source"].partition(":")
        if origin in received and re.fullmatch(r"[\w.]+", path):
            assert same(at(received[origin], path), value), (name, entry["x-source"])
        for place in entry["x-seen-as"]:
            document, _, path = place.partition(":")
            shown = {"item": [item], "openlineage": events}.get(document)
            values = [at(part, path) for part in shown] if shown else [node.get(path) for node in nodes]
            assert any(same(candidate, value) for candidate in values), (name, place, values)
    pipeline.close()


def same(actual: Any, value: Any) -> bool:
    """Return whether two values are equal, or are texts of the same moment."""
    if actual == value or actual is None or not isinstance(value, str):
        return bool(actual == value)
    try:
        return datetime.fromisoformat(str(actual)) == datetime.fromisoformat(value)
    except ValueError:
        return False
