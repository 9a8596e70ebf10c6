"""Selections: strict documents, reproducible records and order, and replays by the chain."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, ContractError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.recovery.replay.selection import Selection, load_selection, parse_selection, selection_of
from kfm_dagster.recovery.replay.units import select
from kfm_dagster_tests.factories import START, envelope, with_section
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    DAY,
    StoredObject,
    missing,
    notify_each,
    open_pipeline,
    put,
    run_pending,
    volumes,
)
from kfm_dagster_tests.recovery.replays import PERSON, Stand, document, repair, selection
from kfm_dagster_tests.schemas import json_schema
from kfm_dagster_tests.transactions import own_tx

PUBLISHED = Path(__file__).resolve().parents[2] / "docs" / "spec" / "replay-selection.schema.json"
SCHEMA = json_schema(Selection, urn="kfm.nodd.replay:v1")
SPECIFIED = """\
apiVersion: kfm.nodd.replay/v1
kind: ReplaySelection
metadata: {name: goes-schema-fix, description: "...", env: prod, labels: {replay_reason: incident, incident_id: INC-1}}
spec:
  mode: failed-only            # failed-only | repair-and-replace | backfill
  filters: {datasets: [goes-abi], status: [failed], error_codes: [stac_validation_failed],
            event_time: {start: "2025-12-04T00:00:00Z", end: "2025-12-04T06:00:00Z"}, attempts: {max: 4}}
  limits: {max_records: 5000, batch_size: 500, max_batches: 20}
  options: {dry_run: false, allow_repair_and_replace: false, respect_kill_switch: true, notes: ""}
