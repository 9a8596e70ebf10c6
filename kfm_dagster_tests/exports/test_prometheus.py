"""What ships for Prometheus and Grafana: promtool takes the rules, a real Prometheus fires one, panels find data.

Belongs here: `deploy/prometheus` and `deploy/grafana`. Does not belong here: what the console exposes
(`test_metrics.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfm_dagster.deployment.local import free_port
from kfm_dagster.exports.metrics import exposition
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.limits import QUEUE_AGE_SLO_SECONDS
from kfm_dagster_tests.commands import SERVE
from kfm_dagster_tests.integration.chain import DAY, announce, open_pipeline, put, run_chain, take, volumes
from kfm_dagster_tests.recovery.replays import another_result
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
RULES = DEPLOY / "rules.yaml"
RULES_TESTS = sorted(DEPLOY.glob("*_test.yaml"))
DASHBOARD = ROOT / "deploy" / "grafana" / "noaa-nodd-ingestion-core.json"
DOCUMENT = ROOT.parent / "shared" / "spec" / "telemetry.md"
"""What the product must be; not a part of it, so it may not be there."""
DATASET = "nexrad-l2"
PERSON = Decision(actor="person", reason="looked at it", change_ref="CHG-1")
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
"""The ids of the document, which are fixed, and our own; and how severe each is."""
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
NO_CLOUD = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""A console that asks no queue but on the loopback interface, where there is none."""


def binary(name: str) -> str:
    """The path of a program of Debian's package `prometheus`. Skips the test where it is not there."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("KFM_REQUIRE_PROMETHEUS") == "1":
            pytest.fail(f"KFM_REQUIRE_PROMETHEUS=1, and no {name} is on the PATH")
        pytest.skip(f"no {name} on the PATH (Debian's package prometheus)")
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def queries() -> list[str]:
    """Every query of the dashboard, with values in the place of its variables."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for variable, value in VARIABLES.items():
        found = [expr.replace(variable, value) for expr in found]
    return found


def promtool(*arguments: str | Path) -> None:
    command = [binary("promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.clause("TEL-04")
def test_the_alerts_have_the_ids_and_severities_of_the_document() -> None:
    assert {rule["alert"]: rule["labels"]["severity"] for rule in rules() if "alert" in rule} == SEVERITIES
    for rule in rules():
        if "alert" in rule:
            assert (ROOT / rule["annotations"]["runbook"]).is_file()
    if DOCUMENT.exists():
        table = DOCUMENT.read_text(encoding="utf-8").partition("## SLOs")[2]
        # The document writes the second of a pair as "/ -CRIT".
        assert set(re.findall(r"NODD-[A-Z0-9-]+", table)) == set(SEVERITIES) - OWN_ALERTS - {"NODD-Q-DEPTH-CRIT"}
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert set(SEVERITIES) == set(re.findall(r"NODD-[A-Z0-9-]+", page))


@pytest.mark.clause("TEL-04")
def test_promtool_takes_configuration_and_rules() -> None:
    promtool("check", "config", DEPLOY / "prometheus.yml")
    promtool("check", "rules", RULES)


@pytest.mark.clause("TEL-04")
def test_nothing_fires_at_a_threshold_and_the_alert_does_one_step_past_it() -> None:
    promtool("test", "rules", *RULES_TESTS)


@pytest.mark.clause("TEL-04")
def test_every_alert_is_tried_on_both_sides() -> None:
    tried = "\n".join(path.read_text(encoding="utf-8") for path in RULES_TESTS)
    for alert in SEVERITIES:
        checks = [line for line in tried.splitlines() if f'alertname="{alert}"' in line]
        assert any('alertstate="firing"' in line and "value: 1" in line for line in checks), alert
        assert any("value: 0" in line or alert == "NODD-REPLAY-VOLUME-WARN" for line in checks), alert


def test_replays_give_way_at_the_age_at_which_the_alert_fires() -> None:
    [alert] = [rule for rule in rules() if rule.get("alert") == "NODD-Q-AGE-CRIT"]
    assert alert["expr"] == f"nodd:queue_age_seconds:p90 > {QUEUE_AGE_SLO_SECONDS:g}"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Pipeline]:
    """A home in which two volumes were ingested."""
    items, objects = volumes(2), tmp_path / "objects"
    opened = open_pipeline(tmp_path / "home", objects)
    put(objects, items)
    events = [item.event(event_time=opened.clock() - timedelta(seconds=40)) for item in items]
    take(opened, announce(events, registry=opened.registry))
    run_chain(opened, DATASET, DAY.isoformat(), "run", Source.LEDGER)
    yield opened
    opened.close()


@pytest.mark.clause("TEL-04", "TEL-05")
def test_rules_and_dashboard_name_metrics_that_there_are(ledger: Pipeline) -> None:
    exposed = set(re.findall(r"^# TYPE (\S+) ", exposition(ledger).decode(), re.MULTILINE))
    known = exposed | {f"{name}_{part}" for name in exposed for part in ("bucket", "sum", "count")} | recorded()
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


@contextmanager
def running(command: list[str], environment: dict[str, str], *, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment})
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=60)


