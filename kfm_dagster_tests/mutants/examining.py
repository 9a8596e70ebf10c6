"""Examine a mutant: change a text in a copy of the checkout, run its tests, restore it.

The mutants are in `rules/` or come from `generating.py`.
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from itertools import chain
from pathlib import Path

import yaml

from kfm_dagster_tests.programs import git

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("rules")
"""The list of rules: a YAML file for each folder of the product, and one for SQL."""
RETIRED = Path(__file__).with_name("retired.yaml")
"""The rules removed from the list, each with a reason."""
PYTEST = ("-q", "--no-header", "-W", "ignore", "-p", "no:cacheprovider", "--timeout", "90")
TIMEOUT_SECONDS = 300.0
"""Limit for a mutant's tests, which take seconds on an idle machine."""
CPU_SECONDS = 40.0
"""CPU limit for a mutant with many tests: ten times the usual time of a row's test."""
FIRST_LOOK = 20.0
"""CPU limit for the mutants of a change, so that many are examined in a few minutes."""
HARMLESS = "kfm_dagster_tests/catalog/test_order.py"
"""Tests that pass within a second in every working checkout."""
TESTS_FAILED, NO_TESTS = 1, 5
"""pytest's exit codes; 2 to 4 are an interruption, an internal error, and a usage error."""


@unique
class StepResult(StrEnum):
    """How a mutant ended."""

    KILLED = "killed"
    """Its test failed."""
    SURVIVED = "survived"
    """Its tests passed: no test holds the rule."""
    BROKEN = "broken"
    """No result: the text does not occur exactly once, no test ended, or the failed tests also fail without it."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of a text in `file`, below the root, and the test that must fail for it.

    Every listed mutant must be killed, and 90 % of the `generated` ones. For a generated mutant, import errors and
    dying processes also count as killed, and the tests have a CPU limit. `further`: the tests of a second look, as
    arguments of pytest.
    """

    rule: str
    file: str
    old: str
    new: str
    test: str
    generated: bool = False
    further: str = ""

    @property
    def arguments(self) -> list[str]:
        """Return pytest's arguments that select the test."""
        return shlex.split(self.test)

    def misplaced(self, root: Path) -> str | None:
        """Return why the change cannot be made below a folder, or None if it can."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        return None if count == 1 else f"{self.file} has this text {count} times, not once: {self.old!r}"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of a mutant, the reason if it was not killed, and its failed tests."""

    mutant: Mutant
    fate: StepResult
    why: str = ""
    failed: frozenset[str] = frozenset()


def load(folder: Path = RULES) -> list[Mutant]:
    """Read the list: every folder's file, in the order of their names."""
    files = sorted(folder.glob("*.yaml"))
    rows = (_rows(path.read_text(encoding="utf-8")) for path in files)
    return [Mutant(**row) for row in chain.from_iterable(rows)]


def lost(root: Path, base: str) -> set[str]:
    """Return the rules listed at or after a commit that are now neither listed nor retired.

    A rule is a row's sentence; the row's code may change. Every commit since the base counts, so a
    rule that was added after the base and then removed counts, too.
    """
    folder = str(RULES.relative_to(ROOT))
    commits = [base, *git(root, "rev-list", f"{base}..HEAD", "--", folder).split()]
    lines = git(root, "grep", "--no-color", "-h", "-E", "^- .*rule: ", *commits, "--", folder).splitlines()
    before = {row["rule"] for line in set(lines) for row in _rows(line)}
    retired = _rows((root / RETIRED.relative_to(ROOT)).read_text(encoding="utf-8"))
    return before - {row.rule for row in load(root / RULES.relative_to(ROOT))} - {row["rule"] for row in retired}


