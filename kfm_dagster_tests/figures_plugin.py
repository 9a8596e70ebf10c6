"""Pytest plugin: prints the figures that tests measured, at the end of the session.

Call the fixture `figure` with a sentence. Figures are never asserted, because machines are noisy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

_FIGURE = "figure"


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Report a figure of this test."""
    return lambda line: record_property(_FIGURE, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # Read from the reports, because with pytest-xdist the tests ran in workers.
    reports = [report for group in terminalreporter.stats.values() for report in group if hasattr(report, "when")]
    figures = [
        value
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == _FIGURE
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)
