"""Examine mutants: change one text in a throwaway copy of the checkout, run the test that claims the rule, restore it.

Belongs here: what a mutant is, the copy, and what a test's end says of it. Does not belong here: which mutants there
are (`rules/`, `generating.py`) and what is printed (`__main__.py`).
"""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from itertools import chain
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = Path(__file__).with_name("rules")
"""The list: a YAML file for each room of the product, and one for SQL."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-W", "ignore", "--timeout", "120")
TIMEOUT_SECONDS = 300.0
"""Of one mutant's test; each of them ends within seconds on a free machine."""
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

    `required`: it must be killed; of the others, most. `any_end`: that the code cannot be loaded, or that the test does
    not end, shows as well that it was noticed.
    """

    rule: str
    file: str
    old: str
    new: str
    test: str
    required: bool = True
    any_end: bool = False

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
    # The loader in C: the list has a thousand lines, and PyYAML's own takes two seconds for them.
    rows = (yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) for path in files)
    return [Mutant(**row) for row in chain.from_iterable(rows)]


@contextmanager
def copied() -> Iterator[Path]:
    """Give a copy of the checkout's tracked files, which goes afterwards."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    with tempfile.TemporaryDirectory(prefix="kfm-mutants-", ignore_cleanup_errors=True) as folder:
        # A folder deeper: tests look for the shared data beside the checkout.
        copy = Path(folder) / "checkout"
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy / name)
        # By its content and not by its time: a file that is changed and restored within a second is read again.
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(copy / "kfm_dagster", quiet=1, invalidation_mode=mode)
        yield copy


def imported_from(copy: Path) -> Path:
    """Return the folder that the package is imported from by the tests of a copy."""
    command = [sys.executable, "-c", "import kfm_dagster; print(kfm_dagster.__file__)"]
    done = subprocess.run(
        command, cwd=copy, env=_environment(copy), check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    return Path(done.stdout.strip()).parent


def confirmed(copy: Path, found: Sequence[Examined]) -> list[Examined]:
    """Run the tests that failed in the unchanged copy: what fails there as well has not noticed the mutant."""
    failed = {test for one in found for test in one.failed}
    if not failed:
        return list(found)
    timeout = TIMEOUT_SECONDS * len(failed)
    code, _, broken = _pytest(copy, sorted(failed), timeout=timeout)
    if code not in {0, TESTS_FAILED}:
        # A mutant may have changed the name of a case.
        code, _, broken = _pytest(copy, sorted({_function(test) for test in failed}), timeout=timeout)
    broken = {_function(test) for test in (broken if code in {0, TESTS_FAILED} else failed)}
    return [
        replace(one, fate=StepResult.BROKEN, why=f"{', '.join(wrong)} fails without it, too")
        if (wrong := sorted(test for test in one.failed if _function(test) in broken))
        else one
        for one in found
    ]


def examine(copy: Path, mutant: Mutant, *, timeout: float = TIMEOUT_SECONDS) -> Examined:
    """Make the change in a copy, run its test until one fails, and restore the file."""
    if (why := mutant.misplaced(copy)) is not None:
        return Examined(mutant=mutant, fate=StepResult.BROKEN, why=why)
    path = copy / mutant.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(sound.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, said, failed = _pytest(copy, ["-x", *mutant.arguments], timeout=timeout)
    finally:
        path.write_text(sound, encoding="utf-8")
    if code == TESTS_FAILED or (mutant.any_end and code not in {0, NO_TESTS}):
        return Examined(mutant=mutant, fate=StepResult.KILLED, failed=frozenset(failed))
    if code == 0:
        return Examined(mutant=mutant, fate=StepResult.SURVIVED, why=f"{mutant.test} passes")
    ended = "does not end" if code is None else f"ends with {code}"
    return Examined(mutant=mutant, fate=StepResult.BROKEN, why=f"pytest {mutant.test} {ended}: {said.strip()[-300:]}")


def _function(test: str) -> str:
    """A test's name without its case."""
    return test.partition("[")[0]


def _environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": ""}


def _pytest(copy: Path, arguments: Sequence[str], *, timeout: float) -> tuple[int | None, str, Collection[str]]:
    """Run pytest in a process group of its own; return its exit code, None when it had to be ended, its words, and the
    tests that failed.
    """
    cache = copy.parent / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    child = subprocess.Popen(
        [*PYTEST, "-o", f"cache_dir={cache}", *arguments],
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, "", ()
        raise
    failed = cache / "v/cache/lastfailed"
    # A module that could not be collected is there, too.
    names = json.loads(failed.read_text(encoding="utf-8")) if failed.is_file() else {}
    return child.returncode, said, [name for name in names if "::" in name]
