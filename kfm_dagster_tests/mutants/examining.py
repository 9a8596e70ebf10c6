"""Examine mutants: change one text in a throwaway copy of the checkout, run the test that claims the rule, restore it.

Belongs here: what a mutant is, the copy, and what a test's end says of it. Does not belong here: which mutants there
are (`rules/`, `generating.py`) and what is printed (`__main__.py`).
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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from itertools import chain
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("rules")
"""The list: a YAML file for each room of the product, and one for SQL."""
RETIRED = Path(__file__).with_name("retired.yaml")
"""The rules that the list has given up, each with a reason."""
PYTEST = ("-q", "--no-header", "-W", "ignore", "-p", "no:cacheprovider", "--timeout", "90")
TIMEOUT_SECONDS = 300.0
"""Of one mutant's test; each of them ends within seconds on a free machine."""
CPU_SECONDS = 40.0
"""Of the tests of a mutant that has many: what a row's own test takes ten times over."""
FIRST_LOOK = 20.0
"""Of those of a change, of which as many as possible are examined in a few minutes."""
HARMLESS = "kfm_dagster_tests/catalog/test_order.py"
"""Tests that pass within a second in every checkout that works."""
TESTS_FAILED, NO_TESTS = 1, 5
"""pytest's exit codes; 2 to 4 are an interruption, an error of its own, and one of usage."""


@unique
class StepResult(StrEnum):
    """How a mutant ended."""

    KILLED = "killed"
    """Its test failed."""
    SURVIVED = "survived"
    """Its test passed: nothing held the rule."""
    BROKEN = "broken"
    """Nothing was found out: the text is not there once, or no test ran."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one text that breaks a rule, and the test that must fail. `file` is a path from the root.

    `required`: it must be killed; of the others, most. `any_end`: that the code cannot be loaded, or that the process
    dies, shows as well that it was noticed; and the tests are many, so they have a share of the CPU. `further`: the
    tests of a second look, as arguments of pytest.
    """

    rule: str
    file: str
    old: str
    new: str
    test: str
    required: bool = True
    any_end: bool = False
    further: str = ""

    @property
    def arguments(self) -> list[str]:
        """What pytest is given to choose the test."""
        return shlex.split(self.test)

    def misplaced(self, root: Path) -> str | None:
        """Say why the change cannot be made below a folder; None where it can."""
        path = root / self.file
        found = path.read_text(encoding="utf-8").count(self.old) if path.is_file() else 0
        return None if found == 1 else f"{self.file} holds this text {found} times, not once: {self.old!r}"


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What became of a mutant, and for one that was not killed, what was seen. `failed` are the tests that did."""

    mutant: Mutant
    fate: StepResult
    why: str = ""
    failed: frozenset[str] = frozenset()


def load(folder: Path = RULES) -> list[Mutant]:
    """Read the list: every room's file, in the order of their names."""
    files = sorted(folder.glob("*.yaml"))
    rows = (_rows(path.read_text(encoding="utf-8")) for path in files)
    return [Mutant(**row) for row in chain.from_iterable(rows)]


def lost(root: Path, base: str) -> set[str]:
    """Return the rules listed at a commit or since, and now neither listed nor retired.

    A rule is a row's sentence: the code that it names may change, and then the row changes with it. Every commit since
    the base counts, so the answer does not change when a later commit becomes the base.
    """
    folder = str(RULES.relative_to(ROOT))
    commits = [base, *_git(root, "rev-list", f"{base}..HEAD", "--", folder).split()]
    lines = _git(root, "grep", "--no-color", "-h", "-E", "^- .*rule: ", *commits, "--", folder).splitlines()
    before = {row["rule"] for line in set(lines) for row in _rows(line)}
    retired = _rows((root / RETIRED.relative_to(ROOT)).read_text(encoding="utf-8"))
    return before - {row.rule for row in load(root / RULES.relative_to(ROOT))} - {row["rule"] for row in retired}