"""


@pytest.mark.clause("RPL-02")
def test_the_specified_example_is_read_completely(tmp_path: Path) -> None:
    file = tmp_path / "incident.yaml"
    file.write_text(SPECIFIED, encoding="utf-8")
    spec = load_selection(file)
    assert (spec.replay_reason, spec.change_ref) == ("incident", "INC-1")
    assert spec.spec.statuses == (Status.FAILED,)
    assert spec.spec.filters.event_time.end == datetime(2025, 12, 4, 6, tzinfo=UTC)
    assert spec.as_json()["spec"]["limits"] == {"max_records": 5000, "batch_size": 500, "max_batches": 20}
    jsonschema_rs.Draft202012Validator(SCHEMA).validate(yaml.safe_load(SPECIFIED))


@pytest.mark.clause("RPL-02")
def test_the_published_schema_is_generated_from_the_model() -> None:
    written = json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"
    assert PUBLISHED.read_text(encoding="utf-8") == written, f"write SCHEMA to {PUBLISHED.name}"


WRONG: dict[str, tuple[str, str, str]] = {
    # name: text of the example, its replacement, the error after the file's name
    "an unknown key": ("attempts: {max: 4}", "attemps: {max: 4}", "line 7: spec.filters.attemps is wrong"),
    "another version": ("replay/v1", "replay/v2", "line 1: apiVersion is wrong"),
    "an unknown mode": ("mode: failed-only ", "mode: failed ", "line 5: spec.mode is wrong"),
    "a time without a zone": ('"2025-12-04T06:00:00Z"', '"2025-12-04T06:00:00"', "line 7: spec.filters.event_time.end"),
    "an end before the start": ("T06:00", "T00:00", "line 7: spec.filters.event_time is wrong"),
    "a last day before the first": (
        "attempts: {max: 4}",
        'days: {first: "2025-12-05", last: "2025-12-04"}',
        "line 7: spec.filters.days is wrong",
    ),
    "a status that is not replayed": ("status: [failed]", "status: [failed, pending]", "line 4: spec is wrong"),
    "a success in mode failed-only": ("status: [failed]", "status: [succeeded]", "line 4: spec is wrong"),
    "no name": ("name: goes-schema-fix, ", "", "line 3: metadata.name is wrong"),
    "the contract's own reason": ("replay_reason: incident", "replay_reason: retry", "the document is wrong"),
    "invalid YAML": ("spec:\n", "spec: [\n", "line 6 is not valid YAML"),
    "a backfill by status": ("mode: failed-only ", "mode: backfill ", "line 4: spec is wrong"),
    "no kind": ("kind: ReplaySelection\n", "", "line 1: kind is wrong"),
}


@pytest.mark.clause("RPL-02")
def test_a_wrong_file_is_refused_with_its_line_and_reason(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    for name, (before, after, expected) in WRONG.items():
        assert SPECIFIED.count(before) >= 1, name
        file.write_text(SPECIFIED.replace(before, after, 1), encoding="utf-8")
        with pytest.raises(ConfigurationError) as refused:
            load_selection(file)
        line = str(refused.value)
        assert f"{file}" in line
        assert expected in line, name
        assert "\n" not in line


def test_a_refusal_names_the_schema_and_the_line_of_the_text() -> None:
    with pytest.raises(ConfigurationError) as refused:
        selection_of({}, source="the page")
    assert str(refused.value).startswith("the page: ")
    assert str(refused.value).endswith("correct it; the JSON Schema is docs/spec/replay-selection.schema.json")
    with pytest.raises(ConfigurationError) as refused:
        parse_selection("{}", source="a file")
    assert str(refused.value).startswith("a file line 1: ")
    assert str(refused.value).endswith("correct the file; the JSON Schema is docs/spec/replay-selection.schema.json")


def test_a_selection_is_equal_after_saving_and_with_another_order_of_keys() -> None:
    first = repair("succeeded", "quarantined", labels={"incident_id": "INC-7"}, limits={"batch_size": 7})
    for form in (first.brief(), first.as_json()):
        parsed = parse_selection(yaml.safe_dump(form, sort_keys=False), source="a file")
        assert (parsed, parsed.sha256()) == (first, first.sha256())
    reordered = dict(reversed(document().items()))
    assert selection_of(reordered, source="x").sha256() == selection().sha256()
    assert selection(limits={"batch_size": 7}).sha256() != selection().sha256()


def selected_ids(stand: Stand, selected: Selection, *, limit: int = 1000) -> tuple[list[str], bool]:
    with stand.pipeline.database.snapshot() as tx:
        units, more = select(selected, registry=stand.pipeline.registry, limit=limit, tx=tx)
    return [unit.wal_id for unit in units], more


@pytest.mark.clause("RPL-02")
def test_each_filter_narrows_the_selection(stand: Stand) -> None:
    earlier = stand.bring("failed", 3)
    stand.clock.forward(3600)
    later = stand.bring("failed", 2, first=10)
    done, out = stand.bring("succeeded", first=20), stand.bring("quarantined", first=30)
    day_before = START - timedelta(days=1)
    early = stand.bring(
        "quarantined", first=50, time_range_start=day_before, time_range_end=day_before, event_time=out[0].event_time
    )
    goes = envelope(40, dataset="goes-abi")
    own_tx(stand.pipeline.ledger).ensure([goes])
    ids: Callable[[list[Envelope]], list[str]] = lambda units: [unit.wal_id for unit in units]  # noqa: E731
    halfway = "2025-12-04T00:30:00Z"
    second_at = (earlier[1].event_time).isoformat()
    cases: list[tuple[Selection, list[str]]] = [
        (selection(), ids(earlier + later)),
        (selection(filters={"error_codes": ["size_zero"]}), []),
        (selection(filters={"error_codes": ["missing_object", "size_zero"]}), ids(earlier + later)),
        (selection(filters={"event_time": {"start": second_at}}), ids(earlier[1:] + later)),
        (selection(filters={"event_time": {"end": second_at}}), ids(earlier[:1])),
        (selection(filters={"created": {"after": halfway}}), ids(later)),
        (selection(filters={"created": {"before": halfway}}), ids(earlier)),
        (selection(filters={"attempts": {"max": 0}}), []),
        (selection(filters={"attempts": {"max": 1}}), ids(earlier + later)),
        (selection(filters={"wal_ids": ids([later[1], earlier[0], *done])}), ids([earlier[0], later[1]])),
        (selection(filters={"datasets": ["goes-abi"]}), []),
        (selection(filters={"datasets": ["*"]}), ids(earlier + later)),
        (repair("succeeded", "quarantined", filters={"days": {"first": "2025-12-03"}}), ids(done + out)),
        (repair("quarantined", filters={"days": {"last": "2025-12-02"}}), ids(early)),
        (repair("quarantined", filters={"days": {"first": "2025-12-03"}}), ids(out)),
        (repair("quarantined", filters={"days": {"first": "2025-12-02", "last": "2025-12-02"}}), ids(early)),
        (repair("quarantined", filters={"days": {"last": "2025-12-02"}, "wal_ids": ids(out + early)}), ids(early)),
    ]
    for selected, expected in cases:
        assert selected_ids(stand, selected) == (expected, False), selected.spec.filters
    assert selected_ids(stand, selection(), limit=4) == (ids(earlier + later)[:4], True)
    with pytest.raises(ContractError):
        selected_ids(stand, selection(filters={"datasets": ["goes-xyz"]}))


PARTITION = DAY.isoformat()
COUNT = 3


def ingest(pipeline: Pipeline, items: list[StoredObject]) -> None:
    notify_each(pipeline, *items)
    run_pending(pipeline, "run-1")


def volumes_selection(*status: str, mode: str = "failed-only", **options: Any) -> Selection:
    """Return a selection of the volumes' units by their time."""
    month = {"start": "2025-04-01T00:00:00Z", "end": "2025-05-01T00:00:00Z"}
    options = {"allow_repair_and_replace": mode != "failed-only", **options}
    return selection(mode=mode, filters={"status": list(status), "event_time": month}, options=options)


