"""`kfm report` and `kfm export` on runs executed by Dagster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.console.pages import REPORT_OPENING, validation_page
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ExitCode, RefusedError
from kfm_dagster.exports.bundle.content import AUDIT, DIMENSIONS, VALIDATION, gather_release
from kfm_dagster.exports.bundle.folder import verify_release, write_release
from kfm_dagster.exports.bundle.signing import open_signer, trusted_certificates
from kfm_dagster.exports.kpis import KPIS
from kfm_dagster.exports.validation import validate_report
from kfm_dagster.ingest.nodes import operators
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.audit import AuditEvent, AuditKind, AuditLog, verify_chain
from kfm_dagster.stages.card import ErrorClass, StageState
from kfm_dagster.stages.store import StageStore
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockState
from kfm_dagster_tests.clocks import reopened
from kfm_dagster_tests.integration.chain import DAY, PARTITION, deliver, missing, put, volumes
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.integration.gating import beyond_the_pole, change_contract
from kfm_dagster_tests.transactions import own_tx


def executed(face: Face, count: int, **more: object) -> None:
    deliver(face.pipeline, *volumes(count))
    face.ingest(partition=PARTITION, **more)


@pytest.mark.clause("PCS-12", "PCS-16", "PCS-17")
def test_the_report_counts_exactly_the_recorded_results(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    since = face.pipeline.clock() - timedelta(days=1)
    nothing = validate_report(face.pipeline, since=since)
    assert (nothing["stages"], nothing["stops_triggered"], nothing["kpis"]["latency_p50_seconds"]) == ({}, {}, None)
    assert nothing["dimensional_closure"] == {"p_dim": None, "ok": True}
    executed(face, 3)
    fine = validate_report(face.pipeline, since=since)
    assert fine["stages"] == {f"nexrad-l2.{operator}": {"succeeded": 1} for operator in sorted(operators())}
    assert {gate: result["pass_rate"] for gate, result in fine["gates"].items()} == {
        "G1": 1.0, "G2": 1.0, "G3": None, "G4": 1.0, "G5": None, "G6": 0.0, "G7": None, "G8": 1.0,
    }  # fmt: skip
    looked = sum(gate["looked_at"] for gate in fine["gates"].values())
    kpis = fine["kpis"]
    assert kpis["Q_res"] == pytest.approx(1 / looked)
    assert 0 < kpis["latency_p50_seconds"] <= kpis["latency_p95_seconds"]
    assert kpis["throughput_units_per_second"] > 0
    assert (kpis["retry_count"], kpis["replay_count"], kpis["idempotency_conflicts"], kpis["p_dim"]) == (0, 0, 0, 1.0)
    assert (fine["stops_triggered"], fine["restricted"]) == ({}, {"G6": 1})
    assert fine["dimensional_closure"] == {"p_dim": 1.0, "ok": True}
    # One stop, of a batch whose fields have no citation; the page shows this stop.
    change_contract(face, monkeypatch, citations=[])
    executed(face, 5, raise_on_error=False)
    [*back] = own_tx(face.pipeline.ledger).find(status=Status.PENDING)
    assert len(back) == 2
    for unit in back:
        assert (unit.last_error_code, unit.status) == (LedgerCode.ROLLED_BACK, Status.PENDING)
        assert str(unit.last_error_message).startswith(
            "the run was rolled back: nexrad-l2.metadata_extract failed with E_GATE; "
        )
        assert "observed G2: " in str(unit.last_error_message)
    stopped = validate_report(face.pipeline, since=since)
    assert stopped["stops_triggered"] == {"S5": 1}
    assert stopped["errors"] == {"E_GATE": 1}
    assert stopped["rollbacks"] == 1
    assert stopped["stages"]["nexrad-l2.metadata_extract"] == {"rolled_back": 1, "succeeded": 1}
    page = validation_page(stopped)
    assert page.encode().startswith(REPORT_OPENING)
    assert ">S5</td>" in page
    assert stopped["audit"]["lines"] > fine["audit"]["lines"]
    later = validate_report(face.pipeline, since=face.pipeline.clock() + timedelta(days=1))
    assert (later["stages"], later["audit"]) == ({}, stopped["audit"])


@pytest.mark.clause("DAG-11", "BEY-13")
def test_the_report_starts_with_failing_units_and_counts_retries(face: Face, objects: Path) -> None:
    since = face.pipeline.clock() - timedelta(days=1)
    items = [*volumes(2), missing(volumes(3)[2])]
    deliver(face.pipeline, *items)
    face.ingest(partition=PARTITION)
    report = validate_report(face.pipeline, since=since)
    assert list(report)[2:4] == ["units", "stages"]
    assert report["delivery"] == "at_least_once"
    assert list(report["units"])[:4] == ["quarantined", "failed", "oldest_waiting_since", "oldest_waiting_seconds"]
    created_at = own_tx(face.pipeline.ledger).find(status=Status.FAILED)[0].created_at
    assert report["units"].pop("oldest_waiting_seconds") >= 0
    assert report["units"] == {
        "quarantined": 0, "failed": 1, "oldest_waiting_since": rfc3339(created_at), "pending": 0, "in_progress": 0,
        "succeeded": 2, "retries": 1,
    }  # fmt: skip
    put(objects, volumes(3))
    own_tx(face.pipeline.ledger).retry_due(now=face.pipeline.clock() + timedelta(hours=1), limit=9)
    face.ingest(partition=PARTITION)
    later = validate_report(face.pipeline, since=since)["units"]
    assert (later["succeeded"], later["oldest_waiting_since"], later["retries"]) == (3, None, 1)
    assert {gate: result["title"] for gate, result in report["gates"].items()}["G1"] == "schema completeness"
    # The report counts all units of the ledger, but only the retries of the window.
    assert validate_report(face.pipeline, since=since + timedelta(days=2))["units"]["retries"] == 0


@pytest.mark.clause("PCS-12", "PCS-16", "PCS-17", "PCS-19")
def test_a_release_bundle_has_card_reports_and_a_consistent_audit_and_can_be_verified(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedError, match="observed no quantity was checked"):
        gather_release(face.pipeline)
    executed(face, 2)
    for _ in range(2):  # runs without units, which must not hide quantities of the earlier run
        face.ingest(partition=(DAY + timedelta(days=1)).isoformat())
    signer = open_signer(face.pipeline.settings)
    folder = tmp_path / "PTN_EXPORT"
    write_release(gather_release(face.pipeline), folder, signer)
    assert verify_release(folder, trusted_certificates(face.pipeline.settings))[0].fingerprint == signer.fingerprint
    lines = [json.loads(line) for line in (folder / AUDIT).read_text().splitlines()]
    head = own_tx(face.pipeline.stages.lifecycle.store.audit).head()
    assert (verify_chain(lines, head=head[1]), head[0]) == (len(lines), len(lines))
    dimensions = json.loads((folder / DIMENSIONS).read_text())
    [report] = dimensions["datasets"]
    assert (dimensions["p_dim"], report["quantities"] != []) == (1.0, True)
    assert json.loads((folder / VALIDATION).read_text())["audit"]["head"] == head[1]
    for name, content in face.pipeline.card.files.items():
        assert (folder / "configs" / name).read_bytes() == content
    with monkeypatch.context() as patch:
        assert_published_only_if_it_closes(face, patch)
    reading = AuditLog.lines

    def growing(log: AuditLog, **more: Any) -> Iterator[dict[str, Any]]:
        # Another run continues while the audit is read.
        with face.pipeline.database.transaction() as tx:
            line = AuditEvent(run_id="r", stage="nexrad-l2.settle", attempt=1, kind=AuditKind.RETRY, event="attempt 2")
            log.append([line], tx=tx)
        return reading(log, **more)

    monkeypatch.setattr(AuditLog, "lines", growing)
    release = gather_release(face.pipeline)
    audit = release.validate_report["audit"]
    assert verify_chain(map(json.loads, release.audit_lines), head=audit["head"]) == audit["lines"]


def assert_published_only_if_it_closes(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a bundle is refused if quantities do not close dimensionally, whatever the card allows."""
    card = face.pipeline.card
    gates = card.machine.gates.model_copy(update={"G4": card.machine.gates.G4.model_copy(update={"min_p_dim": 0.0})})
    machine = card.machine.model_copy(update={"gates": gates})
    monkeypatch.setattr(face.pipeline, "card", card.model_copy(update={"machine": machine}))
    latitude, *others = face.pipeline.registry["nexrad-l2"].metadata_extract.units
    change_contract(face, monkeypatch, units=[latitude.model_copy(update={"unit": "m"}), *others])
    with pytest.raises(RefusedError) as refused:
        gather_release(face.pipeline)
    assert refused.value.exit_code == ExitCode.REFUSED
    assert "observed p_dim 0." in str(refused.value)
    assert "nexrad:elevations" in str(refused.value)
    report = validate_report(face.pipeline, since=face.pipeline.clock() - timedelta(days=1))
    assert 0 < report["kpis"]["p_dim"] == report["dimensional_closure"]["p_dim"] < 1


