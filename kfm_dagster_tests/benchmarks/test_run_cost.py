"""What gates and audit take of a run is found, and told as shares of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.run_cost import run_cost
from kfm_dagster.ingest.node import ChainNode
from kfm_dagster.stages.gates.verdict import Verdict
from kfm_dagster_tests.integration.chain import DAY, open_pipeline, put, volumes

UNITS = 3
SLEEP_SECONDS = 0.02


def test_a_run_is_measured_with_its_gates_and_its_audit(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "objects", volumes(UNITS))
    pipeline = open_pipeline(tmp_path / "home", tmp_path / "objects", url=database_url)
    asked: list[str] = []
    gates = ChainNode.gates

    def slowly(self: ChainNode, *given: Any, of: str) -> Sequence[Verdict]:
        asked.append(of)
        time.sleep(SLEEP_SECONDS)
        return gates(self, *given, of=of)

    monkeypatch.setattr(ChainNode, "gates", slowly)
    cost = run_cost(pipeline, dataset="nexrad-l2", day=DAY, units=UNITS)
    pipeline.close()
    assert cost.units == UNITS
    whole, parts = cost.whole.seconds or 0, {name: spent.seconds or 0 for name, spent in cost.parts.items()}
    assert len(asked) * SLEEP_SECONDS <= parts["gates"] < whole
    assert 0 < parts["audit"] < whole - parts["gates"]
