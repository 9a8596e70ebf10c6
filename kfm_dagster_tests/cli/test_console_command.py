"""`kfm console` as a process: it says where it answers, answers there, and ends when it is told to."""

# ruff: noqa: F811 - fixtures are asked for by the name that they are imported under

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kfm_dagster.deployment.local import free_port
from kfm_dagster.errors import ExitCode
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster_tests.cli.test_cli import Call, call, home, ledger, state_of  # noqa: F401, fixtures

SERVE = "import sys; from kfm_dagster.cli.main import main; main(sys.argv[1:])"


@pytest.mark.clause("PCS-16")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(
    ledger: dict[str, NoddWalRecord], call: Call, tmp_path: Path, number: signal.Signals
) -> None:
    before, port = state_of(tmp_path), free_port()
    arguments = [sys.executable, "-c", SERVE, "console", "--port", str(port)]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as serving:
        try:
            assert serving.stdout is not None
            address = serving.stdout.readline().strip()
            assert address == f"http://127.0.0.1:{port}/validate"
            with urllib.request.urlopen(f"{address}?days=1", timeout=60) as answer:
                served = json.load(answer)
            said = json.loads(call("validate", "--days", "1", "--json").out)
            # How long the oldest has waited goes on.
            for report in (served, said):
                del report["units"]["oldest_waiting_seconds"]
            changing = {"at", "since"}
            assert {k: v for k, v in served.items() if k not in changing} == {
                k: v for k, v in said.items() if k not in changing
            }
            taken = call("console", "--port", str(port))
            assert (taken.code, taken.out) == (ExitCode.USAGE, "")
            assert taken.err.startswith(f"kfm: the address cannot be served; observed 127.0.0.1 port {port}: ")
        finally:
            serving.send_signal(number)
        out, err = serving.communicate(timeout=60)
    assert (serving.returncode, out, err) == (ExitCode.DONE, "", "# serving until Ctrl-C\n")
    assert state_of(tmp_path) == before
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_an_address_of_another_machine_or_no_ledger_is_one_line(
    call: Call, home: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    none = call("console", "--port", str(free_port()))
    assert (none.code, none.err.count("\n"), home.exists()) == (ExitCode.USAGE, 1, False)
    assert "there is no ledger yet" in none.err
    request.getfixturevalue("ledger")
    # TEST-NET-1 (RFC 5737): nobody has it.
    other = call("console", "--host", "192.0.2.1", "--port", str(free_port()))
    assert (other.code, other.out, other.err.count("\n")) == (ExitCode.USAGE, "", 1)
    assert "observed 192.0.2.1 port" in other.err
