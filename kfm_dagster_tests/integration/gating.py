"""Gates through Dagster: a day to judge, another card to judge it by, and what the checks say. No tests."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from kfm_dagster.configs import parse
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.card import STATE_MACHINE, Card, StateMachine
from kfm_dagster_tests.clocks import reopened
from kfm_dagster_tests.integration.chain import announce, put, take, volumes
from kfm_dagster_tests.integration.face import Face


def gates(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """Each gate's check by asset noun and name."""
    return {
        (check.asset_key.path[-1], check.check_name): check
        for check in result.get_asset_check_evaluations()
        if check.check_name.startswith("G")
    }


def under(pipeline: Pipeline, old: str, new: str, *more: tuple[str, str]) -> None:
    """Let a pipeline obey another card."""
    text = Card.load().files[STATE_MACHINE].decode()
    for before, after in ((old, new), *more):
        assert before in text
        text = text.replace(before, after)
    obey(pipeline, parse(text, StateMachine, source="test"))


def obey(pipeline: Pipeline, machine: StateMachine) -> None:
    """Let a pipeline obey a machine."""
    pipeline.card = pipeline.card.model_copy(update={"machine": machine})
    reopened(pipeline, "stages")


def announced(face: Face, objects: Path, count: int) -> None:
    items = volumes(count)
    put(objects, items)
    take(face.pipeline, announce([item.event() for item in items], registry=face.pipeline.registry))
