"""`kfm ui` where it must not start, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from kfm_dagster.cli.main import stopped_by_signals
from kfm_dagster.cli.running import addresses, free_console_port, ui
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.settings import Settings


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFM_HOME", str(tmp_path / "home"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = CliRunner().invoke(ui, ["--port", str(port)])
    assert isinstance(result.exception, ConfigurationError)
    assert f"the port is taken; observed {port}" in str(result.exception)
    assert not (tmp_path / "home").exists()


def test_the_console_has_the_next_port_or_another_where_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        chosen = free_console_port(taken - 1)
    assert chosen != taken
    assert free_console_port(taken - 1) == taken


def test_page_and_console_lead_to_each_other_unless_the_settings_name_others() -> None:
    page, console = {"KFM_DAGSTER_URL": "http://127.0.0.1:3000"}, {"KFM_CONSOLE_URL": "http://127.0.0.1:3001"}
    for named, own in (
        ({}, page | console),
        ({"dagster_url": "https://d.example"}, console),
        ({"console_url": "https://c.example"}, page),
    ):
        assert addresses(Settings(**named), port=3000, console_port=3001) == own


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_as_ctrl_c_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopped_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