@pytest.mark.clause("PCS-16", "PCS-17")
def test_the_kpis_follow_from_the_recorded_attempts_and_readings(pipeline: Pipeline) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    now = [begin]
    store = StageStore(pipeline.database, clock=lambda: now[0])

    def attempt(number: int, seconds: int, to: StageState, stage: str = "settle", **more: Any) -> None:
        fields = {"idempotency_key": "a" * 64, "input_hashes": more.pop("inputs", ["i"])}
        with pipeline.database.transaction() as tx:
            opened = store.open(f"run {number}", f"nexrad-l2.{stage}", tx=tx, **fields)
            running = store.move(opened, StageState.RUNNING, tx=tx)
            now[0] += timedelta(seconds=seconds)
            error = ErrorClass.E_INTERNAL if to is StageState.FAILED else None
            store.move(running, to, error_class=error, details=more, tx=tx)

    for number in range(1, 22):
        attempt(number, number, StageState.SUCCEEDED, units=10)
    # The units of these attempts do not count as settled, and the failed attempt has no latency.
    attempt(1, 21, StageState.SUCCEEDED, stage="stac_register", units=500)
    attempt(30, 22, StageState.SUCCEEDED, units=500, reused="run 1")
    attempt(31, 1_000, StageState.FAILED)
    # A repeated attempt is a conflict only if its inputs differ.
    attempt(1, 23, StageState.SUCCEEDED, stage="stac_register")
    attempt(1, 24, StageState.SUCCEEDED, stage="stac_register", inputs=["other"])
    log = ClockLog(pipeline.database)
    for source, offset, times in (("date:s3.example", 0.3, 1), ("kernel", -0.002, 3)):
        readings = [
            ClockReading(
                at=begin + timedelta(seconds=n),
                source=source,
                offset_seconds=offset,
                uncertainty_seconds=0.001,
                state=ClockState.LOCKED,
            )
            for n in range(times)
        ]
        own_tx(log).record(readings)
    report = validate_report(pipeline, since=begin)
    kpis = report["kpis"]
    span = 21 * 22 / 2 + 21 + 22 + 1_000 + 23 + 24
    assert (kpis["latency_p50_seconds"], kpis["latency_p95_seconds"]) == (13, pytest.approx(22.8))
    assert kpis["throughput_units_per_second"] == pytest.approx(210 / span)
    assert (kpis["retry_count"], kpis["idempotency_conflicts"]) == (2, 1)
    # Waits are counted from the end of the previous attempt.
    waited = [22 + 1_000, 0]
    by_stage = {"nexrad-l2.stac_register": 2}
    assert report["retries"] == {"count": 2, "by_stage": by_stage, "interval_seconds": waited}
    assert kpis["delta_t_abs_seconds"] == 0.002


