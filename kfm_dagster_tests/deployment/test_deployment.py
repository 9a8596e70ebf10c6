"""The supervisor of a deployment's processes, tested with small substitutes; and draining."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.deployment import drain as draining
from kfm_dagster.deployment import local as deployment_module
from kfm_dagster.deployment.drain import drain, report_held_days
from kfm_dagster.deployment.local import MAX_DEATHS, Deployment, free_port
from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.discovery import DayListing
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.backfill.progress import Backfill, find_backfill, listed_backfills
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.runs import ReplayState
from kfm_dagster.settings import Settings
from kfm_dagster_tests.timeouts import HANG_SECONDS
from kfm_dagster_tests.transactions import own_tx


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment_ = Deployment(tmp_path, environment={})
    yield deployment_
    deployment_.stop()


@pytest.mark.clause("BEY-15")
def test_relative_paths_are_resolved_from_the_starting_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables = {"KFM_CONTRACTS_DIR": "contracts", "KFM_SIGNING_KEY": "/keys/mine.asc", "KFM_CONFIGS_DIR": ""}
    environment = Deployment(tmp_path / "home", environment=variables)._environment
    assert {name: environment[name] for name in variables} == variables | {
        "KFM_CONTRACTS_DIR": str(tmp_path / "contracts")
    }


def test_each_part_is_started_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: dict[str, str] = {}
    monkeypatch.setattr(Deployment, "_spawn", lambda _, name, command: commands.update({name: " ".join(command)}))
    for without_effect in ("_wait", "_prepare_storage"):
        monkeypatch.setattr(Deployment, without_effect, lambda *_: None)
    Deployment(tmp_path, environment={}, web_port=1, console_port=2, module="location").start()
    workspace = tmp_path / "dagster" / "workspace.yaml"
    [port] = re.findall(r"port: (\d+)\n", workspace.read_text())
    assert commands == {
        "code-server": f"python -m kfm_dagster.defs.code_server -m location -h 127.0.0.1 -p {port}",
        "daemon": f"dagster-daemon run -w {workspace}",
        "webserver": f"python -m kfm_dagster.defs.web_server -h 127.0.0.1 -p 1 -w {workspace}",
        "console": "kfm console --port 2",
    }


def tend_for_ever(deployment: Deployment) -> None:
    while True:
        deployment.tend()
        time.sleep(0.05)


def test_a_killed_process_is_restarted_and_the_other_processes_are_not(deployment: Deployment) -> None:
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
def test_the_code_server_is_restarted_when_the_partitions_begin_earlier(
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


def test_a_process_that_keeps_dying_is_given_up(deployment: Deployment, tmp_path: Path) -> None:
    deployment._spawn("hopeless", ["python", "-c", "print('once more'); raise SystemExit(3)"])
    with pytest.raises(DependencyUnavailableError, match=r"keep dying.*hopeless ended with exit code 3"):
        tend_for_ever(deployment)
    assert (tmp_path / "logs" / "hopeless.log").read_text().splitlines() == ["once more"] * MAX_DEATHS


def test_ports_are_outside_the_ephemeral_range(monkeypatch: pytest.MonkeyPatch) -> None:
    range_of_outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if range_of_outgoing.is_file():  # Linux
        assert max(deployment_module.PORTS) < int(range_of_outgoing.read_text(encoding="ascii").split()[0])
    assert free_port() in deployment_module.PORTS
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(deployment_module, "PORTS", [taken.getsockname()[1]])
        with pytest.raises(DependencyUnavailableError, match="no port is free"):
            free_port()


def test_an_echoed_request_does_not_count_as_a_served_port() -> None:
    """A connection to an ephemeral port without a listener can connect to itself."""
    with socket.create_server(("127.0.0.1", 0)) as echo, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            asking, _address = echo.accept()
            with asking:
                asking.sendall(asking.recv(1024))

        answered = pool.submit(answer)
        assert not deployment_module._serves(f"http://127.0.0.1:{echo.getsockname()[1]}/healthz")
        answered.result(timeout=10)


ADA = Decision(actor="ada", reason="a leak")
HELD = "days of backfill {} not listed"
NOTHING = Progress(queued=0, units=60, terminal=60, in_flight=0, waiting=0)


class Lister:
    """Replaces a deployment: lists the days of backfills, and ends them five calls of `tend` later."""

    home = Path("home")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._rest = 5

    def tend(self) -> None:
        if listed_backfills(self._pipeline.database) and self._rest:
            self._rest -= 1
            return
        for request in Backfills(self._pipeline).advance(listing=(), limit=1).requests:
            for dataset in request.datasets:
                day = DayListing(
                    clock=self._pipeline.clock, backfill_id=request.backfill_id, dataset=dataset, day=request.day
                )
                with self._pipeline.database.transaction() as tx:
                    assert day.opened(tx)
                    day.closed(tx, {})


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    """A pipeline with an empty queue and only terminal units."""
    monkeypatch.setattr(draining, "POLL_SECONDS", 0)
    monkeypatch.setattr(draining, "progress", lambda *_: NOTHING)
    with closing(Pipeline.open(Settings.load(home=tmp_path / "home"))) as opened:
        yield opened


def five_days(pipeline: Pipeline) -> Backfill:
    days = date(2025, 4, 1), date(2025, 4, 5)
    return Backfills(pipeline).start(datasets=["hrrr", "nexrad-l2"], first_day=days[0], last_day=days[1], decision=ADA)


def drained(pipeline: Pipeline, *, seconds: float = HANG_SECONDS) -> Progress:
    substitute = cast("Deployment", Lister(pipeline))
    return drain(substitute, pipeline, timeout_seconds=seconds, report=lambda _: None)


def held(pipeline: Pipeline) -> list[str]:
    lines: list[str] = []
    report_held_days(pipeline.ledger, lines.append)
    return lines


@pytest.mark.clause("DAG-05")
def test_a_drain_lasts_until_backfills_are_listed_and_ended_or_its_time_is_over(
    pipeline: Pipeline,
) -> None:
    started = five_days(pipeline)
    expected = (
        f"queue did not drain; observed 0 messages, 0 units, 10 days of backfill {started.backfill_id} left after"
    )
    with pytest.raises(DependencyUnavailableError, match=expected):
        drained(pipeline, seconds=-1)
    assert drained(pipeline) == NOTHING
    backfill = find_backfill(pipeline.database, started.backfill_id)
    assert (backfill.days_listed, backfill.state) == (10, ReplayState.FINISHED)
    assert held(pipeline) == []


@pytest.mark.clause("DAG-05")
def test_a_drain_ends_after_three_empty_checks_in_a_row(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    queued = iter([0, 0, 1, 0, 0])
    replaying = iter([False, False, False, False, False, True])
    reports: list[Progress] = []
    monkeypatch.setattr(draining, "progress", lambda *_: replace(NOTHING, queued=next(queued, 0)))
    monkeypatch.setattr(ReplayEngine, "at_work", lambda _: next(replaying, False))
    drain(cast("Deployment", Lister(pipeline)), pipeline, timeout_seconds=HANG_SECONDS, report=reports.append)
    assert len(reports) == 9


def test_polls_of_a_large_ledger_take_a_tenth_of_a_drain(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], []

    def count(*_: object) -> Progress:
        now[0] += 2
        return NOTHING

    monkeypatch.setattr(draining, "progress", count)
    monkeypatch.setattr(draining, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append))
    assert drained(pipeline, seconds=1_000) == NOTHING
    assert pauses == [18, 18]


@pytest.mark.clause("DAG-05")
@pytest.mark.parametrize(("seconds", "looks"), [(HANG_SECONDS, 8), (-1.0, 3)])
@pytest.mark.parametrize("name", ["beams", "evidence"])
def test_a_drain_waits_for_beams_and_evidence_for_a_limited_time(
    name: str, seconds: float, looks: int, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = iter([["one"]] * 5)
    monkeypatch.setattr(draining, "FOLLOW_UP_SECONDS", seconds)
    if name == "beams":
        monkeypatch.setattr(draining, "days_to_compute", lambda *_, **__: next(due, []))
    else:
        monkeypatch.setattr(QuarantineCases, "due", lambda _, *, limit: next(due, [])[:limit])
    reports: list[Progress] = []
    drain(cast("Deployment", Lister(pipeline)), pipeline, timeout_seconds=HANG_SECONDS, report=reports.append)
    assert len(reports) == looks


def _without_contract(pipeline: Pipeline, _: Backfill) -> None:
    all_contracts = pipeline.registry.contracts
    pipeline.ledger.registry = ContractRegistry.of(
        [contract for name, contract in all_contracts.items() if name != "hrrr"]
    )


@pytest.mark.clause("DAG-05", "WAL-10")
@pytest.mark.parametrize(
    ("change", "listed", "expected"),
    [
        (lambda p, started: ReplayEngine(pipeline=p).stop(started.backfill_id, ADA), 0, ""),
        (lambda p, _: p.ledger.switches.engage("*", decision=ADA), 0, f"10 {HELD}: every dataset is switched off"),
        (lambda p, _: p.ledger.switches.engage("hrrr", decision=ADA), 5, f"5 {HELD}: hrrr is switched off"),
        (_without_contract, 5, f"5 {HELD}: no contract names hrrr"),
    ],
)
def test_a_drain_ends_without_unlistable_days_and_names_the_reason(
    change: Callable[[Pipeline, Backfill], None], listed: int, expected: str, pipeline: Pipeline
) -> None:
    started = five_days(pipeline)
    change(pipeline, started)
    drained(pipeline)
    assert find_backfill(pipeline.database, started.backfill_id).days_listed == listed
    lines = held(pipeline)
    assert len(lines) == bool(expected)
    assert "".join(lines).startswith(expected.format(started.backfill_id))
