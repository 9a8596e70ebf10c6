"""An attempt of a unit is one trace at a collector, whichever processes worked on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kfm_dagster.telemetry.traces import exports, is_tracing, traced
from kfm_dagster_tests.databases import migrated_sqlite
from kfm_dagster_tests.factories import envelope
from kfm_dagster_tests.telemetry.collector import SeenSpan, collecting
from kfm_dagster_tests.timeouts import HANG_SECONDS

OPERATORS = ["message_parse", "integrity_check", "metadata_extract", "stac_register", "provenance_emit"]


@dataclass(frozen=True)
class Attempt:
    """The spans of one trace, by name without the prefix, and the root."""

    spans: Mapping[str, list[SeenSpan]]

    @property
    def root(self) -> SeenSpan:
        [root] = self.spans["ingest"]
        return root

    @property
    def errors(self) -> dict[str, str]:
        return {name: one.error for name, spans in self.spans.items() for one in spans if one.error is not None}

    def every(self) -> Iterator[SeenSpan]:
        for spans in self.spans.values():
            yield from spans


def run(what: str, home: Path, **environment: str) -> str:
    """Run one of the processes; return what it logged."""
    return subprocess.run(
        [sys.executable, "-m", "kfm_dagster_tests.telemetry.traced_runs", what, home / "home", home / "objects"],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        timeout=HANG_SECONDS,
    ).stderr


def traces(home: Path, **environment: str) -> list[Attempt]:
    """Return what both processes exported, in the order in which the attempts began.

    Each error in the log names its trace.
    """
    (home / "home").mkdir()
    migrated_sqlite(home / "home" / "kfm.db")
    found: dict[str, dict[str, list[SeenSpan]]] = defaultdict(lambda: defaultdict(list))
    expected: set[tuple[str, str]] = set()
    with collecting() as collector:
        for what in ("ingest", "recover"):
            said = run(what, home, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **environment)
            [logged] = (json.loads(line) for line in said.splitlines())
            expected.add((logged["trace_id"], logged["last_error_code"]))
        for one in collector.spans:
            if one.name.startswith("nodd_sns."):
                found[one.trace_id][one.name.removeprefix("nodd_sns.")].append(one)
    attempts = sorted((Attempt(spans) for spans in found.values()), key=lambda attempt: attempt.root.start)
    assert {(one.root.trace_id, one.root.error) for one in attempts if one.root.error} <= expected
    return attempts


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> list[Attempt]:
    return traces(tmp_path_factory.mktemp("traces"))


@pytest.fixture
def by_end(attempts: list[Attempt]) -> Callable[[str | None, int], Attempt]:
    def chosen(error: str | None, number: int) -> Attempt:
        [one] = [one for one in attempts if (one.root.error, one.root.attributes["nodd.attempt"]) == (error, number)]
        return one

    return chosen


Chosen = Callable[[str | None, int], Attempt]


@pytest.mark.clause("TEL-02", "WAL-13")
def test_an_attempt_is_one_trace_with_a_span_for_each_operator(attempts: list[Attempt], by_end: Chosen) -> None:
    assert len(attempts) == 4
    first = by_end(None, 1)
    assert list(first.spans) != []
    assert {name: len(spans) for name, spans in first.spans.items() if name != "object_fetch"} == dict.fromkeys(
        ["ingest", "sqs_receive", *OPERATORS], 1
    )
    assert first.errors == {}
    for attempt in attempts:
        ids = {one.span_id: one for one in attempt.every()}
        assert attempt.root.parent_id == ""
        assert all(one.parent_id in ids for one in attempt.every() if one is not attempt.root)
        for one in attempt.every():
            assert one.start <= one.end
            # What belongs to a request is in the operator that asked.
            if one.name == "nodd_sns.object_fetch":
                assert ids[one.parent_id].name.removeprefix("nodd_sns.") in {"integrity_check", "metadata_extract"}
            else:
                assert one.attributes["nodd.wal_id"] == attempt.root.attributes["nodd.wal_id"]
                assert one.attributes["nodd.dataset"] == "nexrad-l2"
        # A worker's clock is finer than the ledger's.
        inside = [one for one in attempt.every() if one.name != "nodd_sns.sqs_receive"]
        slack = 1_000_000_000
        assert all(attempt.root.start <= one.end <= attempt.root.end + slack for one in inside)


@pytest.mark.clause("TEL-02", "TEL-06")
def test_what_failed_is_marked_by_its_code_and_what_died_by_its_recovery(by_end: Chosen) -> None:
    failed = by_end("missing_object", 1)
    assert failed.errors["integrity_check"] == "missing_object"
    assert set(failed.spans) & {"metadata_extract", "stac_register", "provenance_emit"} == set()
    lost = by_end("worker_lost", 1)
    assert lost.errors == {"ingest": "worker_lost"}
    assert set(lost.spans) - {"object_fetch"} == {"ingest", "sqs_receive", *OPERATORS[:3]}


@pytest.mark.clause("WAL-13", "TEL-02")
def test_a_replay_is_another_trace_that_names_its_reason_and_the_run_before(by_end: Chosen) -> None:
    first, again = by_end(None, 1), by_end(None, 2)
    assert again.root.attributes["nodd.wal_id"] == first.root.attributes["nodd.wal_id"]
    named = {"nodd.replay_reason": "incident", "nodd.replay_run_id": "replay-1"}
    for one in again.every():
        if one.name != "nodd_sns.object_fetch":
            assert {name: one.attributes[name] for name in named} == named
    assert not any(name.startswith("nodd.replay") for one in first.every() for name in one.attributes)
    assert "sqs_receive" not in again.spans
    modes = [(one.root.attributes["nodd.run_mode"], one.root.attributes["nodd.run_id"]) for one in (first, again)]
    assert modes == [("hot-path", "run-1"), ("replay", "run-2")]
    assert again.root.attributes["nodd.replay_original_run"] == "run-1"


@pytest.mark.clause("TEL-02", "SEC-04")
def test_spans_name_item_and_lineage_and_no_address(attempts: list[Attempt], by_end: Chosen) -> None:
    first = by_end(None, 1)
    [emitted] = first.spans["provenance_emit"]
    lineage = {"nodd.openlineage_run_id", "nodd.prov_activity_id", "nodd.stac_item_id"}
    assert {name: emitted.attributes[name] for name in lineage} == {
        name: first.root.attributes[name] for name in lineage
    }
    assert len(first.root.attributes["nodd.object_uri_hash"]) == 64
    texts = [f"{one.attributes} {one.error} {one.events}" for attempt in attempts for one in attempt.every()]
    assert not [text for text in texts if "s3://" in text or "/2025/04/02" in text]


@pytest.mark.clause("TEL-02")
def test_a_sampled_attempt_is_whole_and_another_one_is_not_there(attempts: list[Attempt], tmp_path: Path) -> None:
    sampler = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    sampled = traces(tmp_path, **sampler)

    def shape(some: list[Attempt]) -> dict[tuple[str, int], dict[str, int]]:
        return {
            (str(one.root.error), one.root.attributes["nodd.attempt"]): {
                name: len(spans) for name, spans in one.spans.items()
            }
            for one in some
        }

    whole = shape(attempts)
    assert 0 < len(sampled) < len(attempts)
    assert shape(sampled).items() <= whole.items()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_the_environment_decides_in_opentelemetry_s_own_names(caplog: pytest.LogCaptureFixture) -> None:
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
    for environment, expected, said in decisions:
        caplog.clear()
        assert exports("traces", environment) is expected, environment
        assert said in caplog.text
        assert bool(caplog.text) == bool(said), environment


def test_an_exporter_that_is_not_installed_is_one_line_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    assert not exports("traces", ENDPOINT)
    assert "pip install kfm_dagster[otlp]" in caplog.text


@pytest.mark.clause("TEL-02")
def test_without_a_collector_the_work_is_what_it_was() -> None:
    assert not is_tracing()

    def work(unit: object) -> object:
        return unit

    assert traced("integrity_check", work, dataset="nexrad-l2") is work  # type: ignore[arg-type, comparison-overlap]
    assert work(envelope(0)) == envelope(0)
