"""`kfm console`, `kfm ui` and `kfm mcp` as processes: addresses, refusals and shutdown."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from kfm_dagster.cli.main import stopped_by_signals
from kfm_dagster.cli.running import addresses, free_console_port
from kfm_dagster.deployment.local import free_port
from kfm_dagster.errors import ExitCode
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.settings import Settings
from kfm_dagster_tests.commands import SERVE, Call, state_of
from kfm_dagster_tests.telemetry.collector import collecting
from kfm_dagster_tests.timeouts import until


def status(port: int, host: str) -> int:
    """Return the status of a request with this Host header."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/healthz", headers={"Host": host})
    with closing(connection):
        return connection.getresponse().status


@contextmanager
def console(port: int, ends_by: signal.Signals, **variables: str) -> Iterator[str]:
    """Run `kfm console` and yield its address; then end it by a signal and check its exit."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, "console", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
    ) as serving:
        try:
            yield serving.stdout.readline().strip()
        finally:
            serving.send_signal(ends_by)
        out, err = serving.communicate(timeout=60)
    expected = "# for browsers; /api/v1 and /metrics are for programs; Ctrl-C ends the server\n"
    assert (serving.returncode, out, err) == (ExitCode.DONE, "", expected)


@pytest.mark.clause("PCS-16")
def test_the_console_serves_until_a_signal_ends_the_process(
    ledger: dict[str, NoddWalRecord], call: Call, tmp_path: Path
) -> None:
    before, port = state_of(tmp_path), free_port()
    with console(port, signal.SIGTERM, KFM_ALLOWED_HOSTS="console.example") as address:
        assert address == f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(f"{address}validate?days=1", timeout=60) as answer:
            served = json.load(answer)
        assert [status(port, name) for name in ("console.example", "another.example")] == [200, 400]
        printed = json.loads(call("validate", "--days", "1", "--json").out)
        # The age of the oldest pending unit increases.
        for report in (served, printed):
            del report["units"]["oldest_waiting_seconds"]
        changing = {"at", "since"}
        assert {k: v for k, v in served.items() if k not in changing} == {
            k: v for k, v in printed.items() if k not in changing
        }
        refused = call("console", "--port", str(port))
        assert (refused.code, refused.out) == (ExitCode.USAGE, "")
        assert refused.err.startswith(f"kfm: the address cannot be served; observed 127.0.0.1 port {port}: ")
    assert state_of(tmp_path) == before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.clause("TEL-01", "TEL-03")
def test_a_collector_receives_the_metrics_that_prometheus_reads(ledger: dict[str, NoddWalRecord]) -> None:
    with collecting() as collector:
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "100"}
        with console(free_port(), signal.SIGINT, **otlp) as address:
            with urllib.request.urlopen(f"{address}metrics", timeout=60) as answer:
                scraped = answer.read().decode()
            until(lambda: len(collector.metrics) >= 2)
    # Metrics are cumulative, so repeated pushes are equal, except for the age of pending units.
    scrape = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
    }
    assert sent(collector.metrics[0]).keys() == scrape.keys()
    assert without_age(sent(collector.metrics[0])) == without_age(sent(collector.metrics[1])) == without_age(scrape)


def without_age(metrics: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[Any, float]:
    """Return the metrics that do not depend on the time."""
    return {key: value for key, value in metrics.items() if key[0] != "nodd_sns_queue_age_seconds"}


def sent(request: ExportMetricsServiceRequest) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every value of a request under its Prometheus name."""
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    metrics = [
        metric for resource in request.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]
    for metric in metrics:
        name = metric.name.replace(".", "_")
        for point in metric.sum.data_points:
            values[name, labels(point)] = point.as_double
        for point in metric.gauge.data_points:
            values[name, labels(point)] = point.as_double
        for point in metric.histogram.data_points:
            values[f"{name}_count", labels(point)] = point.count
            values[f"{name}_sum", labels(point)] = point.sum
            below = 0
            for bound, count in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
                below += count
                le = "+Inf" if bound == math.inf else f"{bound:g}"
                values[f"{name}_bucket", labels(point) | {("le", le)}] = below
    return values


