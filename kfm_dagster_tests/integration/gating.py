"""Helpers for tests of gates in Dagster: change contracts, cards and readers; read the checks' results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from kfm_dagster.configs import parse
from kfm_dagster.ingest import nodes
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE, Card, ReplayPlan, StateMachine
from kfm_dagster_tests.clocks import reopened
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.integration.face import Face


def gates(result: dg.ExecuteInProcessResult) -> dict[tuple[str, str], dg.AssetCheckEvaluation]:
    """Return each gate's check, by the last part of the asset's key and the check's name."""
    return {
        (check.asset_key.path[-1], check.check_name): check
        for check in result.get_asset_check_evaluations()
        if check.check_name.startswith("G")
    }


def under(pipeline: Pipeline, old: str, new: str, *more: tuple[str, str]) -> None:
    """Give a pipeline a card in which each old text is replaced by the new one."""
    texts = {name: content.decode() for name, content in Card.load().files.items()}
    for before, after in ((old, new), *more):
        [name] = [name for name in texts if before in texts[name]]
        texts[name] = texts[name].replace(before, after)
    pipeline.card = pipeline.card.model_copy(
        update={
            "machine": parse(texts[STATE_MACHINE], StateMachine, source=STATE_MACHINE),
            "replay_plan": parse(texts[REPLAY_PLAN], ReplayPlan, source=REPLAY_PLAN),
            "files": {name: text.encode() for name, text in texts.items()},
        }
    )
    reopened(pipeline, "stages")


def change_contract(face: Face, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change fields of `metadata_extract` in the contract of nexrad-l2."""
    changed: Any = with_section(face.pipeline.registry["nexrad-l2"], "metadata_extract", **changes)
    monkeypatch.setitem(face.pipeline.registry.contracts, "nexrad-l2", changed)


def alter_metadata(patch: pytest.MonkeyPatch, of: Callable[[Any], bool], **properties: Any) -> None:
    """Make the reader return other properties for units for which `of` is true; None removes a property."""
    plain = nodes.metadata_extract

    def otherwise(unit: Any, **parts: Any) -> Any:
        metadata = plain(unit, **parts)
        if not of(unit):
            return metadata
        changed = {**metadata.stac_properties, **properties}
        return replace(metadata, stac_properties={name: value for name, value in changed.items() if value is not None})

    patch.setattr(nodes, "metadata_extract", otherwise)


@contextmanager
def beyond_the_pole(name: str) -> Iterator[None]:
    """Give one volume's site an impossible latitude, so that G4 rejects the volume's unit."""
    with pytest.MonkeyPatch.context() as patch:
        alter_metadata(patch, lambda unit: unit.object_uri.endswith(name), **{"nexrad:latitude": 91.0})
        yield
