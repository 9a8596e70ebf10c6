"""A whole deployment whose runs and daemon die by SIGKILL: nothing is lost, nothing is doubled."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pystac
import pytest
import rdflib

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.embedded.cloud import EmbeddedCloud
from kfm_dagster.embedded.demo import environment
from kfm_dagster.embedded.deployment import Deployment
from kfm_dagster.embedded.drain import drain
from kfm_dagster.embedded.feed import Feed, FeedObject
from kfm_dagster.ingest.nodes import Operator
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.progress import Progress
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.settings import Settings

FIRST_DAY = date(2025, 4, 1)
UNITS_PER_DAY = 4
DEATHS = [
    (Operator.MESSAGE_PARSE, "committing"),
    (Operator.INTEGRITY_CHECK, "computed"),
    (Operator.METADATA_EXTRACT, "computed"),
    (Operator.STAC_REGISTER, "computed"),
    (Operator.PROVENANCE_EMIT, "computed"),
    (Operator.SETTLE, "committing"),
    (Operator.SETTLE, "committed"),
]
"""One day each; the day's first run dies there."""


@pytest.fixture
def published(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A cloud whose queue announces some units of each day; its environment."""
    registry = ContractRegistry.load()
    with EmbeddedCloud() as cloud:
        cloud.provision(registry)
        feed = Feed(cloud, registry)
        events = [
            feed.deliver(FeedObject(bucket=bucket, key=key, content=content))
            for number in range(len(DEATHS))
            for bucket, key, content in nexrad_level2_samples(FIRST_DAY + timedelta(days=number), UNITS_PER_DAY)
        ]
        feed.announce([*events, *events[:3]])
        yield dict(cloud.environment())


@pytest.mark.deployment
@pytest.mark.clause("DAG-10", "WAL-08", "BEY-03")
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")  # rdflib's JSON-LD parser
def test_deaths_in_every_operator_and_of_the_daemon_lose_and_double_nothing(
    published: dict[str, str], database_url: str, tmp_path: Path
) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    for number, (operator, point) in enumerate(DEATHS):
        (deaths / (FIRST_DAY + timedelta(days=number)).isoformat()).write_text(f"{operator} {point}")
    home = tmp_path / "home"
    variables = published | {
        "KFM_HOME": str(home),
        "KFM_WAL_DSN": database_url,
        "KFM_SENSOR_INTERVAL_SECONDS": "1",
        "KFM_RETRY_BACKOFF_SECONDS": "1",
        "KFM_TEST_DEATHS": str(deaths),
    }
    with environment(variables):
        pipeline = Pipeline.open(Settings.load())
        module = "kfm_dagster_tests.integration.killing_definitions"
        with Deployment(home, environment={}, module=module) as deployment:
            daemon_killed = False

            def watch(_: Progress) -> None:
                nonlocal daemon_killed
                balance = pipeline.deliveries.conservation()
                assert (balance.residual_units, balance.residual_messages) == (0, 0)
                if not daemon_killed and len(list(deaths.iterdir())) <= len(DEATHS) // 2:
                    deployment.kill("daemon")
                    deployment.start_daemon()
                    daemon_killed = True

            drain(deployment, pipeline, timeout_seconds=600, report=watch)
        assert daemon_killed
        assert list(deaths.iterdir()) == []
        _assert_whole(pipeline, home)
        pipeline.close()


def _assert_whole(pipeline: Pipeline, home: Path) -> None:
    units = UNITS_PER_DAY * len(DEATHS)
    counts = pipeline.ledger.counts()["nexrad-l2"]
    assert {status: count for status, count in counts.items() if count} == {Status.SUCCEEDED: units}
    records = pipeline.ledger.find(limit=1000)
    # A day that died after its claim was given back once; one that died before it, or after its settlement, was not.
    attempts = Counter(record.attempts for record in records)
    assert attempts == {1: 2 * UNITS_PER_DAY, 2: (len(DEATHS) - 2) * UNITS_PER_DAY}

    catalog = pystac.Catalog.from_file(str(home / "catalog" / "catalog.json"))
    items = Counter(item.id for item in catalog.get_items(recursive=True))
    assert items == Counter({record.stac_item_id: 1 for record in records})

    events = Counter(
        (json.loads(line)["run"]["runId"], json.loads(line)["eventType"])
        for file in (home / "lineage" / "openlineage").rglob("*.ndjson")
        for line in file.read_text().splitlines()
    )
    assert len(events) == 2 * units
    assert set(events.values()) == {1}
    graph = rdflib.Graph()
    activities = 0
    for file in (home / "lineage" / "prov").rglob("*.jsonld"):
        one = rdflib.Graph().parse(file)
        activities += len(set(one.subjects(rdflib.RDF.type, rdflib.PROV.Activity)))
        graph += one
    assert activities == units
    assert len(set(graph.subjects(rdflib.RDF.type, rdflib.PROV.Activity))) == units

    depth = pipeline.queue.depth()
    assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0)