@pytest.mark.clause("PCS-17", "PCS-23")
def test_every_process_computes_the_same_kpis_of_a_day_from_its_records(face: Face) -> None:
    since = face.pipeline.clock() - timedelta(days=1)
    executed(face, 3)
    first = validate_report(face.pipeline, since=since)
    [day] = first["kpis_by_day"]
    assert day == {"day": first["at"][:10], **first["kpis"]}
    assert list(first["kpis"]) == list(first["kpi_definitions"]) == list(KPIS)
    # On the next day another volume arrives, whose latitude is impossible.
    face.pipeline.clock = lambda: utc_now() + timedelta(days=1)
    reopened(face.pipeline, "stages", "nodes")
    with beyond_the_pole(volumes(4)[3].key):
        executed(face, 4, raise_on_error=False)
    another = Pipeline.open(face.pipeline.settings, read_only=True)
    before, later = validate_report(another, since=since)["kpis_by_day"]
    another.close()
    assert before == day
    assert later["day"] > day["day"]
    assert 0 < later["p_dim"] < day["p_dim"] == 1.0
    assert later["Q_res"] > day["Q_res"]


@pytest.mark.clause("PCS-23")
def test_the_page_has_every_kpi_with_its_definition_and_citation() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "pipeline-card.md").read_text(encoding="utf-8")
    for name, kpi in KPIS.items():
        assert f"| `{name}` | {kpi.definition} | {kpi.citation} |" in page
