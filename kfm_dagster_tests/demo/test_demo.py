"""`kfm demo` over samples and over folders of objects, and commands that use the result."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo import run as demo
from kfm_dagster.demo.families import FAMILIES
from kfm_dagster.demo.run import ANY_END, SOUND, SPOILT, Expected, unexpected_ends
from kfm_dagster.demo.sample_day import MENDED
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.ingest.nodes import MessageParse
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import Delivery, DeliveryState
from kfm_dagster.ledger.rejections import IgnoredRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.docs.console import shell
from kfm_dagster_tests.factories import envelope, failed, finished
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import DAY, good, put
from kfm_dagster_tests.test_wheel import install_wheel
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

UNANNOUNCED = "SELECT DISTINCT dataset FROM nodd_wal_records WHERE topic_arn IS NULL AND sqs_message_id IS NULL"
COUNT = "SELECT count(*) FROM etl_steps WHERE batch_id IS NULL"


@pytest.mark.deployment
@pytest.mark.clause("DAG-11", "PCS-19", "PCS-22")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_demo_of_a_folder_launches_no_run_without_units_publishes_all_steps_and_can_be_exported(
    tmp_path: Path,
) -> None:
    for number in range(4):
        day = DAY + timedelta(days=number)
        put(tmp_path / "objects", [good(*sample) for sample in nexrad_level2_samples(day, 1)])
    typed = (
        "kfm demo --objects objects --home home --json && KFM_HOME=home kfm export --out release "
        "&& KFM_HOME=home kfm report --json > validate.json"
    )
    done = shell(typed, tmp_path, seconds=HANG_SECONDS, variables={"KFM_DATASETS": "nexrad-l2"})
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


def counts_of(json_text: str) -> dict[str, tuple[int, ...]]:
    """Return received, succeeded, quarantined and duplicate units of each dataset that has any of them."""
    names = ("received", "succeeded", "quarantined", "duplicates")
    datasets = json.loads(json_text)["datasets"]
    return {dataset: tuple(map(figures.get, names)) for dataset, figures in datasets.items() if any(figures.values())}


@pytest.mark.deployment
@pytest.mark.clause("OPR-14")
@pytest.mark.timeout(HANG_SECONDS + 60)
def test_a_demo_of_all_datasets_ingests_samples_of_each_through_queue_listing_daemon_and_runs(tmp_path: Path) -> None:
    typed = (
        "python -c 'import kfm_dagster; print(kfm_dagster.__file__)' > package "
        "&& kfm demo --all-datasets --home home --json > out.json"
    )
    # The commands use the wheel, installed with no other extra than `demo`.
    wheel = install_wheel(tmp_path / "wheel", "demo")
    done = shell(typed, tmp_path, seconds=HANG_SECONDS, variables=wheel)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "package").read_text(encoding="utf-8").startswith(str(tmp_path / "wheel"))
    out = (tmp_path / "out.json").read_text(encoding="utf-8")
    samples = {name: (count, count, 0, 0) for name, (_, count) in FAMILIES.items()}
    # One of the sample day's objects is announced twice, one truncated, and one missing.
    day = {"goes-abi": (13, 12, 1, 1), "nexrad-l2": (9, 8, 1, 0), "hrrr": (8, 8, 0, 0)}
    assert counts_of(out) == samples | day
    assert set(samples | day) == set(ContractRegistry.load().contracts)
    assert (json.loads(out)["rejected"], json.loads(out)["unexpected"]) == (1, [])
    items = Counter(item["properties"]["kfm:dataset"] for item in traces.items(tmp_path / "home" / "catalog").values())
    # A volume's chunks become one Item, and the final analysis of a day replaces the preliminary one.
    assert items == {name: counts[1] for name, counts in (samples | day).items()} | {"nexrad-l2-chunks": 1, "ocean": 1}
    database = Database.open(f"sqlite:///{tmp_path / 'home' / 'kfm.db'}")
    with database.engine.connect() as connection:
        unannounced = connection.exec_driver_sql(UNANNOUNCED).scalars().all()
    database.dispose()
    listed = [contract.id for contract in ContractRegistry.load() if not contract.notifications.topics]
    assert sorted(unannounced) == listed
    with closing(sqlite3.connect(tmp_path / "home" / "dagster" / "history" / "runs.db")) as runs:
        assert runs.execute("SELECT DISTINCT status FROM runs").fetchall() == [("SUCCESS",)]


def test_an_object_with_an_unexpected_outcome_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline.open(demo.demo_settings(tmp_path))
    ledger = pipeline.ledger
    units = [envelope(number) for number in range(3)]
    own_tx(ledger).ensure(units)
    first, second = own_tx(ledger).claim(dataset="nexrad-l2", partition="2025-12-03", run_id="run-1", limit=2)
    [waiting] = [unit.object_uri for unit in units if unit.wal_id not in {first.wal_id, second.wal_id}]
    own_tx(ledger).settle([finished(first), failed(second)], run_id="run-1")

    def named(*, rejected: int = 1, **ends: frozenset[Status]) -> list[str]:
        uris = {"first": first.object_uri, "second": second.object_uri, "waiting": waiting, "lost": "s3://b/lost"}
        expected = Expected(ends={uris[name]: end for name, end in ends.items()}, rejected=1)
        return list(unexpected_ends(expected, ledger, rejected=rejected))

    assert named(first=SOUND) == named(first=ANY_END) == []
    assert named(first=SPOILT) == [f"{first.object_uri}: succeeded; expected quarantined"]
    assert named(second=ANY_END) == [f"{second.object_uri}: failed (missing_object); expected quarantined or succeeded"]
    assert named(waiting=SOUND) == [f"{waiting}: pending; expected succeeded"]
    assert named(lost=ANY_END) == ["s3://b/lost: nothing is known of it; expected quarantined or succeeded"]
    assert named(rejected=0) == ["0 messages rejected; expected 1"]
    # In a second demo, after `kfm demo --mend`, the mended objects are allowed to succeed.
    monkeypatch.setattr(demo, "publish_samples", lambda _: MagicMock(objects=(), truncated="t", missing="m"))
    assert dict(demo.feed_demo(pipeline, MagicMock(), None).ends) == {"t": SPOILT, "m": SPOILT}
    (pipeline.settings.home / MENDED).touch()
    assert dict(demo.feed_demo(pipeline, MagicMock(), None).ends) == {"t": ANY_END, "m": ANY_END}
    pipeline.close()


def test_a_demo_counts_messages_that_its_home_received_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def feed_demo(pipeline: Pipeline, *_: object, **__: object) -> Expected:
        """Handle a received message at once, as the deployment does later."""
        delivery = Delivery(
            message_id=str(uuid.uuid4()),
            queue="q",
            receipt_handle="r",
            landing_sha256="a" * 64,
            state=DeliveryState.IGNORED,
            ignored=[IgnoredRecord(record_index=0, reason="sidecar", dataset="hrrr")],
        )
        own_tx(pipeline.deliveries).record([delivery])
        pipeline.deliveries.mark_deleted([delivery.message_id])
        return Expected(ends={"s3://b/k": SOUND})

    cloud = MagicMock()
    cloud.return_value.__enter__.return_value.environment.return_value = {}
    for name, instead in {"EmbeddedCloud": cloud, "Deployment": MagicMock(), "Feed": MagicMock()}.items():
        monkeypatch.setattr(demo, name, instead)
    monkeypatch.setattr(demo, "feed_demo", feed_demo)
    monkeypatch.setattr(demo, "drain", MagicMock())
    results = [
        demo.run_demo(tmp_path / "home", objects=None, timeout_seconds=1, report=MagicMock(), say=MagicMock())
        for _ in range(2)
    ]
    assert [(result.earlier, result.messages, result.ignored) for result in results] == [(0, 1, 1), (1, 2, 2)]
    assert [(result.published, len(result.unexpected)) for result in results] == [(1, 1), (1, 1)]
