"""Every failpoint is reached by one pass of the chain, and a fault at any of them costs time and nothing else."""

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
from kfm_dagster_tests.chaos.world import World, die, finish
from kfm_dagster_tests.conftest import AWS

TRANSACTIONS = ("database", "stage")
"""Where a transaction begins or ends; only there can it matter which database it is."""
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
    """What is left when nothing goes wrong, and how often each failpoint was reached until then."""
    reached: Counter[Failpoint] = Counter()
    world = World.make(tmp_path_factory.mktemp("undisturbed"), "")
    failpoints.install(lambda failpoint, _: reached.update([failpoint]))
    try:
        found = finish(world)
    finally:
        failpoints.install(None)
    return found, reached


@pytest.fixture
def disturbed(tmp_path: Path, database_url: str) -> World:
    return World.make(tmp_path, database_url)


def plan(failpoint: Failpoint, fault: str, reached: Counter[Failpoint]) -> str:
    """A fault after a third of all occasions; a later one may end the last attempt of the missing object."""
    rule = f"{{name: it, fault: {fault}, failpoint: {failpoint}, nth: {max(1, reached[failpoint] // 3)}}}"
    return f"apiVersion: kfm.nodd.chaos/v1\nrules: [{rule}]"


@pytest.mark.clause("BEY-09")
def test_one_pass_of_the_chain_reaches_every_failpoint(undisturbed: tuple[dict[str, Any], Counter[Failpoint]]) -> None:
    found, reached = undisturbed
    assert set(Failpoint) - set(reached) == set()
    assert Counter(record["status"] for record in found["ledger"].values()) == {
        Status.SUCCEEDED: 2,
        Status.QUARANTINED: 1,
    }


@pytest.mark.clause("BEY-09", "BEY-07", "WAL-05", "BEY-03")
@pytest.mark.parametrize(
    ("failpoint", "database_url"),
    [(failpoint, "sqlite") for failpoint in Failpoint if can_fail(failpoint)],
    indirect=["database_url"],
)
def test_a_dependency_that_fails_at_a_failpoint_costs_time_and_nothing_else(
    failpoint: Failpoint, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Failpoint]]
) -> None:
    expected, reached = undisturbed
    with injecting(parse_plan(plan(failpoint, "error", reached), source="plan"), disturbed.root / "state") as injector:
        found = finish(disturbed)
    assert [entry["failpoint"] for entry in injector.counters.injected()] == [failpoint]
    assert found == expected


@pytest.mark.clause("BEY-09", "WAL-05", "WAL-08", "BEY-03")
@pytest.mark.parametrize(("failpoint", "database_url"), CASES, indirect=["database_url"])
def test_a_process_killed_at_a_failpoint_costs_time_and_nothing_else(
    failpoint: Failpoint, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Failpoint]]
) -> None:
    expected, reached = undisturbed
    text = plan(failpoint, "kill", reached)
    assert die(disturbed, text) == -signal.SIGKILL
    found = finish(disturbed)
    injector = Injector(parse_plan(text, source="plan"), disturbed.root / "state")
    assert [entry["failpoint"] for entry in injector.counters.injected()] == [failpoint]
    assert found == expected