@pytest.fixture
def ask(ledger: Pipeline, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Ask a real Prometheus that scrapes `kfm console` over the ledger, and evaluates the rules, every second."""
    prometheus, console, port = binary("prometheus"), free_port(), free_port()
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(RULES)]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{console}"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    served = {"KFM_HOME": str(ledger.settings.home), "PYTHONPATH": os.pathsep.join(sys.path), **NO_CLOUD}
    scraping = [
        prometheus,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def asking(path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    with (
        running([sys.executable, "-c", SERVE, "console", "--port", str(console)], served, log=tmp_path / "console.log"),
        running(scraping, {}, log=tmp_path / "prometheus.log"),
    ):
        yield asking


def until(ask: Callable[..., Any], expr: str) -> list[Any]:
    """Ask until an expression has a result; one that Prometheus cannot answer yet is asked again."""
    end = time.monotonic() + HANG_SECONDS
    while time.monotonic() < end:
        try:
            if result := ask("query", query=expr)["result"]:
                return list(result)
        except OSError:
            pass  # it has not begun to listen
        time.sleep(0.2)
    raise AssertionError(f"{expr} has no result")


@pytest.mark.clause("TEL-01", "TEL-03", "TEL-04", "TEL-05")
def test_a_prometheus_that_scrapes_a_deployment_fires_an_alert_and_answers_every_query_of_the_dashboard(
    ask: Callable[..., Any], ledger: Pipeline
) -> None:
    until(ask, f'nodd_sns_wal_records_total{{dataset="{DATASET}",status="succeeded"}} == 2')
    # A counter has risen once it was seen before.
    until(ask, f'count_over_time(nodd_sns_replay_mismatch_total{{dataset="{DATASET}"}}[1m]) >= 2')
    assert [alert for alert in ask("alerts")["alerts"] if alert["state"] == "firing"] == []

    [record, _] = own_tx(ledger.ledger).find(limit=2)
    own_tx(ledger.ledger).override(
        {record.wal_id: record.version}, from_status=Status.SUCCEEDED, action=GovernanceAction.REPEAT, decision=PERSON
    )
    claimed = own_tx(ledger.ledger).claim(dataset=DATASET, partition=DAY.isoformat(), run_id="again", limit=1)
    assert own_tx(ledger.ledger).settle([another_result(unit) for unit in claimed], run_id="again").mismatched
    [firing] = until(ask, 'ALERTS{alertname="NODD-REPLAY-MISMATCH-CRIT",alertstate="firing"}')
    assert (firing["metric"]["dataset"], firing["metric"]["severity"]) == (DATASET, "critical")
    [level] = until(ask, "nodd:replay_determinism:1d < 1")
    assert level["metric"]["job"] == "kfm_dagster"
    assert until(ask, "nodd:queue_age_seconds:p90")

    known = set(ask("metadata"))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")} | recorded()
    for expr in queries():
        result = ask("query", query=expr)["result"]
        assert set(NAME.findall(expr)) <= known, expr
        # This deployment has no queue to ask, and what a rule records may have nothing to say yet.
        if "nodd:" not in expr and "queue_depth" not in expr:
            assert result, expr
