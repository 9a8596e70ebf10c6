"""A seventh step declared in one class, and downstream assets of other code locations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
import yaml
from typing_extensions import override

from kfm_dagster.configs import own_folder
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.definitions import build_definitions
from kfm_dagster.ingest.chain import read_configuration, roll_back, run_chain
from kfm_dagster.ingest.node import EffectNode, Results
from kfm_dagster.ingest.nodes import MessageParse, MetadataExtract, ProvenanceEmit, Source, StacRegister, operators
from kfm_dagster.ingest.path_arrivals import NODE as PATH_ARRIVAL
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_replay import compare_run
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import STATE_MACHINE
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.integration.chain import DAY, node, put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.integration.test_run_rollback import WHY, fail

VERB, NOUN = "note_take", "notes"
KEY = dg.AssetKey(["nexrad_l2", NOUN])


@dataclass(kw_only=True)
class NoteTake(EffectNode):
    """Add each unit's id to `taken`, which represents an effect outside the database."""

    operator = VERB
    asset = NOUN
    description = "A note of each unit."
    follows = MetadataExtract
    section = "metadata"
    required_gates = (Gate.G1,)
    replayable = True

    taken: ClassVar[list[str]] = []

    @override
    def transform(self) -> list[Envelope]:
        self.taken.extend(unit.wal_id for unit in self.received)
        return list(self.received)

    @override
    def rerun(self) -> Results:
        return self.results(self.received)

    @override
    def compensate(self, *, tx: Transaction | None = None) -> Mapping[str, Any] | None:
        self.taken.clear()
        return {"notes": "gone"}


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    NoteTake.taken.clear()
    monkeypatch.setattr(StacRegister, "follows", NoteTake)


def run(pipeline: Pipeline, objects: Path, run_id: str) -> None:
    put(objects, volumes(2))
    run_chain(node(pipeline, MessageParse, run_id, source=Source.LISTING))


def test_dagster_has_the_seventh_step() -> None:
    definitions = build_definitions(Settings())
    graph = definitions.resolve_asset_graph()
    asset = graph.get(KEY)
    assert asset.assets_def.op.name == f"nexrad_l2__{VERB}"
    assert str(asset.description).startswith(NoteTake.description)
    assert asset.parent_keys == {dg.AssetKey(["nexrad_l2", "metadata"])}
    assert graph.get(dg.AssetKey(["nexrad_l2", "stac_items"])).parent_keys == {KEY}
    assert len([key for key in graph.asset_check_keys if key.asset_key == KEY]) == 1
    job = definitions.resolve_job_def("ingest")
    assert f"nexrad_l2__{VERB}" in {op.name for op in job.graph.nodes}


@pytest.mark.clause("PCS-07")
def test_a_card_can_name_every_stage_as_a_checkpoint_also_the_seventh(tmp_path: Path) -> None:
    stages = [*operators(), PATH_ARRIVAL]
    assert VERB in stages
    for file in own_folder().glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        if file.name == STATE_MACHINE:
            document["checkpoints"] = stages
        (tmp_path / file.name).write_text(yaml.safe_dump(document, sort_keys=False))
    assert read_configuration(Settings(configs_dir=tmp_path)).card.machine.checkpoints == stages


def test_a_run_executes_the_seventh_step_and_can_be_compared_with_itself(pipeline: Pipeline, objects: Path) -> None:
    checkpoints = [*pipeline.card.machine.checkpoints, VERB]
    machine = pipeline.card.machine.model_copy(update={"checkpoints": checkpoints})
    pipeline.card = pipeline.card.model_copy(update={"machine": machine})
    run(pipeline, objects, "one")
    assert len(NoteTake.taken) == 2
    assert pipeline.stages.run_states.get(f"nexrad-l2.{VERB}", "one") is not None
    compared = {stage.stage: stage.units for stage in compare_run(pipeline, dataset="nexrad-l2", run_id="one")}
    assert list(compared) == [
        f"nexrad-l2.{operator}" for operator in ("stac_register", VERB, "metadata_extract", "integrity_check")
    ]
    assert set(compared.values()) == {2}


def test_effects_of_the_seventh_step_are_rolled_back_with_the_run(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ProvenanceEmit, "transform", fail)
        with pytest.raises(StageFailedError):
            run(pipeline, objects, "one")
    assert len(NoteTake.taken) == 2
    rollback = roll_back(node(pipeline, ProvenanceEmit, "one"), WHY)
    assert list(rollback.compensated) == ["nexrad-l2.stac_register", f"nexrad-l2.{VERB}"]
    assert NoteTake.taken == []


ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/downstream-assets.md").read_text(encoding="utf-8")


FOREIGN = ("newest_scan", "scans_of_a_day")


def foreign_definitions() -> dg.Definitions:
    """Return the definitions of the page's code location, downstream of the dataset that the tests ingest."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code.replace("goes_abi", "nexrad_l2"), "weather_summaries.py", "exec", dont_inherit=True), names)
    return names["defs"]


@pytest.mark.clause("DAG-17")
def test_downstream_assets_are_requested_once_items_exist_also_for_past_days(face: Face, objects: Path) -> None:
    foreign = foreign_definitions()
    all_assets = dg.Definitions.merge(build_definitions(Settings.load()), foreign)
    selection = dg.AssetSelection.assets(*FOREIGN)

    def requested(cursor: Any) -> tuple[dict[str, set[str | None]], Any]:
        evaluated = dg.evaluate_automation_conditions(
            defs=all_assets, instance=face.instance, asset_selection=selection, cursor=cursor
        )
        partitions = {name: evaluated.get_requested_partitions(dg.AssetKey(name)) for name in FOREIGN}
        return {name: set(keys) for name, keys in partitions.items() if keys}, evaluated.cursor

    before, cursor = requested(None)
    assert before == {}
    put(objects, volumes(1))
    assert face.ingest(partition=DAY.isoformat()).success
    after, cursor = requested(cursor)
    assert after == {"newest_scan": {None}, "scans_of_a_day": {DAY.isoformat()}}
    assert requested(cursor)[0] == {}


@pytest.mark.clause("DAG-17")
def test_no_shipped_dagster_configuration_disables_a_feature_for_other_code_locations() -> None:
    instances = [
        yaml.safe_load((ROOT / name).read_text("utf-8")) for name in ("dagster.yaml", "deploy/ecs/dagster.yaml")
    ]
    values = yaml.safe_load((ROOT / "deploy/helm/values.yaml").read_text("utf-8"))
    for instance in (*instances, values["additionalInstanceConfig"]):
        off = {name for name, part in instance.items() if isinstance(part, dict) and part.get("enabled") is False}
        # Dagster's telemetry and its newsletter form.
        assert off <= {"telemetry", "nux"}
