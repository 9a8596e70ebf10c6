"""No variable of this machine, for tests that load settings as a command does."""

from __future__ import annotations

import os

import pytest


def unset_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every KFM_ variable out of the environment but the tests' own."""
    for name in os.environ:
        if name.startswith("KFM_") and not name.startswith("KFM_TEST_"):
            monkeypatch.delenv(name)
