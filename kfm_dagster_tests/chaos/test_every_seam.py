"""Every seam is reached by one pass of the chain, and a fault at any of them costs time and nothing else."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from kfm_dagster import seams
from kfm_dagster.chaos.failures import can_fail
from kfm_dagster.chaos.injector import Injector, injecting
from kfm_dagster.chaos.plan import parse_plan
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.seams import Seam
from kfm_dagster_tests.chaos.world import World, die, finish

TRANSACTIONS = ("database", "stage")
"""Where a transaction begins or ends; only there can it matter which database it is. The crash matrix dies inside."""
CASES = [
    (seam, database)
    for seam in Seam
    for database in ("sqlite", "postgresql")
    if database == "sqlite" or seam.partition(".")[0] in TRANSACTIONS
]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def _aws(endpoint: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, _aws: None) -> tuple[dict[str, Any], Counter[Seam]]:
    """What is left when nothing goes wrong, and how often each seam was reached until then."""
    reached: Counter[Seam] = Counter()
    world = World.make(tmp_path_factory.mktemp("undisturbed"), "")
    seams.install(lambda seam, _: reached.update([seam]))
    try:
        found = finish(world)
    finally:
        seams.install(None)
    return found, reached


@pytest.fixture
def disturbed(tmp_path: Path, database_url: str) -> World:
    return World.make(tmp_path, database_url)


def plan(seam: Seam, fault: str, reached: Counter[Seam]) -> str:
    """A fault in the middle of all occasions at a seam."""
    rule = f"{{name: it, fault: {fault}, seam: {seam}, nth: {max(1, reached[seam] // 2)}}}"
    return f"apiVersion: kfm.nodd.chaos/v1\nrules: [{rule}]"


@pytest.mark.clause("BEY-09")
def test_one_pass_of_the_chain_reaches_every_seam(undisturbed: tuple[dict[str, Any], Counter[Seam]]) -> None:
    found, reached = undisturbed
    assert set(Seam) - set(reached) == set()
    assert Counter(record["status"] for record in found["ledger"].values()) == {
        Status.SUCCEEDED: 2,
        Status.QUARANTINED: 1,
    }


@pytest.mark.clause("BEY-09", "BEY-07", "WAL-05", "BEY-03")
@pytest.mark.parametrize(
    ("seam", "database_url"),
    # On PostgreSQL the crash matrix has an error at every statement.
    [(seam, "sqlite") for seam in Seam if can_fail(seam)],
    indirect=["database_url"],
)
def test_a_dependency_that_fails_at_a_seam_costs_time_and_nothing_else(
    seam: Seam, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Seam]]
) -> None:
    expected, reached = undisturbed
    with injecting(parse_plan(plan(seam, "error", reached), source="plan"), disturbed.root / "state") as injector:
        found = finish(disturbed)
    assert [entry["seam"] for entry in injector.tally.injected()] == [seam]
    assert found == expected


@pytest.mark.clause("BEY-09", "WAL-05", "WAL-08", "BEY-03")
@pytest.mark.parametrize(("seam", "database_url"), CASES, indirect=["database_url"])
def test_a_process_killed_at_a_seam_costs_time_and_nothing_else(
    seam: Seam, disturbed: World, undisturbed: tuple[dict[str, Any], Counter[Seam]]
) -> None:
    expected, reached = undisturbed
    text = plan(seam, "kill", reached)
    assert die(disturbed, text) == -signal.SIGKILL
    found = finish(disturbed)
    injector = Injector(parse_plan(text, source="plan"), disturbed.root / "state")
    assert [entry["seam"] for entry in injector.tally.injected()] == [seam]
    assert found == expected
