"""Assets of another code location that follow stac_items, as docs/downstream-assets.md has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.definitions import build_definitions
from kfm_dagster.settings import Settings
from kfm_dagster_tests.integration.chain import DAY, put, volumes
from kfm_dagster_tests.integration.face import Face

pytestmark = pytest.mark.one_database

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/downstream-assets.md").read_text(encoding="utf-8")


FOREIGN = ("newest_scan", "scans_of_a_day")


def foreign_definitions() -> dg.Definitions:
    """The page's code location, downstream of the dataset that the tests ingest."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code.replace("goes_abi", "nexrad_l2"), "weather_summaries.py", "exec", dont_inherit=True), names)
    return names["defs"]


@pytest.mark.clause("DAG-17")
def test_foreign_assets_run_after_items_are_registered_for_past_days_too(
    face: Face, objects: Path, contracts: ContractRegistry
) -> None:
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
    assert face.execute("ingest_nexrad_l2", partition=DAY.isoformat()).success
    after, cursor = requested(cursor)
    assert after == {"newest_scan": {None}, "scans_of_a_day": {DAY.isoformat()}}
    assert requested(cursor)[0] == {}


@pytest.mark.clause("DAG-17")
def test_no_shipped_instance_switches_a_feature_off_for_its_neighbours() -> None:
    instances = [
        yaml.safe_load((ROOT / name).read_text("utf-8")) for name in ("dagster.yaml", "deploy/ecs/dagster.yaml")
    ]
    values = yaml.safe_load((ROOT / "deploy/helm/values.yaml").read_text("utf-8"))
    for instance in (*instances, values["additionalInstanceConfig"]):
        off = {name for name, part in instance.items() if isinstance(part, dict) and part.get("enabled") is False}
        # What Dagster sends to its makers, and its form about newsletters.
        assert off <= {"telemetry", "nux"}
