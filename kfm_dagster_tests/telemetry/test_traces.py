"""Each attempt of a unit is one trace at a collector, across processes."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from kfm_dagster.telemetry.traces import exports, is_tracing, traced
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.programs import run_program
from kfm_dagster_tests.telemetry.collector import collecting

OPERATORS = ["message_parse", "integrity_check", "metadata_extract", "stac_register", "provenance_emit"]


@dataclass(frozen=True)
class Attempt:
    """The spans of one trace, by name without the prefix, and the root."""

    spans: Mapping[str, list[Span]]

    @property
    def root(self) -> Span:
        [root] = self.spans["ingest"]
        return root

    @property
    def errors(self) -> dict[str, str]:
        every = ((name, error_of(span)) for name, spans in self.spans.items() for span in spans)
        return {name: error for name, error in every if error is not None}

    def every(self) -> Iterator[Span]:
        for spans in self.spans.values():
            yield from spans


def attributes(span: Span) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def error_of(span: Span) -> str | None:
    return span.status.message if span.status.code == Status.STATUS_CODE_ERROR else None


def run(process: str, home: Path, **environment: str) -> str:
    """Run one of the processes and return its log."""
    command = [sys.executable, "-m", "kfm_dagster_tests.telemetry.traced_runs", process]
    done = run_program(*command, home / "home", home / "objects", **environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


def traces(home: Path, **environment: str) -> list[Attempt]:
    """Return the attempts that both processes export; check that each logged error names its trace."""
    (home / "home").mkdir()
    migrated_sqlite(home / "home" / "kfm.db")
    by_trace: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    expected: set[tuple[str, str]] = set()
    with collecting() as collector:
        for process in ("ingest", "recover"):
            log = run(process, home, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **environment)
            [logged] = (json.loads(line) for line in log.splitlines())
            expected.add((logged["trace_id"], logged["last_error_code"]))
        for span in collector.spans:
            if span.name.startswith("nodd_sns."):
                by_trace[span.trace_id.hex()][span.name.removeprefix("nodd_sns.")].append(span)
    attempts = {trace_id: Attempt(spans) for trace_id, spans in by_trace.items()}
    errors = {(trace_id, error_of(attempt.root)) for trace_id, attempt in attempts.items()}
    assert {(trace_id, error) for trace_id, error in errors if error} <= expected
    return list(attempts.values())


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> list[Attempt]:
    return traces(tmp_path_factory.mktemp("traces"))


def by_end(attempts: list[Attempt], error: str | None, number: int) -> Attempt:
    key = error, number
    [attempt] = [item for item in attempts if (error_of(item.root), attributes(item.root)["nodd.attempt"]) == key]
    return attempt


@pytest.mark.clause("TEL-02", "WAL-13")
def test_an_attempt_is_one_trace_with_a_span_for_each_operator(attempts: list[Attempt]) -> None:
    assert len(attempts) == 4
    first = by_end(attempts, None, 1)
    assert list(first.spans) != []
    assert {name: len(spans) for name, spans in first.spans.items() if name != "object_fetch"} == dict.fromkeys(
        ["ingest", "sqs_receive", *OPERATORS], 1
    )
    assert first.errors == {}
    for attempt in attempts:
        ids = {span.span_id: span for span in attempt.every()}
        assert attempt.root.parent_span_id == b""
        assert all(span.parent_span_id in ids for span in attempt.every() if span is not attempt.root)
        for span in attempt.every():
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            # A request's span is within the span of its operator.
            if span.name == "nodd_sns.object_fetch":
                operator = ids[span.parent_span_id].name.removeprefix("nodd_sns.")
                assert operator in {"integrity_check", "metadata_extract"}
            else:
                assert attributes(span)["nodd.wal_id"] == attributes(attempt.root)["nodd.wal_id"]
                assert attributes(span)["nodd.dataset"] == "nexrad-l2"
        # A worker's clock has a finer resolution than the ledger's.
        inside = [span.end_time_unix_nano for span in attempt.every() if span.name != "nodd_sns.sqs_receive"]
        slack = 1_000_000_000
        assert min(inside) >= attempt.root.start_time_unix_nano
        assert max(inside) <= attempt.root.end_time_unix_nano + slack


@pytest.mark.clause("TEL-02", "TEL-06")
def test_the_span_of_a_failure_has_its_code_and_recovery_marks_the_span_of_a_dead_worker(
    attempts: list[Attempt],
) -> None:
    failed = by_end(attempts, "missing_object", 1)
    assert failed.errors["integrity_check"] == "missing_object"
    assert set(failed.spans) & {"metadata_extract", "stac_register", "provenance_emit"} == set()
    lost = by_end(attempts, "worker_lost", 1)
    assert lost.errors == {"ingest": "worker_lost"}
    assert set(lost.spans) - {"object_fetch"} == {"ingest", "sqs_receive", *OPERATORS[:3]}


@pytest.mark.clause("WAL-13", "TEL-02")
def test_a_replay_is_another_trace_with_its_reason_and_original_run(attempts: list[Attempt]) -> None:
    first, again = by_end(attempts, None, 1), by_end(attempts, None, 2)
    assert attributes(again.root)["nodd.wal_id"] == attributes(first.root)["nodd.wal_id"]
    named = {"nodd.replay_reason": "incident", "nodd.replay_run_id": "replay-1"}
    for span in again.every():
        if span.name != "nodd_sns.object_fetch":
            assert {name: attributes(span)[name] for name in named} == named
    assert not any(name.startswith("nodd.replay") for span in first.every() for name in attributes(span))
    assert "sqs_receive" not in again.spans
    modes = [(attributes(item.root)["nodd.run_mode"], attributes(item.root)["nodd.run_id"]) for item in (first, again)]
    assert modes == [("hot-path", "run-1"), ("replay", "run-2")]
    assert attributes(again.root)["nodd.replay_original_run"] == "run-1"


@pytest.mark.clause("TEL-02", "SEC-04")
def test_spans_have_the_ids_of_item_and_lineage_and_no_uri(attempts: list[Attempt]) -> None:
    first = by_end(attempts, None, 1)
    [emitted] = first.spans["provenance_emit"]
    lineage = {"nodd.openlineage_run_id", "nodd.prov_activity_id", "nodd.stac_item_id"}
    assert {name: attributes(emitted)[name] for name in lineage} == {
        name: attributes(first.root)[name] for name in lineage
    }
    assert len(attributes(first.root)["nodd.object_uri_hash"]) == 64
    texts = [str(span) for attempt in attempts for span in attempt.every()]
    assert not [text for text in texts if "s3://" in text or "/2025/04/02" in text]


@pytest.mark.clause("TEL-02")
def test_an_attempt_is_sampled_with_all_its_spans_or_not_at_all(attempts: list[Attempt], tmp_path: Path) -> None:
    sampler = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    sampled = traces(tmp_path, **sampler)

    def shape(some: list[Attempt]) -> dict[tuple[str, int], dict[str, int]]:
        return {
            (str(error_of(attempt.root)), attributes(attempt.root)["nodd.attempt"]): {
                name: len(spans) for name, spans in attempt.spans.items()
            }
            for attempt in some
        }

    whole = shape(attempts)
    assert 0 < len(sampled) < len(attempts)
    assert shape(sampled).items() <= whole.items()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_opentelemetry_s_variables_switch_the_export(caplog: pytest.LogCaptureFixture) -> None:
    decisions: list[tuple[dict[str, str], bool, str]] = [
        ({}, False, ""),
        (ENDPOINT, True, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True, ""),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318/v1/metrics"}, False, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "True"}, False, ""),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False, ""),
        (ENDPOINT | {"OTEL_METRICS_EXPORTER": "none"}, True, ""),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True, ""),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "OTLP over grpc is configured"),
    ]
    for environment, expected, message in decisions:
        caplog.clear()
        assert exports("traces", environment) is expected, environment
        assert message in caplog.text
        assert bool(caplog.text) == bool(message), environment


def test_a_missing_exporter_is_logged_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert not exports("traces", ENDPOINT)
    assert "pip install kfm_dagster[otlp]" in caplog.text


@pytest.mark.clause("TEL-02")
def test_without_a_collector_an_operator_is_not_wrapped() -> None:
    assert not is_tracing()
    work: Any = object()
    assert traced("integrity_check", work, dataset="nexrad-l2") is work