def seen_by_readers(pipeline: Pipeline) -> dict[str, Any]:
    """Return what readers of catalog and provenance see."""
    published, edges = traces.published_once(pipeline)
    return {
        "catalog": traces.catalog_tree(Path(pipeline.settings.catalog)),
        "completed": {event: count for event, count in published.items() if event[0] == "COMPLETE"},
        "edges": edges,
    }


@pytest.mark.clause("WAL-17", "RPL-05")
def test_a_repaired_unit_equals_a_unit_that_never_failed(pipeline: Pipeline, objects: Path, tmp_path: Path) -> None:
    items = volumes(COUNT)
    put(objects, [missing(items[0]), *items[1:]])
    ingest(pipeline, [missing(items[0]), *items[1:]])
    assert traces.statuses(pipeline) == {"failed": 1, "succeeded": COUNT - 1}
    [failing] = [record for record in traces.records(pipeline).values() if record.status == "failed"]

    put(objects, items)
    engine = ReplayEngine(pipeline=pipeline)
    run = engine.start(volumes_selection("failed"), PERSON)
    assert engine.advance(run.replay_run_id).admitted is not None
    run_pending(pipeline, "run-2")
    assert engine.advance(run.replay_run_id).state is ReplayState.FINISHED

    assert traces.statuses(pipeline) == {"succeeded": COUNT}
    path = [(entry.to_status.value, entry.reason) for entry in own_tx(pipeline.ledger).history(failing.wal_id)]
    assert [status for status, _ in path] == ["pending", "in_progress", "failed", "pending", "in_progress", "succeeded"]
    assert path[3] == ("pending", "incident")
    [repaired] = [record for record in traces.records(pipeline).values() if record.wal_id == failing.wal_id]
    assert (repaired.replay_run_id, repaired.attempts) == (run.replay_run_id, 2)
    for pattern in ("openlineage/**/*.ndjson", "prov/**/*.jsonld"):
        files = Path(pipeline.settings.lineage).glob(pattern)
        assert any(run.replay_run_id in file.read_text(encoding="utf-8") for file in files), pattern

    never_failed = open_pipeline(tmp_path / "other" / "home", objects)
    ingest(never_failed, items)
    assert seen_by_readers(pipeline) == seen_by_readers(never_failed)
    assert len(seen_by_readers(pipeline)["completed"]) == COUNT
    assert traces.outcomes(pipeline) == traces.outcomes(never_failed)
    never_failed.close()


@pytest.mark.clause("OPR-24", "RPL-07")
def test_items_of_a_range_of_days_are_rebuilt_by_the_current_release(pipeline: Pipeline, objects: Path) -> None:
    items = volumes(COUNT)
    put(objects, items)
    ingest(pipeline, items)
    contract = pipeline.registry["nexrad-l2"]
    titled = contract.stac.data_asset.model_copy(update={"title": "A new title"})
    newer = replace(pipeline, registry=ContractRegistry.of([with_section(contract, "stac", data_asset=titled)]))
    days = {"first": PARTITION, "last": PARTITION}
    engine = ReplayEngine(pipeline=newer)
    wide = volumes_selection("succeeded", mode="repair-and-replace").model_dump(mode="json")
    wide["spec"]["filters"] |= {"event_time": {}, "days": days}
    run = engine.start(selection_of(wide, source="the test"), PERSON)
    assert engine.advance(run.replay_run_id).admitted is not None
    run_pending(newer, "run-2")
    assert engine.advance(run.replay_run_id).state is ReplayState.FINISHED
    documents = [json.loads(path.read_bytes()) for path in Path(pipeline.settings.catalog).rglob("*.json")]
    titles = [document["assets"]["data"]["title"] for document in documents if document["type"] == "Feature"]
    assert titles == ["A new title"] * COUNT
