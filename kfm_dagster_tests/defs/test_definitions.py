"""The resolved graph against the contracts, and what the UI tells of every part of it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.definitions import build_definitions
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card, CardError

CHAIN = {
    "envelopes": "message_parse",
    "integrity": "integrity_check",
    "metadata": "metadata_extract",
    "stac_items": "stac_register",
    "provenance": "provenance_emit",
    "ledger": "settle",
}
QUEUE = ("queue",)
BRANCH = {("nexrad-l2", "path_arrival"): ("nexrad-l2", "metadata")}
"""Beside the chain of its dataset: no ingest waits for it."""


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions(Settings())


@pytest.fixture(scope="module")
def nodes(definitions: dg.Definitions) -> dict[tuple[str, ...], Any]:
    return {tuple(node.key.path): node for node in definitions.resolve_asset_graph().asset_nodes}


@pytest.mark.clause("DAG-01")
def test_every_dataset_has_the_whole_chain_after_the_queue(
    nodes: dict[tuple[str, ...], Any], contracts: ContractRegistry
) -> None:
    expected: dict[tuple[str, ...], set[tuple[str, ...]]] = {QUEUE: set()}
    for contract in contracts:
        upstream = QUEUE
        for noun in CHAIN:
            expected[contract.id, noun] = {upstream}
            upstream = (contract.id, noun)
    expected |= {key: {upstream} for key, upstream in BRANCH.items()}
    assert {key: {tuple(parent.path) for parent in node.parent_keys} for key, node in nodes.items()} == expected


@pytest.mark.clause("DAG-01")
def test_every_asset_is_lifted_from_its_dataset_s_own_op(nodes: dict[tuple[str, ...], Any]) -> None:
    ops = {key: node.assets_def.op.name for key, node in nodes.items() if key != QUEUE}
    assert ops == {(dataset, noun): f"{dataset.replace('-', '_')}__{CHAIN.get(noun, noun)}" for dataset, noun in ops}


def test_every_asset_says_what_it_is_and_whose(nodes: dict[tuple[str, ...], Any], contracts: ContractRegistry) -> None:
    assert nodes[QUEUE].description
    for (dataset, _), node in ((key, node) for key, node in nodes.items() if key != QUEUE):
        assert contracts[dataset].metadata.title in node.description
        assert node.assets_def.op.description
        assert node.owners == contracts[dataset].metadata.owners
        assert node.group_name == dataset.replace("-", "_")
        assert node.kinds
        assert node.partitions_def == nodes["goes-abi", "envelopes"].partitions_def


@pytest.mark.clause("DAG-08")
def test_jobs_schedules_sensors_and_checks_have_descriptions(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()
    named = [
        *(job for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *repository.schedule_defs,
        *repository.sensor_defs,
        *(check for checks in definitions.asset_checks or [] for check in checks.check_specs),
    ]
    assert {"ingest", "ingest_goes_abi", "nodd_messages", "every_unit_succeeded"} <= {each.name for each in named}
    assert [each.name for each in named if not each.description] == []


@pytest.mark.clause("DAG-08")
def test_every_job_takes_an_empty_configuration(definitions: dg.Definitions, contracts: ContractRegistry) -> None:
    for name in ("ingest", *(f"ingest_{contract.id.replace('-', '_')}" for contract in contracts)):
        assert dg.validate_run_config(definitions.resolve_job_def(name), {})


def test_no_ingest_makes_what_stands_beside_the_chain(definitions: dg.Definitions) -> None:
    made = {
        name: definitions.resolve_job_def(name).asset_layer.selected_asset_keys for name in ("ingest", "path_arrival")
    }
    branch = {dg.AssetKey(list(key)) for key in BRANCH}
    assert made["ingest"] & branch == set()
    assert made["path_arrival"] == branch


@pytest.mark.parametrize("source", Source)
def test_every_source_can_be_asked_for(definitions: dg.Definitions, source: Source) -> None:
    config = {"ops": {"hrrr__message_parse": {"config": {"source": source.name, "landing": []}}}}
    assert dg.validate_run_config(definitions.resolve_job_def("ingest_hrrr"), config)


def test_a_wrong_card_refuses_the_code_location_with_file_and_line(tmp_path: Path) -> None:
    for name, text in Card.load().files.items():
        (tmp_path / name).write_bytes(text.replace(b"unlocked: restrict", b"unlocked: ignore"))
    with pytest.raises(CardError, match=r"state_machine.yaml line \d+: clock.unlocked is wrong"):
        build_definitions(Settings(configs_dir=tmp_path))


def test_assembling_opens_no_connection_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"connects to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KFM_HOME", raising=False)
    build_definitions(Settings()).resolve_asset_graph()
    assert list(tmp_path.iterdir()) == []
