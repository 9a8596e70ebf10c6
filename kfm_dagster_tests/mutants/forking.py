"""Run pytest in forks of a process that has imported the libraries, to import them once.

The process does not import the product or its tests: each fork imports them from the copy.

`python -m kfm_dagster_tests.mutants.forking`, in the folder of a copy, reads a request in JSON from each line of its
input and answers with two lines: the fork's process id, and its exit code once it has ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import re
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

OURS = {"kfm_dagster", "kfm_dagster_tests", "benchmarks", "docs_site", "fault_injection"}
IMPORTING = ("kfm_dagster/**/*.py", "kfm_dagster_tests/*.py", "benchmarks/postgis.py")
"""Modules whose libraries are imported before the first fork."""
PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout", "xdist.plugin", "xdist.looponfail")
"""Pytest plugins of other packages that pyproject.toml does not disable."""
IMPORT = re.compile(r"^(?:from|import) ([\w.]+)", re.MULTILINE)


class Report:
    """Pytest plugin: records passed and failed tests, and stops the run at the CPU limit."""

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.process_time() + seconds
        self.failed: list[str] = []
        self.passed = 0
        self.stopped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a passed call, or a failed phase of a test."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed += 1

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Stop after the test that exceeds the CPU limit."""
        if self._end is not None and time.process_time() > self._end:
            self.stopped = True
            item.session.shouldstop = "the tests have used their CPU time"


def serve() -> None:
    """Answer requests until the input ends."""
    _import_libraries()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        if (child := os.fork()) == 0:
            _end(_run(**request))
        print(child, flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def _run(*, arguments: Sequence[str], folder: str, seconds: float | None) -> int:
    """Run pytest in its own process group; write its output and report to a folder."""
    os.setsid()
    output = os.open(Path(folder) / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in enumerate((nothing, output, output)):
        os.dup2(source, number)
    report = Report(seconds)
    code = int(pytest.main(list(arguments), plugins=[report]))
    outcome = {"failed": report.failed, "passed": report.passed, "stopped": report.stopped}
    (Path(folder) / "report").write_text(json.dumps(outcome), encoding="utf-8")
    return code


def _import_libraries() -> None:
    """Import the libraries that product and tests import at module level, and pytest's plugins."""
    texts = [path.read_text(encoding="utf-8") for folder in IMPORTING for path in sorted(Path().glob(folder))]
    imported = {name for text in texts for name in IMPORT.findall(text) if name.partition(".")[0] not in OURS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*PLUGINS, *sorted(imported)]:
            with suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)


def _end(code: int) -> None:
    """End a fork: run the exit functions, but skip the slow teardown of modules."""
    with suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
