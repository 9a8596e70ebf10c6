"""Pytest plugin: figures that a test measures are printed at the end of the session, also when it passes.

Ask for the fixture `figure` and call it with a sentence. A figure is reported, never asserted: machines are noisy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Report a figure of this test."""
    return request.config.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(_FIGURES, []):
        terminalreporter.section("figures")
        for line in found:
            terminalreporter.write_line(line)
