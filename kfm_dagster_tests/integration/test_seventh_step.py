"""A seventh step, declared in one class: ops, assets, jobs, checks, card, run, comparison and rollback all have it."""

from __future__ import annotations

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
from kfm_dagster.ingest.chain import read_configuration, run_chain
from kfm_dagster.ingest.node import EffectNode, Results
from kfm_dagster.ingest.nodes import MessageParse, MetadataExtract, ProvenanceEmit, Source, StacRegister, operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.rollback import roll_back
from kfm_dagster.ingest.run_comparison import compare_run
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import STATE_MACHINE
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.storage.database import Transaction
from kfm_dagster_tests.integration.chain import DAY, put, volumes
from kfm_dagster_tests.integration.test_run_rollback import WHY, fail

VERB, NOUN = "note_take", "notes"
KEY = dg.AssetKey(["nexrad_l2", NOUN])


@dataclass(kw_only=True)
class NoteTake(EffectNode):
    """Note each unit in a file of its own."""

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
    first = MessageParse(
        pipeline=pipeline, dataset="nexrad-l2", partition=DAY.isoformat(), run_id=run_id, source=Source.LISTING, limit=9
    )
    run_chain(first)


def test_dagster_has_it() -> None:
    definitions = build_definitions(Settings())
    graph = definitions.resolve_asset_graph()
    node = graph.get(KEY)
    assert node.assets_def.op.name == f"nexrad_l2__{VERB}"
    assert str(node.description).startswith(NoteTake.description)
    assert node.parent_keys == {dg.AssetKey(["nexrad_l2", "metadata"])}
    assert graph.get(dg.AssetKey(["nexrad_l2", "stac_items"])).parent_keys == {KEY}
    assert len([key for key in graph.asset_check_keys if key.asset_key == KEY]) == 1
    job = definitions.resolve_job_def("ingest_nexrad_l2")
    assert f"nexrad_l2__{VERB}" in {op.name for op in job.graph.nodes}


def test_the_card_may_name_it(tmp_path: Path) -> None:
    for file in own_folder().glob("*.yaml"):
        document = yaml.safe_load(file.read_text())
        if file.name == STATE_MACHINE:
            document["checkpoints"] = list(operators())
        (tmp_path / file.name).write_text(yaml.safe_dump(document, sort_keys=False))
    assert VERB in read_configuration(Settings(configs_dir=tmp_path)).card.machine.checkpoints


def test_a_run_does_it_and_can_be_compared_with_itself(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = [*pipeline.card.machine.checkpoints, VERB]
    machine = pipeline.card.machine.model_copy(update={"checkpoints": checkpoints})
    pipeline.card = pipeline.card.model_copy(update={"machine": machine})
    run(pipeline, objects, "one")
    assert len(NoteTake.taken) == 2
    state = pipeline.stages.run_states.get(f"nexrad-l2.{VERB}", "one")
    assert state is not None
    compared = {one.stage: one.units for one in compare_run(pipeline, dataset="nexrad-l2", run_id="one")}
    assert list(compared) == [
        f"nexrad-l2.{operator}" for operator in ("stac_register", VERB, "metadata_extract", "integrity_check")
    ]
    assert set(compared.values()) == {2}


def test_what_it_did_is_taken_back_with_the_run(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ProvenanceEmit, "transform", fail)
        with pytest.raises(StageFailedError):
            run(pipeline, objects, "one")
    assert len(NoteTake.taken) == 2
    failed = ProvenanceEmit(pipeline=pipeline, dataset="nexrad-l2", partition=DAY.isoformat(), run_id="one")
    rollback = roll_back(failed, WHY)
    assert rollback is not None
    assert list(rollback.compensated) == ["nexrad-l2.stac_register", f"nexrad-l2.{VERB}"]
    assert NoteTake.taken == []
