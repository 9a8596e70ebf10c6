"""An environment without this machine's variables, for tests that load settings like a command."""

from __future__ import annotations

import os

import pytest


def unset_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every KFM_ variable from the environment except the tests' own."""
    for name in os.environ:
        if name.startswith("KFM_") and not name.startswith("KFM_TEST_"):
            monkeypatch.delenv(name)
