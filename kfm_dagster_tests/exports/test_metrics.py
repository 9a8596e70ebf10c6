"""The metrics and the files for Prometheus and Grafana, checked by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kfm_dagster.console.serving import QueueWatch
from kfm_dagster.contracts.envelope import Lane
from kfm_dagster.contracts.issues import ProvenanceIssue
from kfm_dagster.deployment.local import free_port
from kfm_dagster.errors import QueueUnavailableError
from kfm_dagster.exports.metrics import QUANTILES, exposition
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.lineage.unit import LineagePath
from kfm_dagster.notifications.messages import QueueDepth
from kfm_dagster.recovery.replay.limits import QUEUE_AGE_SLO_SECONDS
from kfm_dagster.telemetry.totals import PATHS, Total, count, kept_totals
from kfm_dagster_tests import timeouts
from kfm_dagster_tests.commands import SERVE
from kfm_dagster_tests.conftest import AWS
from kfm_dagster_tests.factories import envelope, repeat_units
from kfm_dagster_tests.integration import chain
from kfm_dagster_tests.programs import printed_by, program, running
from kfm_dagster_tests.recovery.replays import another_result
from kfm_dagster_tests.transactions import own_tx

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "rules.yaml"
RULES_TESTS = sorted(DEPLOY.glob("*_test.yaml"))
DASHBOARD = ROOT / "deploy" / "grafana" / "noaa-nodd-ingestion-core.json"
DOCUMENT = ROOT.parent / "shared" / "spec" / "telemetry.md"
"""The specification. It is outside the repository, so it can be missing."""
DATASET = "nexrad-l2"
SEVERITIES = {
    "NODD-Q-AGE-CRIT": "critical",
    "NODD-Q-DEPTH-WARN": "warning",
    "NODD-Q-DEPTH-CRIT": "critical",
    "NODD-DLQ-RATE-CRIT": "critical",
    "NODD-VAL-ERR-WARN": "warning",
    "NODD-REPLAY-MISMATCH-CRIT": "critical",
    "NODD-REPLAY-VOLUME-WARN": "warning",
    "NODD-LAT-P90-CRIT": "critical",
    "NODD-LAT-TREND-WARN": "warning",
    "NODD-TEL-SILENCE-CRIT": "critical",
    "NODD-TEL-METRIC-MISS-WARN": "warning",
    "NODD-ENERGY-PER-UNIT-WARN": "info",
    "NODD-LINEAGE-AGE-WARN": "warning",
}
"""Severity by alert, for the alerts of the specification and for our own."""
OWN_ALERTS = {"NODD-LINEAGE-AGE-WARN"}
NAME = re.compile(r"\b(?:nodd_sns_\w+|kfm_run_state_\w+|nodd:[\w:]+)")
VARIABLES = {
    "$env": ".*",
    "$dataset": ".*",
    "$queue": ".*",
    "$__rate_interval": "5m",
    "$__range": "1h",
    "$usd_per_kwh": "0.1",
}


binary = partial(program, required_by="KFM_REQUIRE_PROMETHEUS")
"""Debian's package `prometheus` has the programs."""


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def queries() -> list[str]:
    """Return every query of the dashboard, with its variables replaced by values."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable, value in VARIABLES.items():
        expressions = [expr.replace(variable, value) for expr in expressions]
    return expressions


def promtool(*arguments: str | Path) -> None:
    printed_by(binary("promtool"), *arguments)


@pytest.mark.clause("TEL-04")
def test_the_alerts_have_the_ids_and_severities_of_the_document() -> None:
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule} == SEVERITIES
    for rule in rules():
        if "alert" in rule:
            assert (ROOT / rule["annotations"]["runbook"]).is_file()
    if DOCUMENT.exists():
        table = DOCUMENT.read_text(encoding="utf-8").partition("## SLOs")[2]
        # The document abbreviates the second alert of a pair as "/ -CRIT".
        assert set(re.findall(r"NODD-[A-Z0-9-]+", table)) == set(SEVERITIES) - OWN_ALERTS - {"NODD-Q-DEPTH-CRIT"}
    assert set(SEVERITIES) == set(re.findall(r"NODD-[A-Z0-9-]+", PAGE.read_text(encoding="utf-8")))


@pytest.mark.clause("TEL-04")
def test_promtool_accepts_the_files_and_an_alert_fires_above_its_threshold_and_not_at_the_threshold() -> None:
    promtool("check", "config", DEPLOY / "prometheus.yml")
    promtool("check", "rules", RULES)
    promtool("test", "rules", *RULES_TESTS)


@pytest.mark.clause("TEL-04")
def test_every_alert_has_a_test_above_and_at_its_threshold() -> None:
    unit_tests = "\n".join(path.read_text(encoding="utf-8") for path in RULES_TESTS)
    for alert in SEVERITIES:
        checks = [line for line in unit_tests.splitlines() if f'alertname="{alert}"' in line]
        assert any('alertstate="firing"' in line and "value: 1" in line for line in checks), alert
        assert any("value: 0" in line or alert == "NODD-REPLAY-VOLUME-WARN" for line in checks), alert


def test_replays_pause_at_the_queue_age_at_which_the_alert_fires() -> None:
    [alert] = [rule for rule in rules() if rule.get("alert") == "NODD-Q-AGE-CRIT"]
    assert alert["expr"] == f"nodd:queue_age_seconds:p90 > {QUEUE_AGE_SLO_SECONDS:g}"


@pytest.mark.one_database
@pytest.mark.clause("TEL-04", "TEL-05")
def test_rules_and_dashboard_name_only_exposed_metrics(ledger: Pipeline) -> None:
    exposed = set(re.findall(r"^# TYPE (\S+) ", exposition(ledger).decode(), re.MULTILINE))
    known = exposed | {f"{name}_{part}" for name in exposed for part in ("bucket", "sum", "count")}
    known |= {rule["record"] for rule in rules() if "record" in rule}
    for expr in (*(rule["expr"] for rule in rules()), *queries()):
        named = set(NAME.findall(expr))
        assert named, expr
        assert named <= known, (expr, named - known)


@pytest.mark.clause("TEL-05")
def test_the_dashboard_has_the_document_s_title_variables_and_groups() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert dashboard["title"] == "NOAA NODD Ingestion - Core"
    assert {"env", "dataset", "queue"} <= {variable["name"] for variable in dashboard["templating"]["list"]}
    rows = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows == ["Ingest health", "Queue health", "Failures, DLQ and replay", "Energy, carbon and cost"]
    drawn = {
        panel["title"]: [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    }
    assert drawn["Latency from event to Item"] == [None, 300]
    assert drawn["Queue age"] == [None, 90]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.fixture
def ask(ledger: Pipeline, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Yield a function that queries a real Prometheus, which scrapes `kfm console` and evaluates the rules."""
    prometheus, console, port = binary("prometheus"), free_port(), free_port()
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{console}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    # The queue is at a closed port of the loopback interface.
    served = {"PYTHONPATH": os.pathsep.join(sys.path), **AWS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    served |= {"KFM_HOME": str(ledger.settings.home), "KFM_WAL_DSN": ledger.settings.database_url}
    scraping = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def query(path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    with (
        running([sys.executable, "-c", SERVE, "console", "--port", str(console)], tmp_path / "console.log", **served),
        running(scraping, tmp_path / "prometheus.log"),
    ):
        yield query


def until(ask: Callable[..., Any], expr: str) -> list[Any]:
    """Query an expression until it has a result; retry while Prometheus does not answer."""

    def result() -> Any:
        with suppress(OSError):  # not listening yet
            return ask("query", query=expr)["result"]

    return list(timeouts.until(result, lambda: f"{expr} has no result"))


@pytest.mark.one_database
@pytest.mark.clause("TEL-01", "TEL-03", "TEL-04", "TEL-05")
def test_a_prometheus_fires_an_alert_and_answers_every_query_of_the_dashboard(
    ask: Callable[..., Any], ledger: Pipeline
) -> None:
    until(ask, f'nodd_sns_wal_records_total{{dataset="{DATASET}",status="succeeded"}} == 2')
    # Prometheus shows the rise of a counter only after an earlier sample of it.
    until(ask, f'count_over_time(nodd_sns_replay_mismatch_total{{dataset="{DATASET}"}}[1m]) >= 2')
    assert [alert for alert in ask("alerts")["alerts"] if alert["state"] == "firing"] == []

    [record, _] = own_tx(ledger.ledger).find(limit=2)
    repeat_units(ledger.ledger, record.wal_id)
    claimed = own_tx(ledger.ledger).claim(dataset=DATASET, partition=chain.DAY.isoformat(), run_id="again", limit=1)
    assert own_tx(ledger.ledger).settle([another_result(unit) for unit in claimed], run_id="again").mismatched
    [firing] = until(ask, 'ALERTS{alertname="NODD-REPLAY-MISMATCH-CRIT",alertstate="firing"}')
    assert (firing["metric"]["dataset"], firing["metric"]["severity"]) == (DATASET, "critical")
    [level] = until(ask, "nodd:replay_determinism:1d < 1")
    assert level["metric"]["job"] == "kfm_dagster"
    assert until(ask, "nodd:queue_age_seconds:p90")

    for expr in queries():
        result = ask("query", query=expr)["result"]
        # This deployment has no queue, and a recording rule has perhaps no samples yet.
        if "nodd:" not in expr and "queue_depth" not in expr:
            assert result, expr


PAGE = ROOT / "docs" / "metrics.md"
OWN_LABELS = {"le", "quantile"}
"""Labels that histograms and quantiles have in addition to the documented labels."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def pipeline(database_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    """Open a pipeline without runs, unlike the fixture of conftest.py, which has two runs."""
    opened = chain.open_pipeline(tmp_path / "home", tmp_path / "objects", url=database_url)
    yield opened
    opened.close()


def ingest(pipeline: Pipeline, items: list[chain.StoredObject], objects: Path) -> None:
    """Announce objects 40 s after their event, and run the chain over them."""
    chain.put(objects, items)
    event_time = pipeline.clock() - timedelta(seconds=40)
    events = [item.event(event_time=event_time) for item in items]
    chain.take(pipeline, *(chain.announce([event], registry=pipeline.registry) for event in events))
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), "run", Source.LEDGER)


@pytest.fixture
def ledger(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    """Ingest two volumes."""
    ingest(pipeline, chain.volumes(2), tmp_path / "objects")
    return pipeline


def values(pipeline: Pipeline, depths: dict[str, int] | None = None) -> Samples:
    """Return every sample, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition(pipeline, depths or {}).decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def listed(text: str) -> dict[str, frozenset[str]]:
    """Return a text's metrics (`name{label,label}`) by Prometheus's names, with their labels."""
    metrics = re.findall(r"`((?:nodd_sns|kfm_run_state)\.[a-z0-9_]+)(?:\{([a-z_,]*)\})?`", text)
    return {name.replace(".", "_"): frozenset(filter(None, labels.split(","))) for name, labels in metrics}


def exposed(pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """Return the exposed metrics with the labels of their samples."""
    text = exposition(pipeline, {"q": 1}).decode()
    names = re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {
        name: frozenset(label for sample in families[name.removesuffix("_total")].samples for label in sample.labels)
        - OWN_LABELS
        for name in names
    }


@pytest.mark.clause("TEL-01")
@pytest.mark.one_database
def test_every_specified_metric_is_exposed_with_its_labels_and_documented(pipeline: Pipeline, tmp_path: Path) -> None:
    # An empty ledger exposes every metric; its counters begin at 0, so that their first increment is a rise.
    assert exposed(pipeline).keys() == listed(PAGE.read_text(encoding="utf-8")).keys()
    samples = values(pipeline)
    assert value(samples, "nodd_sns_validation_errors_total", dataset="hrrr", env="dev", error_type="bad_magic") == 0
    assert value(samples, "nodd_sns_energy_kwh_total", env="dev") == 0
    ingest(pipeline, chain.volumes(1), tmp_path / "objects")
    node = f"{DATASET}.integrity_check"
    assert ("kfm_run_state_skips_total", frozenset({("dataset_id", node)})) not in values(pipeline)
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), "run", Source.LEDGER)
    # A node without work is counted as a skip.
    samples = values(pipeline)
    assert value(samples, "kfm_run_state_skips_total", dataset_id=node) == 1
    assert value(samples, "nodd_sns_integrity_checks_total", dataset=DATASET, status="ok") == 1
    assert exposed(pipeline) == listed(PAGE.read_text(encoding="utf-8"))
    if DOCUMENT.exists():
        document = listed(DOCUMENT.read_text(encoding="utf-8").partition("## Spans")[0])
        assert len(document) > 20
        own = {name: labels for name, labels in exposed(pipeline).items() if name.startswith("nodd_sns_lineage_")}
        assert listed(PAGE.read_text(encoding="utf-8")) == document | own


def test_each_lineage_path_has_an_issue() -> None:
    assert set(PATHS) == set(ProvenanceIssue)
    assert set(PATHS.values()) == {path.value for path in LineagePath}


@pytest.mark.clause("TEL-01", "TEL-03")
def test_succeeded_and_failed_units_are_counted_by_the_result_of_each_operator(
    pipeline: Pipeline, database_url: str, tmp_path: Path
) -> None:
    good, lost = chain.volumes(2), chain.missing(chain.volumes(3)[2])
    ingest(pipeline, [*good, lost], tmp_path / "objects")
    samples = values(pipeline)
    size = sum(len(item.announced) for item in good)
    expected = {
        ("messages_parsed_total", "status=parsed"): 3,
        ("integrity_checks_total", "status=ok"): 2,
        ("integrity_checks_total", "status=failed"): 1,
        ("integrity_failures_total", "issue=missing_object"): 1,
        ("metadata_extract_total", "status=ok"): 2,
        ("metadata_extract_total", "status=failed"): 0,
        ("stac_writes_total", "outcome=created"): 2,
        ("stac_writes_total", "outcome=failed"): 0,
        ("stac_write_latency_seconds_count", ""): 1,
        ("provenance_emits_total", "status=ok"): 2,
        ("provenance_failures_total", "path=prov"): 0,
        ("validation_errors_total", "env=dev error_type=missing_object"): 1,
        ("bytes_ingested_total", "env=dev"): size,
        ("ingest_latency_seconds_bucket", "env=dev le=30"): 0,
        ("ingest_latency_seconds_bucket", "env=dev le=60"): 2,
        ("ingest_latency_seconds_sum", "env=dev"): 80,
    }
    assert {
        (name, labels): value(
            samples, f"nodd_sns_{name}", dataset=DATASET, **dict(label.split("=") for label in labels.split())
        )
        for name, labels in expected
    } == expected
    assert value(samples, "nodd_sns_energy_kwh_total", env="dev") > 0
    assert value(samples, "nodd_sns_carbon_gco2e_total", env="dev") > 0
    assert (
        value(samples, "kfm_run_state_records_total", dataset_id=f"{DATASET}.metadata_extract", outcome="success") == 1
    )
    # Another process has the same values.
    again = chain.open_pipeline(tmp_path / "home", None, url=database_url)
    assert values(again) == samples
    again.close()


@pytest.mark.clause("TEL-01")
@pytest.mark.one_database
def test_a_message_that_cannot_be_parsed_is_counted_by_its_reason(pipeline: Pipeline) -> None:
    chain.take(
        pipeline, chain.raw_message("{", name="broken"), chain.raw_message('{"Type": "Notification"}', name="another")
    )
    samples = values(pipeline)
    failures = "nodd_sns_parse_failures_total"
    reasons = [amount for (name, _), amount in samples.items() if name == failures and amount]
    assert reasons == [1, 1]
    assert value(samples, "nodd_sns_parse_failures_total", reason="malformed_json") == 1
    assert value(samples, "nodd_sns_messages_parsed_total", dataset="", status="rejected") == 2


@pytest.mark.one_database
def test_units_of_the_bulk_lane_do_not_count_in_the_latency(pipeline: Pipeline, tmp_path: Path) -> None:
    chain.put(tmp_path / "objects", chain.volumes(1))
    chain.run_chain(pipeline, DATASET, chain.DAY.isoformat(), "run")  # from a listing, in the bulk lane
    samples = values(pipeline)
    assert value(samples, "nodd_sns_stac_writes_total", dataset=DATASET, outcome="created") == 1
    assert value(samples, "nodd_sns_ingest_latency_seconds_count", dataset=DATASET, env="dev") == 0


@pytest.mark.one_database
def test_an_attempt_that_lost_its_claim_is_counted_as_a_conflict(pipeline: Pipeline, tmp_path: Path) -> None:
    items = chain.volumes(2)
    chain.put(tmp_path / "objects", items)
    chain.take(pipeline, chain.announce([item.event() for item in items], registry=pipeline.registry))
    claimed = own_tx(pipeline.ledger).claim(dataset=DATASET, partition=chain.DAY.isoformat(), run_id="one", limit=2)
    own_tx(pipeline.ledger).release_lost(run_ids=["one"])
    assert len(own_tx(pipeline.ledger).settle(claimed, run_id="one").lost) == 2
    assert value(values(pipeline), "nodd_sns_wal_conflicts_total", dataset=DATASET) == 2


@pytest.mark.clause("TEL-03")
def test_counters_are_compacted_and_a_rolled_back_increment_is_not_counted(pipeline: Pipeline) -> None:
    with suppress(ZeroDivisionError), pipeline.database.transaction() as tx:
        count(tx, Total.CONFLICTS, DATASET)
        raise ZeroDivisionError
    with pipeline.database.snapshot() as view:
        assert kept_totals(view) == {}
    for _ in range(200):
        with pipeline.database.transaction() as tx:
            count(tx, Total.CONFLICTS, DATASET, amount=0.5)
    with pipeline.database.snapshot() as view:
        [amount] = kept_totals(view).values()
    assert amount == 100
    with pipeline.database.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM metric_totals")).scalar_one() < 150


@pytest.mark.clause("TEL-04")
def test_the_queue_age_is_the_age_of_unfinished_live_units(pipeline: Pipeline) -> None:
    labels = {"queue": pipeline.settings.sqs_primary_queue, "env": "dev"}
    assert value(values(pipeline), "nodd_sns_queue_age_seconds", **labels, quantile="0.9") == 0
    # The clock of the event's sender is ahead of our clock.
    ledger = pipeline.ledger
    own_tx(ledger).ensure([envelope(0, event_time=chain.START + timedelta(hours=1))])
    assert value(values(pipeline), "nodd_sns_queue_age_seconds", **labels, quantile="1") == 0
    own_tx(ledger).ensure(
        [envelope(number, event_time=chain.START - timedelta(seconds=10 * number)) for number in range(1, 200)]
    )
    # Units of the bulk lane do not count.
    own_tx(ledger).ensure([envelope(200)], lane=Lane.BULK)
    samples = values(pipeline)
    ages = {part: value(samples, "nodd_sns_queue_age_seconds", **labels, quantile=part) for part in QUANTILES}
    assert ages == {"0.5": 990, "0.9": 1790, "0.99": 1970, "1": 1990}
    # Claimed units still count.
    own_tx(ledger).claim(dataset=DATASET, partition=chain.START.date().isoformat(), run_id="one", limit=200)
    clock = pipeline.clock
    clock.forward(5)
    assert value(values(pipeline), "nodd_sns_queue_age_seconds", **labels, quantile="0.9") == 1795


@pytest.mark.clause("TEL-01")
@pytest.mark.one_database
def test_depths_count_visible_messages_and_all_dead_letters_and_are_absent_if_a_queue_does_not_answer(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, connect = pipeline.settings, Mock()
    connect.return_value.depth.return_value = QueueDepth(visible=7, in_flight=2, delayed=0)
    connected = replace(pipeline, connect_queue=connect, connect_dead_letters=connect)
    watch = QueueWatch(connected)
    assert watch.depths() == {}
    watch.look()
    assert watch.depths() == {settings.sqs_primary_queue: 7, settings.sqs_dlq_queue: 9}
    samples = values(connected, dict(watch.depths()))
    assert value(samples, "nodd_sns_queue_depth", queue=settings.sqs_dlq_queue, env="dev") == 9
    unanswered = Mock(**{"return_value.depth.side_effect": QueueUnavailableError})
    silent = QueueWatch(replace(connected, connect_dead_letters=unanswered))
    silent.look()
    assert silent.depths() == {settings.sqs_primary_queue: 7}
    # A depth older than FRESH_SECONDS is not reported.
    monkeypatch.setattr("kfm_dagster.console.serving.FRESH_SECONDS", -1.0)
    assert watch.depths() == {}