def _rows(text: str) -> list[dict[str, str]]:
    # The loader in C: the list has a thousand lines, and PyYAML's own takes two seconds for them.
    return yaml.load(text, Loader=yaml.CSafeLoader) or []


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run of pytest ended: its exit code, None where it was killed, its words, and which tests did what."""

    code: int | None
    words: str = ""
    failed: Sequence[str] = ()
    passed: int = 0
    stopped: bool = False
    in_time: bool = True

    @property
    def whole(self) -> bool:
        """Whether every test that was chosen has run, or as many as there was CPU for."""
        return self.code in {0, TESTS_FAILED} or self.stopped


class Copy:
    """A copy of the checkout, and the process whose forks run its tests."""

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
        """End the process; a fork that still runs was killed before."""
        self._forking.communicate()

    def examine(
        self, mutant: Mutant, *, timeout: float = TIMEOUT_SECONDS, cpu_seconds: float = CPU_SECONDS
    ) -> Examined:
        """Make the change, run the mutant's test until one fails, and restore the file."""
        if (why := mutant.misplaced(self.folder)) is not None:
            return Examined(mutant=mutant, fate=StepResult.BROKEN, why=why)
        path = self.folder / mutant.file
        sound = path.read_text(encoding="utf-8")
        path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
        try:
            run = self._pytest(
                ["-x", *mutant.arguments], timeout=timeout, seconds=cpu_seconds if mutant.any_end else None
            )
        finally:
            path.write_text(sound, encoding="utf-8")
        # A test that hangs fails by pytest's timeout; a run that is out of time may be slow only.
        ended_early = run.in_time and not run.whole and run.code != NO_TESTS
        if run.code == TESTS_FAILED or (mutant.any_end and ended_early):
            return Examined(mutant=mutant, fate=StepResult.KILLED, failed=frozenset(run.failed))
        if run.whole and run.passed:
            return Examined(mutant=mutant, fate=StepResult.SURVIVED, why=f"{mutant.test} passes")
        ended = "does not end" if run.code is None else f"ends with {run.code}, {run.passed} passed"
        said = run.words.strip()[-300:]
        return Examined(mutant=mutant, fate=StepResult.BROKEN, why=f"pytest {mutant.test} {ended}: {said}")

    def examine_twice(
        self, mutant: Mutant, *, end: float = float("inf"), cpu_seconds: float = CPU_SECONDS
    ) -> Examined | None:
        """Examine a mutant, a survivor by its further tests as well; None when the first look passes the end."""
        timeout = min(TIMEOUT_SECONDS, end - time.monotonic())
        first = self.examine(mutant, timeout=timeout, cpu_seconds=cpu_seconds)
        if (left := end - time.monotonic()) < 0:
            return None
        if first.fate is not StepResult.SURVIVED or not mutant.further:
            return first
        further = replace(mutant, test=mutant.further)
        second = self.examine(further, timeout=min(TIMEOUT_SECONDS, left), cpu_seconds=cpu_seconds)
        # Only a failed test counts: these tests are many, and may also be cut short.
        return second if second.failed and time.monotonic() < end else first

    def refusal(self) -> str | None:
        """Return why no mutant would show anything here: tests of the unchanged copy do not run; None where they do."""
        run = self._pytest([HARMLESS], timeout=TIMEOUT_SECONDS)
        return None if run.code == 0 and run.passed else f"{HARMLESS} ends with {run.code}: {run.words.strip()[-300:]}"

    def confirmed(self, found: Sequence[Examined]) -> list[Examined]:
        """Run the tests that failed in the unchanged copy: what fails there as well has not noticed the mutant."""
        failed = {test for one in found for test in one.failed}
        if not failed:
            return list(found)
        timeout = TIMEOUT_SECONDS * len(failed)
        run = self._pytest(sorted(failed), timeout=timeout)
        if not run.whole:
            # A mutant may have changed the name of a case.
            run = self._pytest(sorted({_function(test) for test in failed}), timeout=timeout)
        broken = {_function(test) for test in (run.failed if run.whole else failed)}
        return [
            replace(one, fate=StepResult.BROKEN, why=f"{', '.join(wrong)} fails without it, too")
            if (wrong := sorted(test for test in one.failed if _function(test) in broken))
            else one
            for one in found
        ]

    def _pytest(self, arguments: Sequence[str], *, timeout: float, seconds: float | None = None) -> Run:
        """Have a fork run pytest, and end it with all that it started when it takes too long."""
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
            words = (Path(folder) / "words").read_text(encoding="utf-8", errors="replace")
            return Run(code=code, words=words, **json.loads(report.read_text(encoding="utf-8")))


@contextmanager
def copied() -> Iterator[Copy]:
    """Give a copy of the checkout's files but those that git ignores, which goes afterwards."""
    listed = _git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    with tempfile.TemporaryDirectory(prefix="kfm-mutants-", ignore_cleanup_errors=True) as folder:
        # A folder deeper: tests look for the shared data beside the checkout.
        checkout = Path(folder) / "checkout"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, checkout / name)
        # By its content and not by its time: a file that is changed and restored within a second is read again.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(checkout / "kfm_dagster", quiet=1, invalidation_mode=mode)
        copy = Copy(checkout)
        try:
            yield copy
        finally:
            copy.close()


def imported_from(copy: Copy) -> Path:
    """Return the folder that the package is imported from by the tests of a copy."""
    command = [sys.executable, "-c", "import kfm_dagster; print(kfm_dagster.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(copy.folder)}
    done = subprocess.run(
        command, cwd=copy.folder, env=environment, check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    return Path(done.stdout.strip()).parent


def _function(test: str) -> str:
    """A test's name without its case."""
    return test.partition("[")[0]
