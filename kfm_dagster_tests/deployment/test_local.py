"""A deployment on this machine: the ports that it takes."""

from __future__ import annotations

import socket

import pytest

from kfm_dagster.deployment import local
from kfm_dagster.deployment.local import PORTS, DeploymentError, free_port


def test_a_free_port_is_one_of_ours_that_nothing_listens_on(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    assert port in PORTS
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        monkeypatch.setattr(local, "PORTS", range(port, port + 1))
        with pytest.raises(DeploymentError):
            free_port()
