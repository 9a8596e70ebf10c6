"""`kfm console` as a process: it says where it answers, answers there, and ends when it is told to."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from kfm_dagster.deployment.local import free_port
from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.commands import SERVE, Call, state_of
from kfm_dagster_tests.telemetry.collector import collecting
from kfm_dagster_tests.timeouts import HANG_SECONDS


def status(port: int, host: str) -> int:
    """What a request that is for a host is answered with."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/healthz", headers={"Host": host})
    with closing(connection):
        return connection.getresponse().status


@contextmanager
def console(port: int, ends_by: signal.Signals, **variables: str) -> Iterator[str]:
    """A process of `kfm console`, by its address; it ends by a signal, as it has to."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, "console", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
    ) as serving:
        assert serving.stdout is not None
        try:
            yield serving.stdout.readline().strip()
        finally:
            serving.send_signal(ends_by)
        out, err = serving.communicate(timeout=60)
    said = "# for a browser; /api/v1 and /metrics for programs; until Ctrl-C\n"
    assert (serving.returncode, out, err) == (ExitCode.DONE, "", said)


@pytest.mark.clause("PCS-16")
def test_it_serves_until_it_is_told_to_end(ledger: dict[str, NoddWalRecord], call: Call, tmp_path: Path) -> None:
    before, port = state_of(tmp_path), free_port()
    with console(port, signal.SIGTERM, KFM_ALLOWED_HOSTS="console.example") as address:
        assert address == f"http://127.0.0.1:{port}/"
        with urllib.request.urlopen(f"{address}validate?days=1", timeout=60) as answer:
            served = json.load(answer)
        assert [status(port, name) for name in ("console.example", "another.example")] == [200, 400]
        said = json.loads(call("validate", "--days", "1", "--json").out)
        # How long the oldest has waited goes on.
        for report in (served, said):
            del report["units"]["oldest_waiting_seconds"]
        changing = {"at", "since"}
        assert {k: v for k, v in served.items() if k not in changing} == {
            k: v for k, v in said.items() if k not in changing
        }
        taken = call("console", "--port", str(port))
        assert (taken.code, taken.out) == (ExitCode.USAGE, "")
        assert taken.err.startswith(f"kfm: the address cannot be served; observed 127.0.0.1 port {port}: ")
    assert state_of(tmp_path) == before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.clause("TEL-01", "TEL-03")
def test_a_collector_is_sent_the_metrics_that_prometheus_reads(ledger: dict[str, NoddWalRecord]) -> None:
    with collecting() as collector:
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRIC_EXPORT_INTERVAL": "100"}
        with console(free_port(), signal.SIGINT, **otlp) as address:
            with urllib.request.urlopen(f"{address}metrics", timeout=60) as answer:
                scraped = answer.read().decode()
            until = time.monotonic() + HANG_SECONDS
            while len(collector.metrics) < 2 and time.monotonic() < until:
                time.sleep(0.05)
    # Each is cumulative, so that a push that is repeated says the same; the age of what waits goes on.
    scrape = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(scraped)
        for sample in family.samples
    }
    assert sent(collector.metrics[0]).keys() == scrape.keys()
    assert standing(sent(collector.metrics[0])) == standing(sent(collector.metrics[1])) == standing(scrape)


def standing(found: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[Any, float]:
    """Values that are the ledger's, whatever time it is."""
    return {key: value for key, value in found.items() if key[0] != "nodd_sns_queue_age_seconds"}


def sent(request: ExportMetricsServiceRequest) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every value of a request, under the names that Prometheus has for them."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    metrics = [
        one for resource in request.resource_metrics for scope in resource.scope_metrics for one in scope.metrics
    ]
    for metric in metrics:
        name = metric.name.replace(".", "_")
        for point in metric.sum.data_points:
            found[name, labels(point)] = point.as_double
        for point in metric.gauge.data_points:
            found[name, labels(point)] = point.as_double
        for point in metric.histogram.data_points:
            found[f"{name}_count", labels(point)] = point.count
            found[f"{name}_sum", labels(point)] = point.sum
            below = 0
            for bound, count in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
                below += count
                le = "+Inf" if bound == math.inf else f"{bound:g}"
                found[f"{name}_bucket", labels(point) | {("le", le)}] = below
    return found


def labels(point: Any) -> frozenset[tuple[str, str]]:
    return frozenset((one.key, one.value.string_value) for one in point.attributes)


def test_an_address_of_another_machine_is_one_line(call: Call, ledger: dict[str, NoddWalRecord]) -> None:
    # TEST-NET-1 (RFC 5737): nobody has it.
    other = call("console", "--host", "192.0.2.1", "--port", str(free_port()))
    assert (other.code, other.out, other.err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert "observed 192.0.2.1 port" in other.err
