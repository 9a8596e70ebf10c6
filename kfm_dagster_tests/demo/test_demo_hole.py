"""A hole in a bucket of the demo: seen, drawn, repaired and gone, by the commands that a person types."""

from __future__ import annotations

import json
import os
import shlex
from datetime import UTC, date, datetime, time, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2
from kfm_dagster_tests.docs.console import shell
from kfm_dagster_tests.integration.test_gaps import drawn
from kfm_dagster_tests.timeouts import HANG_SECONDS

DATASET, HOURS, HOLE = "radar", 24, 5


def contract() -> str:
    """A radar's volumes, one an hour, which are listed: a day that was listed to its end is expected whole."""
    text = (resources.files("kfm_dagster.contracts") / "datasets" / "nexrad-l2.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    document["metadata"]["id"] = document["stac"]["collection"] = DATASET
    document["notifications"] = {"priority": "normal"}
    document["storage"]["buckets"] = [DATASET]
    document["storage"]["scheduled_listing"] = {"every_seconds": 86400}
    document["coverage"] = {"settles_after_seconds": 0, "products": [{"name": "volumes", "per_hour": 1}]}
    return yaml.safe_dump(document)


def volumes(folder: Path, day: date) -> list[Path]:
    """A volume for each hour of a day."""
    paths = []
    for hour in range(HOURS):
        start = datetime.combine(day, time(hour, 10), UTC)
        key, content = make_nexrad_level2(site="KTWX", start=start)
        path = folder / DATASET / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (start.timestamp(), start.timestamp()))
        paths.append(path)
    return paths


@pytest.mark.deployment
@pytest.mark.clause("BEY-05")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_hole_in_a_bucket_of_the_demo_is_seen_drawn_repaired_and_gone(tmp_path: Path) -> None:
    def typed(text: str, *, exits: int = 0, **environment: str) -> list[dict[str, Any]]:
        own = {
            "KFM_HOME": "home",
            "KFM_CONTRACTS_DIR": "contracts",
            "KFM_FEED": "whole",
            "KFM_SCHEDULED_LISTINGS": "false",
            **environment,
        }
        said = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
        done = shell(f"export {said}; {text} > out.json", tmp_path, seconds=HANG_SECONDS)
        assert done.returncode == exits, done.stdout
        return [json.loads(line) for line in (tmp_path / "out.json").read_text().splitlines()]

    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "radar.yaml").write_text(contract())
    day = datetime.now(UTC).date() - timedelta(days=1)
    absent = volumes(tmp_path / "objects", day)[HOLE]
    absent.rename(tmp_path / "absent")
    [said] = typed("kfm demo --objects objects --home home --json")
    assert said["datasets"][DATASET]["succeeded"] == HOURS - 1

    (tmp_path / "absent").rename(absent)
    bucket = {"KFM_OBJECT_ROOT": "objects"}
    [hole] = typed("kfm gaps --json --svg before.svg", **bucket)
    assert (hole["dataset"], hole["hour"], hole["kind"], hole["expected"], hole["seen"]) == (
        DATASET, f"{day}T{HOLE:02}:00Z", "hole", 1, 0,
    )  # fmt: skip
    assert drawn((tmp_path / "before.svg").read_text())[0] == 1

    reconcile = f"kfm reconcile --dataset {DATASET} --from {day} --to {day} --json"
    [row] = typed(reconcile, exits=4, **bucket)
    assert row["names"] == {"object_without_unit": [f"s3://{absent.relative_to(tmp_path / 'objects').as_posix()}"]}
    [row] = typed(f"{reconcile} --repair --reason 'it was never listed'", **bucket)
    assert (row["entered"], row["left"]) == (1, 0)

    with EmbeddedCloud() as cloud:
        cloud.provision(ContractRegistry.load())
        typed("kfm drain --json", **bucket, KFM_SENSOR_INTERVAL_SECONDS="2", **cloud.environment())
    assert typed("kfm gaps --json --svg after.svg", **bucket) == []
    assert drawn((tmp_path / "after.svg").read_text()) == (0, "Nothing is missing.")
    [closed] = typed("kfm gaps --closed --json", **bucket)
    assert (closed["hour"], closed["seen"], bool(closed["repaired_by"])) == (hole["hour"], 1, True)
    [row] = typed(reconcile, **bucket)
    assert row["names"] == {}