def labels(point: Any) -> frozenset[tuple[str, str]]:
    return frozenset((attribute.key, attribute.value.string_value) for attribute in point.attributes)


def test_a_taken_port_is_refused_before_any_process_starts(call: Call, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        call("ui", "--port", str(port)).refused(f"the port is taken; observed {port}")
    assert not home.exists()


def test_the_console_uses_the_next_port_or_another_free_port_if_the_next_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken_port = holder.getsockname()[1]
        chosen = free_console_port(taken_port - 1)
    assert chosen != taken_port
    assert free_console_port(taken_port - 1) == taken_port


def test_dagster_and_console_link_to_each_other_unless_settings_name_other_addresses() -> None:
    page, console = {"KFM_DAGSTER_URL": "http://127.0.0.1:3000"}, {"KFM_CONSOLE_URL": "http://127.0.0.1:3001"}
    for named, own in (
        ({}, page | console),
        ({"dagster_url": "https://d.example"}, console),
        ({"console_url": "https://c.example"}, page),
    ):
        assert addresses(Settings(**named), port=3000, console_port=3001) == own


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_process_like_ctrl_c(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


TOOLS = {
    *("search_units", "explain_unit", "item", "deployment_status", "failures", "gaps"),
    *("rejections", "alerts", "datasets"),
}


def test_an_assistant_queries_over_stdio_and_changes_nothing(ledger: dict[str, NoddWalRecord], tmp_path: Path) -> None:
    import anyio
    from mcp import Client, StdioServerParameters, stdio_client

    # An ingest would have created this folder.
    (tmp_path / "home" / "storage").mkdir()
    before = state_of(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    served = StdioServerParameters(command=sys.executable, args=["-c", SERVE, "mcp"], env=environment)
    failed = ledger["failed"]

    async def converse() -> dict[str, Any]:
        # By default, the client uses the stderr of the moment of its import, which pytest has perhaps closed since.
        async with Client(stdio_client(served, errlog=sys.__stderr__)) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in tools)
            answers = {}
            for name, arguments in {
                "search_units": {"status": "failed"},
                "explain_unit": {"wal_id": failed.wal_id},
                "item": {"wal_id": failed.wal_id},
                "deployment_status": {},
                "failures": {"dataset": "nexrad-l2"},
                "gaps": {"days": 2, "closed": True},
            }.items():
                answers[name] = await client.call_tool(name, arguments)
            return answers

    answers = anyio.run(converse)
    assert [unit["wal_id"] for unit in answers["search_units"].structured_content["units"]] == [failed.wal_id]
    assert answers["explain_unit"].structured_content["history"][-1]["to_status"] == "failed"
    assert answers["deployment_status"].structured_content["units"]["nexrad-l2"]["failed"] == 1
    assert answers["failures"].structured_content["failures"][0]["code"] == failed.last_error_code
    assert answers["gaps"].structured_content == {"gaps": [], "complete": True}
    assert answers["item"].is_error
    assert answers["item"].content[0].text.endswith(f"the unit has no Item in the catalog; observed {failed.wal_id}")
    assert state_of(tmp_path) == before


def test_an_assistant_gets_an_error_as_one_line(ledger: dict[str, NoddWalRecord]) -> None:
    import anyio
    from mcp import Client

    from kfm_dagster.console.mcp_server import mcp_server

    pipeline = Pipeline.open(Settings.load(), read_only=True)
    wrong = {
        ("search_units", "status", "lost"): "observed status='lost'; expected pending or",
        ("search_units", "limit", 1_000): "less than or equal to 50",
        ("gaps", "days", 367): "less than or equal to 366",
        ("alerts", "after", "x"): "observed after='x'; expected the value in the `next` of the page before",
        ("explain_unit", "wal_id", "x"): "there is no such unit; observed 'x'; expected the id of a unit",
        ("failures", "dataset", "no-such"): "no-such",
    }

    async def converse() -> None:
        async with Client(mcp_server(pipeline)) as client:
            for (tool, name, value), line in wrong.items():
                answer = await client.call_tool(tool, {name: value})
                assert answer.is_error
                assert line in answer.content[0].text

    anyio.run(converse)
    pipeline.close()
