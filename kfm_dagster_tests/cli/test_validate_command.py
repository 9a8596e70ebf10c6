"""`kfm report` as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kfm_dagster.console.pages import validation_page
from kfm_dagster.errors import ExitCode
from kfm_dagster.exports.kpis import KPIS
from kfm_dagster.exports.validation import figure
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.commands import Call

REPORT: dict[str, Any] = {
    "at": "2026-01-02T00:00:00.000000Z",
    "since": "2026-01-01T00:00:00.000000Z",
    "delivery": "at_least_once",
    "units": {"quarantined": 2, "failed": 1, "oldest_waiting_seconds": 3600.0, "succeeded": 7, "retries": 4},
    "stages": {"a.message_parse": {"succeeded": 2}, "a.settle": {"failed": 1, "succeeded": 1}},
    "gates": {
        "G1": {
            "title": "schema completeness",
            "looked_at": 3,
            "pass_rate": 2 / 3,
            "outcomes": {"fail_units": 1, "passed": 2},
        },
        "G3": {"title": "path conventions", "looked_at": 0, "pass_rate": None, "outcomes": {}},
    },
    "stops_triggered": {},
    "errors": {"E_GATE": 1},
    "restricted": {},
    "retries": {"count": 0, "by_stage": {}, "interval_seconds": []},
    "rollbacks": 0,
    "replays": {"count": 0, "stages": 0},
    "dimensional_closure": {"p_dim": 1.0, "ok": True},
    "kpis": {
        "latency_p50_seconds": 0.08834800000000001,
        "latency_p95_seconds": None,
        "retry_count": 0,
        "p_dim": 0.9999999999,
        "sigma_y": {"16": 1.2345678901e-07},
    },
    "kpi_definitions": {name: kpi._asdict() for name, kpi in KPIS.items()},
    "kpis_by_day": [
        {"day": "2026-01-01", **dict.fromkeys(KPIS), "latency_p95_seconds": 1.5, "retry_count": 3},
        {"day": "2026-01-02", **dict.fromkeys(KPIS), "latency_p95_seconds": 0.5, "retry_count": 0, "p_dim": 1.0},
    ],
    "audit": {"lines": 12, "head": "ab" * 32},
}


def test_a_number_is_shown_with_its_significant_digits_only() -> None:
    figures: list[tuple[Any, str]] = [
        (0.08834800000000001, "0.088348"),
        (123456.789, "123457"),
        (1.2345678901e-07, "1.23457e-07"),
        (1.0, "1"),
        (0.9999999999, "0.9999999999"),
        (0.0, "0"),
        (7, "7"),
        (None, "none"),
        ({}, "none"),
        ({"16": 2 / 3, "passed": 2}, "16: 0.666667, passed: 2"),
    ]
    assert [figure(value) for value, _ in figures] == [text for _, text in figures]


@pytest.mark.clause("DAG-11", "BEY-13")
def test_text_and_page_have_rounded_numbers_and_json_has_the_exact_numbers(
    call: Call, ledger: dict[str, NoddWalRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfm_dagster.cli.report.validate_report", lambda pipeline, *, since: REPORT)
    answer = call("validate", "--html", "page.html")
    assert (answer.code, answer.err) == (ExitCode.DONE, "")
    rows = {words[0]: words[1:] for line in answer.out.splitlines() if (words := line.split())}
    assert rows["a.message_parse"] == ["2"]
    assert rows["a.settle"] == ["1", "1"]
    # Problems come first, and gates are named, not only numbered.
    assert answer.out.split()[0] == "Units"
    order = [line.split()[0] for line in answer.out.splitlines() if line.split()]
    assert [name for name in order if name in {"quarantined", "failed", "a.message_parse", "G1"}] == [
        "quarantined",
        "failed",
        "a.message_parse",
        "G1",
    ]
    assert (rows["quarantined"], rows["failed"]) == (["2"], ["1"])
    assert (rows["oldest_waiting_seconds"], rows["retries"]) == (["3600"], ["of", "stages", "0"])
    assert rows["G1"] == ["schema", "completeness", "3", "0.666667", "fail_units:", "1,", "passed:", "2"]
    assert rows["G3"] == ["path", "conventions", "0", "none", "none"]
    assert (rows["Stops:"], rows["E_GATE"], rows["rollbacks"]) == (["none"], ["1"], ["0"])
    assert (rows["latency_p50_seconds"][:2], rows["latency_p95_seconds"][0]) == (["0.088348", "median"], "none")
    assert rows["sigma_y"][:2] == ["16:", "1.23457e-07"]
    assert (rows["2026-01-01"], rows["2026-01-02"]) == (
        ["1.5", "none", "3", "none", "none"],
        ["0.5", "none", "0", "none", "1"],
    )
    page = (tmp_path / "page.html").read_text()
    assert page == validation_page(REPORT)
    assert page.index(">quarantined</td>") < page.index("a.message_parse") < page.index("G1 schema completeness")
    assert ">2026-01-01</td>" in page
    assert KPIS["retry_count"].citation in page
    assert "0.0883480000" not in page + answer.out
    assert "{}" not in page + answer.out
    assert json.loads(call("validate", "--json").out) == REPORT


@pytest.mark.clause("PCS-16")
def test_the_exit_code_is_4_if_a_gate_stopped_a_stage_or_a_quantity_does_not_close(
    call: Call, ledger: dict[str, NoddWalRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def coverage(outcome: str) -> dict[str, Any]:
        return {"gates": {"G6": {"title": "coverage", "looked_at": 1, "pass_rate": 0.0, "outcomes": {outcome: 1}}}}

    cases: list[tuple[dict[str, Any], ExitCode]] = [
        ({}, ExitCode.DONE),
        ({"stops_triggered": {"S2": 1}}, ExitCode.FINISHED_WITH_FAILURES),
        # Coverage (G6) triggers no stop (S1 to S5), but a card can make it stop a batch.
        (coverage("stop"), ExitCode.FINISHED_WITH_FAILURES),
        (coverage("restrict"), ExitCode.DONE),
        ({"dimensional_closure": {"p_dim": 0.9, "ok": False}}, ExitCode.FINISHED_WITH_FAILURES),
    ]
    for differing, code in cases:
        report = {**REPORT, **differing}
        monkeypatch.setattr("kfm_dagster.cli.report.validate_report", Mock(return_value=report))
        assert call("validate").code == code, differing


def test_the_page_does_not_overwrite_another_file_and_the_refusal_names_the_option(
    call: Call, ledger: dict[str, NoddWalRecord], tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("<p>mine</p>")
    next_step = "next: move it away, or name another folder with --html\n"
    call("validate", "--html", "page.html").refused(next_step, code=ExitCode.REFUSED)
    assert (tmp_path / "page.html").read_text() == "<p>mine</p>"
