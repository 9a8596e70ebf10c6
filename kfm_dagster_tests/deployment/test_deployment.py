"""The supervisor of a deployment's parts, with small processes in their place."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest

from kfm_dagster.deployment import local as deployment_module
from kfm_dagster.deployment.local import MAX_DEATHS, Deployment, free_port
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.settings import Settings
from kfm_dagster_tests.transactions import own_tx


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, environment={})
    yield made
    made.stop()


@pytest.mark.clause("BEY-15")
def test_a_path_is_of_the_folder_that_it_was_given_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"KFM_CONTRACTS_DIR": "contracts", "KFM_SIGNING_KEY": "/keys/mine.asc", "KFM_CONFIGS_DIR": ""}
    environment = Deployment(tmp_path / "home", environment=given)._environment
    assert {name: environment[name] for name in given} == given | {"KFM_CONTRACTS_DIR": str(tmp_path / "contracts")}


def tend_for_ever(deployment: Deployment) -> None:
    while True:
        deployment.tend()
        time.sleep(0.05)


def test_a_part_that_is_killed_is_started_again_and_its_neighbour_left_alone(deployment: Deployment) -> None:
    for name in ("victim", "neighbour"):
        deployment._spawn(name, ["python", "-c", "import time; time.sleep(600)"])
    victim, neighbour = deployment.pids()
    deployment.tend()
    assert deployment.pids() == [victim, neighbour]
    deployment.kill("victim")
    deployment.tend()
    successor, same = deployment.pids()
    assert same == neighbour
    assert successor != victim
    os.kill(successor, 0)


@pytest.mark.clause("DAG-12")
def test_the_code_server_is_started_again_when_the_partitions_begin_earlier(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment_module, "WINDOW_POLL_SECONDS", 0.0)
    for name in ("code-server", "daemon"):
        deployment._spawn(name, ["python", "-c", "import time; time.sleep(600)"])
    with closing(Pipeline.open(Settings.load(home=tmp_path, first_day=date(2025, 1, 1)))) as pipeline:
        deployment._first_day = pipeline.window.first_day()
        server, daemon = deployment.pids()
        deployment.tend()
        assert deployment.pids() == [server, daemon]
        own_tx(pipeline.window).lower(date(1991, 6, 5), actor="ada", reason="an earlier day")
    deployment.tend()
    successor, same = deployment.pids()
    assert same == daemon
    assert successor != server
    deployment.tend()
    assert deployment.pids() == [successor, daemon]


def test_a_part_that_keeps_dying_is_not_started_for_ever(deployment: Deployment, tmp_path: Path) -> None:
    deployment._spawn("hopeless", ["python", "-c", "print('once more'); raise SystemExit(3)"])
    with pytest.raises(DependencyUnavailableError, match=r"keep dying.*hopeless ended with exit code 3"):
        tend_for_ever(deployment)
    assert (tmp_path / "logs" / "hopeless.log").read_text().splitlines() == ["once more"] * MAX_DEATHS


def test_a_port_is_none_that_an_outgoing_connection_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    range_of_outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if range_of_outgoing.is_file():  # Linux
        assert max(deployment_module.PORTS) < int(range_of_outgoing.read_text(encoding="ascii").split()[0])
    assert free_port() in deployment_module.PORTS
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(deployment_module, "PORTS", [taken.getsockname()[1]])
        with pytest.raises(DependencyUnavailableError, match="no port is free"):
            free_port()


def test_what_is_answered_with_its_own_question_is_not_served() -> None:
    """A connection to a port of outgoing ones, where nobody listens, may be one to itself."""
    with socket.create_server(("127.0.0.1", 0)) as echo, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            asking, _address = echo.accept()
            with asking:
                asking.sendall(asking.recv(1024))

        answered = pool.submit(answer)
        assert not deployment_module._serves(f"http://127.0.0.1:{echo.getsockname()[1]}/healthz")
        answered.result(timeout=10)
