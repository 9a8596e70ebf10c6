"""An environment without this machine's variables, to load settings as a command does."""

from __future__ import annotations

import os

import pytest


def unset_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove every KFM_ variable except the tests' own from the environment."""
    for name in os.environ:
        if name.startswith("KFM_") and not name.startswith("KFM_TEST_"):
            monkeypatch.delenv(name)
