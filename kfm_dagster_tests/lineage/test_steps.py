"""Steps of idempotent nodes: each end is measured and published once, despite crashes."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema_rs
import pytest
import rdflib

from kfm_dagster.errors import ConfigurationError, ExitCode
from kfm_dagster.idempotent_node.node import run_node
from kfm_dagster.idempotent_node.replay import replay_intents
from kfm_dagster.idempotent_node.steps import StepMeter
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.idempotent_node.wal import IntentStatus
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.prov import SERVICE
from kfm_dagster.lineage.steps import Step, step_agents, step_events, step_nodes
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.energy import CodecarbonMeter, Energy, open_energy_meter
from kfm_dagster.telemetry.measures import Spent
from kfm_dagster_tests.idempotent_node.counting import CODE, RUN, CountLines, rebuilt
from kfm_dagster_tests.lineage.conftest import NOON
from kfm_dagster_tests.lineage.receiver import backend_at, receiving
from kfm_dagster_tests.lineage.schemas import facets, prov_json, validate, validate_event
from kfm_dagster_tests.moments import deaths, dying

SECOND_RUN = "1f0e0d0c-0b0a-4908-8706-050403020100"
MEASURED = Energy(kwh=0.25, gco2e=100.0, method="a meter, DEU")
KFM = "https://kfm.dev/ns/nodd#"

pytestmark = pytest.mark.one_database


@pytest.fixture
def nodes(database: Database) -> IdempotentNodes:
    return IdempotentNodes(database, clock=lambda: NOON)


@pytest.fixture
def node(tmp_path: Path) -> CountLines:
    text = tmp_path / "one.txt"
    text.write_text("wind\nrain\n")
    return CountLines(files=[text], folder=tmp_path / "out")


def events(root: Path) -> list[dict[str, Any]]:
    files = sorted(root.glob("steps/openlineage/*/*.ndjson"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def graph(root: Path) -> rdflib.Graph:
    merged = rdflib.Graph()
    for file in root.glob("steps/prov/*/*.jsonld"):
        merged.parse(data=file.read_text(), format="json-ld")
    return merged


def ends(root: Path) -> list[dict[str, Any]]:
    return [event["run"]["facets"]["kfmStep"] for event in events(root) if event["eventType"] != "START"]


def run_three_ways(nodes: IdempotentNodes, node: CountLines) -> None:
    """Run one step to APPLIED, one of another run to SKIPPED, and one to FAILED."""
    run_node(nodes, node, run_id=RUN, code=CODE)
    run_node(nodes, node, run_id=SECOND_RUN, code=CODE)
    node.minimum = 2
    node.reached = lambda: (_ for _ in ()).throw(OSError("No space left on device /secret/place"))
    with pytest.raises(OSError, match="No space"):
        run_node(nodes, node, run_id=RUN, code=CODE)


@pytest.mark.clause("IEN-11")
def test_every_step_is_published_once_on_both_paths_with_its_measurements(
    database: Database, lineage: Lineage, root: Path, node: CountLines, official: dict[str, Any]
) -> None:
    energy = Mock(**{"begin.return_value.return_value": MEASURED})
    nodes = IdempotentNodes(database, clock=lambda: NOON, meter=StepMeter(energy=energy, usd_per_hour=36.0))
    run_three_ways(nodes, node)
    assert lineage.publish_staged() == 4  # for each of two runs, a file on each of two paths
    assert lineage.publish_staged() == 0

    published = events(root)
    for event in published:
        validate_event(event, official)
    assert [event["eventType"] for event in published].count("START") == 3
    assert len({event["run"]["runId"] for event in published}) == 3
    by_status = {end["status"]: end for end in ends(root)}
    assert set(by_status) == {"APPLIED", "SKIPPED", "FAILED"}
    for status in ("APPLIED", "FAILED"):
        end_facet = by_status[status]
        assert (end_facet["energy_kwh"], end_facet["carbon_gco2e"], end_facet["measured_by"]) == (
            0.25,
            100.0,
            "a meter, DEU",
        )
        assert end_facet["seconds"] > 0
        assert end_facet["cost_usd"] == pytest.approx(end_facet["seconds"] * 0.01), (
            "36 dollars per hour are one cent per second"
        )
        assert end_facet["cpu_seconds"] >= 0
    assert (by_status["APPLIED"]["rows_out"], by_status["APPLIED"]["bytes_in"]) == (1, 10)
    failed = next(event for event in published if event["eventType"] == "FAIL")
    assert failed["run"]["facets"]["errorMessage"]["message"] == "OSError"
    assert "secret" not in json.dumps(published)

    for file in root.glob("steps/prov/*/*.jsonld"):
        assert prov_json(file.read_bytes())["activity"]
    read = graph(root)
    activities = set(read.subjects(rdflib.RDF.type, rdflib.URIRef(KFM + "Step")))
    assert {str(activity) for activity in activities} == {end["prov_activity_id"] for end in by_status.values()}
    [(output, by)] = list(read.subject_objects(rdflib.PROV.wasGeneratedBy))
    assert str(by) == by_status["APPLIED"]["prov_activity_id"]
    users = {str(user) for user in read.subjects(rdflib.PROV.used, output)}
    assert users == {by_status["SKIPPED"]["prov_activity_id"]}, "a skip uses the earlier output"


@pytest.mark.clause("IEN-11")
def test_documents_of_a_step_are_equal_in_every_release() -> None:
    facts = {"run_id": "r", "node": "d.n@2026-03-01", "step": "s", "status": "APPLIED", "content_hash": "h"}
    step = Step(
        **facts, wal_id=7, job="d.n", code_sha="c", started_at=NOON, ended_at=NOON, has_output=True, error="E",
        inputs=[{"uri": "s3://b/k", "checksum": "e", "size": 3}], artifact=("f.parquet", "a"),
        measures={"rows_out": 2, "bytes_out": 5}, outcome="success", validation_summary={"failed": 1, "checks": 2},
    )  # fmt: skip
    activity, run, dataset, source, file, output = step_nodes(step)
    ids = [node["id"].removeprefix("urn:uuid:")[:8] for node in (activity, run, dataset, source, file, output)]
    assert " ".join([*ids, step.openlineage_run_id[:8]]) == (
        "5b140e2a 039036e8 ca7045bc 3ac7b447 229ad794 f8695a5a 1706db31"
    )
    service, agent = step_agents([step, step])
    assert (service["id"], agent["actedOnBehalfOf"], agent["kfm:name"]) == (SERVICE, SERVICE, "d.n")
    at = "2026-03-01T12:00:00.000000Z"
    assert activity == {
        "id": step.activity_id, "type": ["Activity", "kfm:Step"], "startedAtTime": at, "endedAtTime": at,
        "used": [source["id"]], "wasAssociatedWith": [SERVICE, agent["id"]], "wasInformedBy": run["id"],
        **{f"kfm:{name}": value for name, value in facts.items()}, "kfm:code_sha": "c", "kfm:inputs": 1,
        "kfm:openlineage_run_id": step.openlineage_run_id, "kfm:rows_out": 2, "kfm:bytes_out": 5, "kfm:error": "E",
        "kfm:dataset_id": "d.n", "kfm:outcome": "success", "kfm:validation_summary": '{"checks":2,"failed":1}',
    }  # fmt: skip
    assert output == {
        "id": step.output_id, "type": ["Entity", "kfm:NodeOutput"], "kfm:content_hash": "h",
        "wasGeneratedBy": activity["id"], "wasDerivedFrom": [source["id"]], "specializationOf": dataset["id"],
        "wasAttributedTo": SERVICE, "alternateOf": file["id"],
    }  # fmt: skip
    assert source == {
        "id": source["id"], "type": ["Entity", "kfm:Content"], "kfm:uri": "s3://b/k", "kfm:checksum": "e"
    }  # fmt: skip
    start, end = step_events(step)
    assert start["inputs"] == [{"namespace": "s3://b", "name": "k"}]
    assert start["run"]["facets"]["parent"]["job"] == {"namespace": "kfm-etl", "name": "kfm.run"}
    [result, stored] = end["outputs"]
    assert (result["namespace"], result["name"], stored["namespace"]) == ("kfm-etl", "d.n", "kfm-storage")
    counts = result["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["size"], facets(end)["inputStatistics"]["size"]) == (2, 5, 3)


@pytest.mark.clause("IEN-11", "IEN-17")
def test_without_a_meter_energy_is_estimated_from_cpu_time_by_a_named_method(
    nodes: IdempotentNodes, lineage: Lineage, root: Path, node: CountLines, official: dict[str, Any]
) -> None:
    run_three_ways(nodes, node)
    lineage.publish_staged()
    for event in events(root):
        validate_event(event, official)
    by_status = {end["status"]: end for end in ends(root)}
    for end in (by_status["APPLIED"], by_status["FAILED"]):
        assert end["cpu_seconds"] > 0
        # 3.5 W for the CPU time, in kWh; 445 g of CO2e per kWh.
        assert end["energy_kwh"] == pytest.approx(end["cpu_seconds"] * 3.5 / 3_600_000)
        assert end["carbon_gco2e"] == pytest.approx(end["energy_kwh"] * 445)
        assert end["measured_by"] == (
            "assumed: 3.5 W per busy core (AWS vCPU, Cloud Carbon Footprint), "
            "445 gCO2e/kWh (world 2024, IEA Electricity 2025)"
        )
        assert "cost_usd" not in end, "no price is set"


@pytest.mark.clause("IEN-17")
def test_the_chains_steps_have_energy_by_the_settings_and_cost_if_a_price_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HOME": str(tmp_path), "WATTS_PER_CORE": "10", "GRID_GCO2E_PER_KWH": "50"}.items():
        monkeypatch.setenv(f"KFM_{name}", value)
    monkeypatch.setenv("KFM_WORKER_USD_PER_HOUR", "36")
    pipeline = Pipeline.open(Settings.load())
    meter = pipeline.nodes.meter
    meter.begin(1)
    sum(range(1_000_000))
    spent = meter.end(1)
    pipeline.close()
    assert spent.energy_kwh == pytest.approx(spent.cpu_seconds * 10 / 3_600_000)
    assert spent.carbon_gco2e == pytest.approx(spent.cpu_seconds * 10 / 3_600_000 * 50)
    assert spent.cost_usd == pytest.approx(spent.seconds * 0.01)
    assert spent.measured_by == (
        "assumed: 10 W per busy core (KFM_WATTS_PER_CORE), 50 gCO2e/kWh (KFM_GRID_GCO2E_PER_KWH)"
    )


@pytest.mark.clause("IEN-11")
def test_a_dead_workers_step_and_its_replay_are_two_ends_of_one_intent(
    nodes: IdempotentNodes, lineage: Lineage, root: Path, node: CountLines
) -> None:
    node.reached = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run_node(nodes, node, run_id=RUN, code=CODE)
    lineage.publish_staged()
    assert events(root) == [], "the worker can still be running"
    assert nodes.intents.fail_runs([RUN]) == 1
    lineage.publish_staged()
    [died] = ends(root)
    assert (died["status"], "seconds" in died) == ("FAILED", False)
    assert replay_intents(nodes, rebuilt).applied
    lineage.publish_staged()
    assert [end["status"] for end in ends(root)].count("APPLIED") == 1
    assert len(ends(root)) == 2


def test_a_failure_superseded_by_later_content_is_published_as_skipped(
    nodes: IdempotentNodes, lineage: Lineage, root: Path, node: CountLines
) -> None:
    reached = node.reached
    node.reached = lambda: (_ for _ in ()).throw(OSError)
    with pytest.raises(OSError):  # noqa: PT011, it says nothing
        run_node(nodes, node, run_id=RUN, code=CODE)
    node.reached, node.minimum = reached, 2
    run_node(nodes, node, run_id=SECOND_RUN, code=CODE)
    assert nodes.intents.give_up_overtaken() == 1
    lineage.publish_staged()
    assert sorted(end["status"] for end in ends(root)) == ["APPLIED", "FAILED", "SKIPPED"]
    skipped = next(end["prov_activity_id"] for end in ends(root) if end["status"] == "SKIPPED")
    used = set(graph(root).objects(rdflib.URIRef(skipped), rdflib.PROV.used))
    assert len(used) == 1, "only its inputs, since it has no output"


@pytest.mark.clause("IEN-11")
def test_a_crash_while_publishing_steps_loses_and_duplicates_no_step(
    database: Database, nodes: IdempotentNodes, lineage: Lineage, root: Path, node: CountLines
) -> None:
    for at, death in deaths():
        node.minimum = at
        run_node(nodes, node, run_id=RUN, code=CODE)
        with dying(database, at=death):
            lineage.publish_staged()
        assert len({end["prov_activity_id"] for end in ends(root)}) == len(ends(root)), death
    assert at > 10
    assert len(ends(root)) == at


def test_a_step_of_a_governed_dataset_has_its_public_name_and_a_count_of_many_inputs(
    database: Database, nodes: IdempotentNodes, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [tmp_path / f"{number}.txt" for number in range(101)]
    for file in inputs:
        file.write_text("wind\n")
    node = CountLines(files=inputs, folder=tmp_path / "out", name="sage-grouse.count@2026-03-01")
    run_node(nodes, node, run_id=RUN, code=CODE)
    with receiving() as receiver:
        backend = backend_at(receiver.url, monkeypatch)
        lineage = Lineage(database, str(root), public=lambda _: "governed-1", backend=backend, clock=lambda: NOON)
        lineage.publish_staged()
        assert lineage.deliver() == 2
        assert [event["eventType"] for event in receiver.taken] == ["START", "COMPLETE"]
    [end] = ends(root)
    assert end["node"] == "governed-1.count@2026-03-01"
    files = [file for file in root.rglob("*") if file.is_file()]
    assert len(files) == 2
    assert not any(b"sage-grouse" in file.read_bytes() or "sage-grouse" in file.name for file in files)
    [dataset] = events(root)[1]["inputs"]
    statistics = dataset["inputFacets"]["inputStatistics"]
    assert (statistics["fileCount"], statistics["size"]) == (101, 505)


def test_the_facet_schema_requires_a_method_if_energy_is_stated(schemas: dict[str, Any]) -> None:
    address = "https://kfm.dev/schemas/kfm-step-facet.schema.json"
    facet = {
        "_producer": "https://kfm.dev/", "_schemaURL": address, "node": "n", "step": "s",
        "status": IntentStatus.APPLIED.value, "content_hash": "a" * 64, "code_sha": "c",
        "prov_activity_id": "urn:uuid:00000000-0000-8000-8000-000000000001",
    }  # fmt: skip
    validate(address, facet, schemas)
    with pytest.raises(jsonschema_rs.ValidationError):
        validate(address, facet | {"energy_kwh": 1.0}, schemas)


def test_work_taken_over_by_another_intent_is_measured_for_that_intent() -> None:
    meter = StepMeter(usd_per_hour=1.0)
    meter.begin(1)
    meter.begin(2)
    meter.transfer(1, 2)
    assert meter.end(1) == Spent()
    assert meter.end(2).cost_usd is not None
    meter.transfer(3, 4)
    assert meter.end(4) == Spent()


@pytest.mark.clause("IEN-11")
def test_codecarbon_measures_this_process_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("codecarbon")
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=AssertionError("a request")))
    meter = open_energy_meter("USA/virginia")
    meter.prepare()
    end = meter.begin()
    assert meter.begin() is None, "a second measurement would count the same energy twice"
    sum(range(2_000_000))
    measured = end()
    assert measured.kwh > 0
    assert measured.gco2e > 0
    assert measured.method.endswith("USA/virginia")
    assert meter.begin() is not None


def test_a_pipeline_measures_energy_on_a_known_power_grid_and_refuses_others_before_it_creates_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("codecarbon")
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "home"))
    for grid in [
        "ZZZ", "US", "usa", " ", "USA ", "\nUSA", "World", "virginia", "USA virginia", "USA/", "USA//", "USA/nowhere",
        "USA/Virginia", "USA/virginia/", "USA/_unit", "usa/virginia", "DEU/virginia", "/", "/virginia",
    ]:  # fmt: skip
        monkeypatch.setenv("KFM_ENERGY_GRID", grid)
        with pytest.raises(ConfigurationError) as refusal:
            Pipeline.open(Settings.load())
        assert str(refusal.value) == (
            f"codecarbon has no figures for the grid of KFM_ENERGY_GRID; observed {grid!r}; "
            "expected an ISO 3166-1 alpha-3 code, such as DEU, or a state, such as USA/virginia; "
            "next: correct or unset KFM_ENERGY_GRID"
        )
        assert refusal.value.exit_code is ExitCode.USAGE
        assert list(tmp_path.iterdir()) == []
    for grid in ("DEU", "USA", "USA/virginia", "USA/new york", "USA/district of columbia"):
        monkeypatch.setenv("KFM_ENERGY_GRID", grid)
        with closing(Pipeline.open(Settings.load())) as pipeline:
            assert pipeline.nodes.meter._energy is pipeline.energy
            assert isinstance(pipeline.energy, CodecarbonMeter)
            assert pipeline.energy._method.endswith(f", {grid}")


def test_a_broken_meter_fails_no_step_and_a_missing_meter_is_refused(
    database: Database, lineage: Lineage, root: Path, node: CountLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    codecarbon = pytest.importorskip("codecarbon")
    meter = StepMeter(energy=open_energy_meter("DEU"))
    monkeypatch.setattr(codecarbon, "OfflineEmissionsTracker", lambda **_: None)
    run_node(IdempotentNodes(database, clock=lambda: NOON, meter=meter), node, run_id=RUN, code=CODE)
    lineage.publish_staged()
    [end] = ends(root)
    assert end["status"] == "APPLIED"
    assert end["measured_by"].startswith("assumed: ")
    monkeypatch.setattr("kfm_dagster.telemetry.energy.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'kfm-dagster\[energy\]'"):
        open_energy_meter("DEU")
    assert open_energy_meter("") is None
