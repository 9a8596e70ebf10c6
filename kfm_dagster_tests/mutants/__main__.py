"""Examine mutants: `python -m kfm_dagster_tests.mutants [--sample N --seed S] [--only NAME ...]`.

Those of the list, of which every one must be killed; or with `--generated` those that are generated, drawn from all
rooms and SQL in turn; or with `--changed [COMMIT]` those generated from the lines that are new since a commit, drawn
from its rooms in turn, by default since the base of the change (`change.py`). Of the generated ones 90 % must be
killed; a survivor of its nearest tests is examined by more of them. With `--seconds N` as many as there is time for.
Prints a line for each and the survivors at the end; ends with 1 when too many survived, and when a change has mutants
of which none was examined.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Lock

from kfm_dagster_tests.change import AGE, VARIABLE, base_commit
from kfm_dagster_tests.mutants.examining import (
    CPU_SECONDS,
    FIRST_LOOK,
    ROOT,
    Examined,
    Mutant,
    StepResult,
    copied,
    imported_from,
    load,
)
from kfm_dagster_tests.mutants.generating import candidates, changed_lines, drawn, mutated_files, room

EQUIVALENT, FEW = 0.1, 2
"""Share of the mutants that need not be killed: some change nothing that anybody could see. So many of a few."""
COPIES = min(os.cpu_count() or 1, 4)
"""Mutants that are examined at the same time."""
CONFIRMING = 0.15
"""Share of the time that is kept for running what failed once more, without the mutants."""


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def run(
    chosen: Iterable[Mutant], *, end: float, copies: int = COPIES, cpu_seconds: float = CPU_SECONDS
) -> list[Examined]:
    """Examine the mutants in some copies at the same time, until a time."""
    begun = time.monotonic()
    if end < float("inf"):
        end -= CONFIRMING * max(end - begun, 0)
    waiting = _Queue(chosen)
    with ThreadPoolExecutor(copies) as pool:
        parts = [pool.submit(_examine, waiting, end=end, cpu_seconds=cpu_seconds) for _ in range(copies)]
    return [one for part in parts for one in part.result()]


class _Queue:
    """Mutants that several threads take from, each of them once."""

    def __init__(self, mutants: Iterable[Mutant]) -> None:
        self._mutants, self._lock = iter(mutants), Lock()

    def take(self) -> Mutant | None:
        with self._lock:
            return next(self._mutants, None)


def _examine(waiting: _Queue, *, end: float, cpu_seconds: float) -> list[Examined]:
    """Examine mutants in a copy; raises SystemExit where the tests would not import it, or do not run at all."""
    found: list[Examined] = []
    if (mutant := waiting.take()) is None:
        return found
    with copied() as copy:
        if (folder := imported_from(copy)) != copy.folder / "kfm_dagster":
            raise SystemExit(f"the tests would import {folder}, not the copy")
        if (refusal := copy.refusal()) is not None:
            raise SystemExit(f"no test runs in an unchanged copy: {refusal}")
        while mutant is not None and (begun := time.monotonic()) < end:
            if (one := copy.examine_twice(mutant, end=end, cpu_seconds=cpu_seconds)) is None:
                break
            found.append(one)
            say(f"{one.fate:8} {time.monotonic() - begun:5.1f} s  {mutant.file}: {mutant.rule}")
            mutant = waiting.take()
        return copy.confirmed(found)


def conclude(found: list[Examined]) -> int:
    """Print what survived, and the counts; 1 when one was left that is required, or too many were."""
    left = [one for one in found if one.fate is not StepResult.KILLED]
    for one in left:
        say(f"{one.fate}: {one.mutant.file}: {one.mutant.rule}\n    {one.why}")
    counts = Counter(one.fate for one in found)
    say(f"{len(found)} mutants: " + ", ".join(f"{counts[fate]} {fate}" for fate in StepResult))
    too_many = len(left) > max(FEW, EQUIVALENT * len(found))
    return 1 if too_many or any(one.mutant.required for one in left) else 0


def listed(only: list[str] | None, *, sample: int | None, seed: int) -> list[Mutant]:
    """Choose from the list."""
    chosen = [one for one in load() if not only or any(text in one.rule or text in one.file for text in only)]
    return chosen if sample is None else random.Random(seed).sample(chosen, min(sample, len(chosen)))


def generated(only: list[str] | None, *, sample: int | None, seed: int) -> Iterator[Mutant]:
    """Generate mutants of all rooms and SQL in turn, or of the files that are named."""
    files = [file for file in mutated_files(ROOT) if not only or any(text in file for text in only)]
    made = (one.mutant(ROOT) for one in drawn(ROOT, dict.fromkeys(files), seed=str(seed)))
    return islice((one for one in made if one is not None), sample)


def of_change(only: list[str] | None, *, base: str, sample: int | None) -> tuple[Iterator[Mutant], int]:
    """Generate mutants of the lines that are new since a commit, and count the candidates."""
    lines = {
        file: numbers
        for file, numbers in changed_lines(ROOT, base).items()
        if not only or any(text in file for text in only)
    }
    counts = {file: len(candidates(ROOT, file, numbers)) for file, numbers in lines.items()}
    rooms = {room(file) for file, count in counts.items() if count}
    say(f"base {base}: {sum(counts.values())} candidates in {len(rooms)} rooms")
    made = (one.mutant(ROOT) for one in drawn(ROOT, lines, seed=base))
    return islice((one for one in made if one is not None), sample), sum(counts.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine what is asked for, by default the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of the names of mutants or of files")
    parser.add_argument("--generated", action="store_true", help="generated ones instead of those of the list")
    parser.add_argument(
        "--changed", nargs="?", const="", metavar="COMMIT", help="generated ones, of the lines that are new since then"
    )
    parser.add_argument("--seconds", type=float, help="as many as there is time for")
    given = parser.parse_args(arguments)
    if given.changed is not None:
        if (base := base_commit(ROOT, given.changed)) is None:
            named = given.changed or os.environ.get(VARIABLE) or f"older than {AGE}"
            parser.error(f"there is no commit {named} to compare with (a shallow clone?); next: name one by {VARIABLE}")
        chosen, count = of_change(given.only, base=base, sample=given.sample)
        # To count the candidates takes up to a minute, and costs no examination.
        end = float("inf") if given.seconds is None else time.monotonic() + given.seconds
        found = run(chosen, end=end, cpu_seconds=FIRST_LOOK) if count else []
        say(f"examined {len(found)} of {count} candidates")
        return 1 if count and not found else conclude(found)
    end = float("inf") if given.seconds is None else time.monotonic() + given.seconds
    if given.generated:
        found = run(generated(given.only, sample=given.sample, seed=given.seed), end=end)
    else:
        chosen = listed(given.only, sample=given.sample, seed=given.seed)
        # A copy costs as much as a few mutants.
        found = run(chosen, end=end, copies=min(COPIES, len(chosen) // 8 + 1))
    if not found and given.only:
        parser.error("no mutant of that name")
    return conclude(found)


if __name__ == "__main__":
    sys.exit(main())
