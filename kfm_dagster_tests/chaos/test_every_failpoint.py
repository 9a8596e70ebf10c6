"""The chain's passes reach every failpoint, and a fault at any failpoint leaves the result unchanged."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_injection.failures import can_fail
from fault_injection.injector import Injector, injecting
from fault_injection.plan import parse_plan
from kfm_dagster import failpoints
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.failpoints import Failpoint
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster_tests.chaos.world import World, finish, run_with_faults
from kfm_dagster_tests.conftest import AWS

TRANSACTIONS = ("database", "stage")
"""First parts of the names of failpoints at transactions, which are tested on both databases."""
CASES = [
    (failpoint, database)
    for failpoint in Failpoint
    for database in ("sqlite", "postgresql")
    if database == "sqlite" or failpoint.partition(".")[0] in TRANSACTIONS
]


@pytest.fixture(scope="module", autouse=True)
def _aws(cloud: EmbeddedCloud) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": cloud.endpoint_url}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, _aws: None) -> tuple[dict[str, Any], Counter[Failpoint]]:
    """Return the result without faults, and how often each failpoint was reached."""
    reached: Counter[Failpoint] = Counter()
    world = World.make(tmp_path_factory.mktemp("undisturbed"), "")
    failpoints.install(lambda failpoint, _: reached.update([failpoint]))
    try:
        result = finish(world)
    finally:
        failpoints.install(None)
    return result, reached


@pytest.fixture
def disturbed(tmp_path: Path, database_url: str) -> World:
    return World.make(tmp_path, database_url)


def plan(failpoint: Failpoint, fault: str, reached: Counter[Failpoint]) -> str:
    """Return a plan with one fault, after a third of the times that an undisturbed run reaches the failpoint."""
    rule = f"{{name: it, fault: {fault}, failpoint: {failpoint}, nth: {max(1, reached[failpoint] // 3)}}}"
    return f"apiVersion: kfm.nodd.chaos/v1\nrules: [{rule}]"


@pytest.mark.clause("BEY-09")
def test_the_passes_of_the_chain_reach_every_failpoint(undisturbed: tuple[dict[str, Any], Counter[Failpoint]]) -> None:
    result, reached = undisturbed
    assert set(Failpoint) - set(reached) == set()
    assert Counter(record["status"] for record in result["ledger"].values()) == {
        Status.SUCCEEDED: 2,
        Status.QUARANTINED: 1,
    }


@pytest.mark.clause("BEY-09", "BEY-07", "WAL-05", "BEY-03")
@pytest.mark.parametrize(
    ("failpoint", "database_url"),
    [(failpoint, "sqlite") for failpoint in Failpoint if can_fail(failpoint)],
    indirect=["database_url"],
)
def test_a_dependency_s_failure_at_a_failpoint_does_not_change_the_result(
    failpoint: Failpoint, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Failpoint]]
) -> None:
    expected, reached = undisturbed
    with injecting(parse_plan(plan(failpoint, "error", reached), source="plan"), disturbed.root / "state") as injector:
        result = finish(disturbed)
    assert [entry["failpoint"] for entry in injector.counters.injected()] == [failpoint]
    assert result == expected


@pytest.mark.clause("BEY-09", "WAL-05", "WAL-08", "BEY-03")
@pytest.mark.parametrize(("failpoint", "database_url"), CASES, indirect=["database_url"])
def test_a_kill_at_a_failpoint_does_not_change_the_result(
    failpoint: Failpoint, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Failpoint]]
) -> None:
    expected, reached = undisturbed
    text = plan(failpoint, "kill", reached)
    assert run_with_faults(disturbed, text) == -signal.SIGKILL
    result = finish(disturbed)
    injector = Injector(parse_plan(text, source="plan"), disturbed.root / "state")
    assert [entry["failpoint"] for entry in injector.counters.injected()] == [failpoint]
    assert result == expected
