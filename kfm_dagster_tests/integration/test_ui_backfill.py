"""A backfill started in Dagster's UI and executed by its daemon."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.deployment.local import Deployment, free_port
from kfm_dagster.ingest.nodes import chain
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.integration.chain import DAY, good, put
from kfm_dagster_tests.timeouts import HANG_SECONDS, until

DAYS = [DAY + timedelta(days=number) for number in range(4)]
EMPTY = {DAYS[1], DAYS[3]}
LAUNCH = """mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
STATUS = """query($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status error { message } } } }"""
SHOWN = """query($key: AssetKeyInput!, $days: [String!]) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionStats { numMaterialized numFailed }
  assetMaterializations(partitions: $days) { partition metadataEntries { label ... on TextMetadataEntry { text } } } } }
  runsOrError(filter: {tags: [{key: "kfm/empty.nexrad-l2", value: "yes"}]}) { ... on Runs {
  results { tags { key value } } } } }"""
ENDED = {"COMPLETED_SUCCESS", "COMPLETED_FAILED", "COMPLETED", "FAILED", "CANCELED"}


def graphql(deployment: Deployment, query: str, **variables: Any) -> dict[str, Any]:
    """Return the data of the web server's answer to a query."""
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{deployment.url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = json.load(answer)
    assert "errors" not in content, content
    return dict(content["data"])


def final_state(deployment: Deployment, backfill: str) -> dict[str, Any]:
    """Wait for the end of a backfill; return its status and error."""

    def ended() -> dict[str, Any] | None:
        state = graphql(deployment, STATUS, id=backfill)["partitionBackfillOrError"]
        return dict(state) if state["status"] in ENDED else None

    return until(ended)


@pytest.mark.deployment
@pytest.mark.clause("DAG-11", "DAG-05")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_ui_backfill_over_days_without_objects_succeeds_and_shows_these_days_as_empty(tmp_path: Path) -> None:
    """Since 1.13.22 Dagster fails backfills of unmaterialised days (dagster-io/dagster#34219)."""
    for day in DAYS:
        if day not in EMPTY:
            put(tmp_path / "objects", [good(*sample) for sample in nexrad_level2_samples(day, 1)])
    home = tmp_path / "home"
    migrated_sqlite(home / "kfm.db")
    environment = {
        "KFM_DATASETS": "nexrad-l2",
        "KFM_OBJECT_ROOT": str(tmp_path / "objects"),
        "KFM_SENSOR_INTERVAL_SECONDS": "600",
    }
    with Deployment(home, environment=environment, web_port=free_port()) as deployment:
        keys = [{"path": ["nexrad_l2", node.asset]} for node in chain()]
        names = [day.isoformat() for day in DAYS]
        params = {"assetSelection": keys, "partitionNames": names}
        launched = graphql(deployment, LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        # The web server is behind the guard (defs/test_web_server.py).
        foreign = urllib.request.Request(f"{deployment.url}/server_info", headers={"Origin": "https://evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign, timeout=HANG_SECONDS)
        state = final_state(deployment, launched["backfillId"])
        answer = graphql(deployment, SHOWN, key=keys[-1], days=names)
    assert (state["status"], state["error"]) == ("COMPLETED_SUCCESS", None)
    days_shown = {
        materialisation["partition"]: entry["text"]
        for materialisation in answer["assetNodeOrError"]["assetMaterializations"]
        for entry in materialisation["metadataEntries"]
        if entry["label"] == "day"
    }
    empty, full = "empty: nothing of this day is known", "1 of 1 succeeded"
    assert days_shown == {day.isoformat(): empty if day in EMPTY else full for day in DAYS}
    tagged = [{tag["key"]: tag["value"] for tag in run["tags"]} for run in answer["runsOrError"]["results"]]
    assert {run["dagster/partition"] for run in tagged} == {day.isoformat() for day in EMPTY}
