"""Dagster shows a day's state: later runs hide no failure, and an empty day looks empty."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from kfm_dagster.contracts.issues import GateIssue
from kfm_dagster.defs.resources import SqsQueueResource, WalResource, open_pipeline
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster_tests.integration.chain import DAY, PARTITION, notify, put, replaced, volumes
from kfm_dagster_tests.integration.face import Face, materialisations, unit_check
from kfm_dagster_tests.integration.gating import beyond_the_pole, gates
from kfm_dagster_tests.transactions import own_tx

G4 = ("metadata", "G4_dimensional_closure")
WHY = Decision(actor="ada", reason="looked into", change_ref="CHG-1")


def one_is_quarantined(face: Face, objects: Path) -> dg.ExecuteInProcessResult:
    items = volumes(3)
    put(objects, items)
    with beyond_the_pole(items[0].key):
        return face.ingest(partition=PARTITION)


def tags(face: Face, result: dg.ExecuteInProcessResult) -> dict[str, str]:
    run = face.instance.get_run_by_id(result.run_id)
    return {name: value for name, value in run.tags.items() if name.startswith(("kfm/quarantined", "kfm/empty"))}


@pytest.mark.clause("DAG-11", "BEY-13")
def test_later_runs_show_a_quarantined_unit_until_it_is_released_and_succeeds(face: Face, objects: Path) -> None:
    first = one_is_quarantined(face, objects)
    assert tags(face, first) == {"kfm/quarantined": "yes", "kfm/quarantined.nexrad-l2": "1"}

    put(objects, volumes(5))
    later = face.ingest(partition=PARTITION)
    shown = materialisations(later)
    assert {metadata["day_quarantined"] for metadata in shown.values()} == {1}
    assert shown["ledger"]["day"] == "1 quarantined; 4 of 5 succeeded"
    assert (shown["ledger"]["run_units"], shown["ledger"]["run_quarantined"]) == (2, 0)
    check = unit_check(later)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert check.description == "1 of 5 units of the day failed or are quarantined"
    assert (check.metadata["run_units"].value, check.metadata["run_failing"].value) == (2, 0)
    [row] = check.metadata["failing_units"].records
    assert (row.data["object_uri"], row.data["code"]) == (volumes(1)[0].uri, GateIssue.G4)
    gate = gates(later)[G4]
    assert (gate.passed, gate.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert gate.description == "1 unit of the day dropped by this gate in an earlier run"
    assert [key for key, check in gates(later).items() if "day_units_out" in check.metadata and not check.passed] == [
        G4, ("ledger", "G6_coverage"),
    ]  # fmt: skip
    # The later run quarantined nothing; in the list of runs, tags mark the run that quarantined the unit.
    assert tags(face, later) == {}
    quarantined_of = {"kfm/quarantined": "yes", "kfm/dataset.nexrad-l2": "yes"}
    assert [run.run_id for run in face.instance.get_runs(dg.RunsFilter(tags=quarantined_of))] == [first.run_id]

    [unit] = own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)
    own_tx(face.pipeline.ledger).override(
        {unit.wal_id: unit.version}, from_status=Status.QUARANTINED, action=GovernanceAction.RELEASE, decision=WHY
    )
    last = face.ingest(partition=PARTITION)
    assert materialisations(last)["ledger"]["day"] == "5 of 5 succeeded"
    assert (unit_check(last).passed, gates(last)[G4].passed) == (True, True)


@pytest.mark.clause("DAG-08")
def test_materialisations_and_both_checks_link_to_the_console_s_page_of_a_failing_unit(
    face: Face, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = WalResource.settings
    where = {"console_url": "https://console.example"}
    monkeypatch.setattr(WalResource, "settings", lambda self: plain(self).model_copy(update=where))
    result = one_is_quarantined(face, objects)
    open_pipeline(Settings.current().model_copy(update=where), SqsQueueResource()).close()
    [unit] = own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)
    link = f"](https://console.example/units/{unit.wal_id})"
    shown = [materialisations(result)["metadata"], materialisations(result)["ledger"]]
    shown += [
        {name: value.value for name, value in check.metadata.items()}
        for check in (unit_check(result), gates(result)[G4])
    ]
    assert [link in entries["in_console"] for entries in shown] == [True] * 4
    assert "in_console" not in materialisations(result)["envelopes"]


@pytest.mark.clause("DAG-11")
def test_a_day_is_shown_as_empty_only_until_it_has_units(face: Face, objects: Path) -> None:
    empty = face.ingest(partition=PARTITION)
    assert empty.success
    assert {metadata["day"] for metadata in materialisations(empty).values()} == {"empty: nothing of this day is known"}
    check = unit_check(empty)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert check.description == "empty: nothing of this day is known"
    assert tags(face, empty) == {"kfm/empty": "yes", "kfm/empty.nexrad-l2": "yes"}

    next_day = face.ingest(partition=(DAY + timedelta(days=1)).isoformat())
    for result in (one_is_quarantined(face, objects), next_day):
        checks = result.get_asset_check_evaluations()
        assert {evaluation.partition for evaluation in checks} == {result.dagster_run.tags["dagster/partition"]}
        assert len(checks) == 11
    graph = face.repository.asset_graph
    unpartitioned = {key.name for key in graph.asset_check_keys if graph.get_check_spec(key).partitions_def is None}
    # The check on feeds does not depend on the run's day.
    assert unpartitioned == {"feeds_are_whole"}

    put(objects, volumes(3))
    for _ in range(2):
        second = face.ingest(partition=PARTITION)
        assert materialisations(second)["ledger"]["day"] == "1 quarantined; 2 of 3 succeeded"
        assert not gates(second)[G4].passed
        assert not unit_check(second).passed
        # A run without new units on a day with units is not marked empty.
        assert tags(face, second) == {}
    assert materialisations(second)["ledger"]["outcome"] == "skipped"


@pytest.mark.clause("DAG-11")
def test_superseded_units_and_units_of_closed_cases_fail_no_check(face: Face, objects: Path) -> None:
    """A superseded unit, and a unit whose case a person has closed."""
    one_is_quarantined(face, objects)
    [unit] = own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)
    own_tx(QuarantineCases(face.pipeline.database, clock=face.pipeline.clock)).discard(
        {unit.wal_id: unit.version}, decision=WHY
    )
    new = volumes(4)[3]
    old = replaced(new, b"an earlier version")
    put(objects, [new])
    notify(face.pipeline, new, event_time=face.pipeline.clock())
    notify(face.pipeline, old)
    codes = {record.last_error_code for record in own_tx(face.pipeline.ledger).find(status=Status.QUARANTINED)}
    assert codes == {GateIssue.G4, LedgerCode.STALE_EVENT}
    result = face.ingest(partition=PARTITION)
    assert materialisations(result)["ledger"]["day"] == "2 quarantined; 3 of 5 succeeded"
    assert unit_check(result).passed, unit_check(result).description
    assert gates(result)[G4].passed
