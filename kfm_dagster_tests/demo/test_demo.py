"""`kfm demo` over a folder of objects, and what can be done with what it leaves."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kfm_dagster.demo import run as demo
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import MessageParse
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState
from kfm_dagster.ledger.ignored import IgnoredRecord
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.docs.console import shell
from kfm_dagster_tests.integration.chain import DAY, good, put
from kfm_dagster_tests.timeouts import HANG_SECONDS

COUNT = "SELECT count(*) FROM etl_steps WHERE batch_id IS NULL"


@pytest.mark.deployment
@pytest.mark.clause("DAG-11", "PCS-19", "PCS-22")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_demo_of_a_folder_launches_no_run_over_nothing_leaves_no_step_behind_and_can_be_exported(
    tmp_path: Path,
) -> None:
    for number in range(4):
        day = DAY + timedelta(days=number)
        put(tmp_path / "objects", [good(*sample) for sample in nexrad_level2_samples(day, 1)])
    typed = (
        "kfm demo --objects objects --home home --json && KFM_HOME=home kfm export --out release "
        "&& KFM_HOME=home kfm validate --json > validate.json"
    )
    done = shell(typed, tmp_path, seconds=HANG_SECONDS)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "release" / "PTN_EXPORT" / "SIGNATURE.asc").is_file()
    gates = json.loads((tmp_path / "validate.json").read_text(encoding="utf-8"))["gates"]
    assert {name: gates[name]["looked_at"] for name in ("G3", "G7")} == {"G3": 4, "G7": 4}
    database = Database.open(f"sqlite:///{tmp_path / 'home' / 'kfm.db'}")
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql(COUNT).scalar_one() == 0
        claimed = connection.exec_driver_sql(
            "SELECT validation_summary ->> '$.checks' FROM run_state WHERE dataset_id = ?",
            (f"nexrad-l2.{MessageParse.operator}",),
        ).scalars()
        assert list(claimed) == [1] * 4
    database.dispose()


def test_a_demo_knows_what_its_home_had_received_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def feed_demo(pipeline: Pipeline, *_: object, **__: object) -> dict[str, str]:
        """What the deployment does with a message that comes, at once."""
        came = Delivery(
            message_id=str(uuid.uuid4()),
            queue="q",
            receipt_handle="r",
            landing_sha256="a" * 64,
            state=DeliveryState.IGNORED,
            ignored=[IgnoredRecord(record_index=0, reason="sidecar", dataset="hrrr")],
        )
        pipeline.deliveries.record([came])
        pipeline.deliveries.mark_deleted([came.message_id])
        return {}

    cloud = MagicMock()
    cloud.return_value.__enter__.return_value.environment.return_value = {}
    for name, instead in {"EmbeddedCloud": cloud, "Deployment": MagicMock(), "Feed": MagicMock()}.items():
        monkeypatch.setattr(demo, name, instead)
    monkeypatch.setattr(demo, "feed_demo", feed_demo)
    monkeypatch.setattr(demo, "drain", MagicMock())
    told = [
        demo.run_demo(tmp_path / "home", objects=None, timeout_seconds=1, report=MagicMock(), say=MagicMock())
        for _ in range(2)
    ]
    assert [(result.earlier, result.messages, result.ignored) for result in told] == [(0, 1, 1), (1, 2, 2)]