def _rows(text: str) -> list[dict[str, str]]:
    # PyYAML's loader in C: its Python loader takes two seconds for the thousand lines of the list.
    return yaml.load(text, Loader=yaml.CSafeLoader) or []


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a pytest run: exit code (None if killed), output, failed and passed tests."""

    code: int | None
    output: str = ""
    failed: Sequence[str] = ()
    passed: int = 0
    stopped: bool = False
    in_time: bool = True

    @property
    def whole(self) -> bool:
        """Return whether pytest ended normally: with a result, or stopped at the CPU limit."""
        return self.code in {0, TESTS_FAILED} or self.stopped


class Copy:
    """A copy of the checkout, and a process whose forks run the copy's tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._forking = subprocess.Popen(
            [sys.executable, "-m", "kfm_dagster_tests.mutants.forking"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process; all forks have ended before."""
        self._forking.communicate()

    def examine(
        self, mutant: Mutant, *, timeout: float = TIMEOUT_SECONDS, cpu_seconds: float = CPU_SECONDS
    ) -> Examined:
        """Make the change, run the mutant's tests until one fails, and restore the file."""
        if (why := mutant.misplaced(self.folder)) is not None:
            return Examined(mutant=mutant, fate=StepResult.BROKEN, why=why)
        path = self.folder / mutant.file
        original = path.read_text(encoding="utf-8")
        path.write_text(original.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            run = self._pytest(
                ["-x", *mutant.arguments], timeout=timeout, seconds=cpu_seconds if mutant.generated else None
            )
        finally:
            path.write_text(original, encoding="utf-8")
        # A run beyond the time limit is not counted as ended: it is perhaps only slow, as pytest ends a hanging test.
        ended_early = run.in_time and not run.whole and run.code != NO_TESTS
        if run.code == TESTS_FAILED or (mutant.generated and ended_early):
            return Examined(mutant=mutant, fate=StepResult.KILLED, failed=frozenset(run.failed))
        if run.whole and run.passed:
            return Examined(mutant=mutant, fate=StepResult.SURVIVED, why=f"{mutant.test} passes")
        ended = "does not end" if run.code is None else f"ends with {run.code}, {run.passed} passed"
        last_words = run.output.strip()[-300:]
        return Examined(mutant=mutant, fate=StepResult.BROKEN, why=f"pytest {mutant.test} {ended}: {last_words}")

    def examine_twice(
        self, mutant: Mutant, *, end: float = float("inf"), cpu_seconds: float = CPU_SECONDS
    ) -> Examined | None:
        """Examine a mutant, and a survivor by its further tests; return None if the time ends first."""
        timeout = min(TIMEOUT_SECONDS, end - time.monotonic())
        first = self.examine(mutant, timeout=timeout, cpu_seconds=cpu_seconds)
        if (left := end - time.monotonic()) < 0:
            return None
        if first.fate is not StepResult.SURVIVED or not mutant.further:
            return first
        further = replace(mutant, test=mutant.further)
        second = self.examine(further, timeout=min(TIMEOUT_SECONDS, left), cpu_seconds=cpu_seconds)
        # The second result counts only with a failed test: without one, the many tests may have been stopped early.
        return second if second.failed and time.monotonic() < end else first

    def refusal(self) -> str | None:
        """Return why tests of the unchanged copy do not run, or None if they do."""
        run = self._pytest([HARMLESS], timeout=TIMEOUT_SECONDS)
        return None if run.code == 0 and run.passed else f"{HARMLESS} ends with {run.code}: {run.output.strip()[-300:]}"

    def confirmed(self, examined: Sequence[Examined]) -> list[Examined]:
        """Mark results as broken if one of their failed tests also fails in the unchanged copy."""
        failed = {test for item in examined for test in item.failed}
        if not failed:
            return list(examined)
        timeout = TIMEOUT_SECONDS * len(failed)
        run = self._pytest(sorted(failed), timeout=timeout)
        if not run.whole:
            # A mutant can have changed the name of a case.
            run = self._pytest(sorted({_function(test) for test in failed}), timeout=timeout)
        broken = {_function(test) for test in (run.failed if run.whole else failed)}
        return [
            replace(item, fate=StepResult.BROKEN, why=f"{', '.join(wrong)} also fails without the mutant")
            if (wrong := sorted(test for test in item.failed if _function(test) in broken))
            else item
            for item in examined
        ]

    def _pytest(self, arguments: Sequence[str], *, timeout: float, seconds: float | None = None) -> Run:
        """Run pytest in a fork, and kill its process group after the timeout."""
        requests, answers = self._forking.stdin, self._forking.stdout
        assert requests is not None
        assert answers is not None
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as folder:
            request = {"arguments": [*PYTEST, *arguments], "folder": folder, "seconds": seconds}
            print(json.dumps(request), file=requests, flush=True)
            child = int(answers.readline())
            try:
                in_time = bool(select.select([answers], [], [], timeout)[0])
            except BaseException:
                os.killpg(child, signal.SIGKILL)
                raise
            if not in_time:
                os.killpg(child, signal.SIGKILL)
            code = int(answers.readline())
            report = Path(folder) / "report"
            if not in_time or not report.is_file():
                return Run(code=None, in_time=in_time)
            output = (Path(folder) / "output").read_text(encoding="utf-8", errors="replace")
            return Run(code=code, output=output, **json.loads(report.read_text(encoding="utf-8")))


@contextmanager
def copied() -> Iterator[Copy]:
    """Yield a temporary copy of the checkout without the files that git ignores."""
    listed = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    with tempfile.TemporaryDirectory(prefix="kfm-mutants-", ignore_cleanup_errors=True) as folder:
        # In a subfolder, because tests look for the shared data next to the checkout.
        checkout = Path(folder) / "checkout"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, checkout / name)
        # Check byte code by content, because a file can be changed and restored within a second.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(checkout / "kfm_dagster", quiet=1, invalidation_mode=mode)
        with closing(Copy(checkout)) as copy:
            yield copy


def _function(test: str) -> str:
    """Return a test's name without its case."""
    return test.partition("[")[0]
