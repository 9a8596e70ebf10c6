"""Examine mutants: `python -m kfm_dagster_tests.mutants [--sample N] [--only NAME ...]`.

By default: the listed mutants; each must be killed. `--generated`: generated mutants of all folders and SQL
in turn. `--changed [COMMIT]`: generated mutants of the lines that are new since a commit, by default since the base of
the change (`change.py`). 90 % of the generated mutants must be killed; a mutant that survives its nearest tests is
examined by further tests. `--seconds N` limits the time. Prints a line for each mutant, and the survivors at the end.
Ends with 1 if more than 10 % of a draw survived, if the survivors of a change contradict the 90 %, or if a change has
mutants and none was examined.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import comb
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
    load,
)
from kfm_dagster_tests.mutants.generating import candidates, changed_lines, drawn, folder_of, mutated_files

EQUIVALENT = 0.1
"""Share of the mutants that are allowed to survive, because some change no behaviour."""
UNLIKELY = 0.01
"""Survivors contradict EQUIVALENT if so many are less probable than this; CI examines too few to compare shares."""
COPIES = min(os.cpu_count() or 1, 4)
"""Mutants examined at the same time."""
CONFIRMING = 0.15
"""Share of the time reserved for running the failed tests again without the mutants."""


def say(line: str) -> None:
    """Print a line immediately."""
    print(line, flush=True)  # noqa: T201


def run(
    chosen: Iterable[Mutant], *, end: float, copies: int = COPIES, cpu_seconds: float = CPU_SECONDS
) -> list[Examined]:
    """Examine the mutants in several copies at the same time, until the end."""
    begun = time.monotonic()
    if end < float("inf"):
        end -= CONFIRMING * max(end - begun, 0)
    waiting, lock = iter(chosen), Lock()

    def take() -> Mutant | None:
        with lock:
            return next(waiting, None)

    with ThreadPoolExecutor(copies) as pool:
        parts = [pool.submit(_examine, take, end=end, cpu_seconds=cpu_seconds) for _ in range(copies)]
    return [examined for part in parts for examined in part.result()]


def _examine(take: Callable[[], Mutant | None], *, end: float, cpu_seconds: float) -> list[Examined]:
    """Examine mutants in a copy; exit if its tests do not run."""
    examined: list[Examined] = []
    if (mutant := take()) is None:
        return examined
    with copied() as copy:
        if (refusal := copy.refusal()) is not None:
            raise SystemExit(f"no test runs in an unchanged copy: {refusal}")
        while mutant is not None and (begun := time.monotonic()) < end:
            if (result := copy.examine_twice(mutant, end=end, cpu_seconds=cpu_seconds)) is None:
                break
            examined.append(result)
            say(f"{result.fate:8} {time.monotonic() - begun:5.1f} s  {mutant.file}: {mutant.rule}")
            mutant = take()
        return copy.confirmed(examined)


def contradicts(survivors: int, examined: int) -> bool:
    """Return whether the survivors contradict EQUIVALENT, by a one-sided binomial test."""
    chance = sum(
        comb(examined, number) * EQUIVALENT**number * (1 - EQUIVALENT) ** (examined - number)
        for number in range(survivors, examined + 1)
    )
    return chance < UNLIKELY


def conclude(examined: list[Examined], *, too_many: Callable[[int, int], bool]) -> int:
    """Print survivors and counts; return 1 if a listed mutant or too many generated mutants survived."""
    left = [item for item in examined if item.fate is not StepResult.KILLED]
    for item in left:
        say(f"{item.fate}: {item.mutant.file}: {item.mutant.rule}\n    {item.why}")
    counts = Counter(item.fate for item in examined)
    say(f"{len(examined)} mutants: " + ", ".join(f"{counts[fate]} {fate}" for fate in StepResult))
    return 1 if too_many(len(left), len(examined)) or not all(item.mutant.generated for item in left) else 0


def listed(only: list[str] | None, *, sample: int | None, seed: int) -> list[Mutant]:
    """Return the mutants of the list, or a sample."""
    chosen = [row for row in load() if not only or any(text in row.rule or text in row.file for text in only)]
    return chosen if sample is None else random.Random(seed).sample(chosen, min(sample, len(chosen)))


def generated(only: list[str] | None, *, sample: int | None, seed: int) -> Iterator[Mutant]:
    """Generate mutants of all folders and SQL in turn, or of the named files."""
    files = [file for file in mutated_files(ROOT) if not only or any(text in file for text in only)]
    mutants = (candidate.mutant(ROOT) for candidate in drawn(ROOT, dict.fromkeys(files), seed=str(seed)))
    return islice((mutant for mutant in mutants if mutant is not None), sample)


def of_change(only: list[str] | None, *, base: str, sample: int | None) -> tuple[Iterator[Mutant], int]:
    """Return mutants of the lines that are new since a commit, and the number of candidates."""
    lines = {
        file: numbers
        for file, numbers in changed_lines(ROOT, base).items()
        if not only or any(text in file for text in only)
    }
    counts = {file: len(candidates(ROOT, file, numbers)) for file, numbers in lines.items()}
    folders = {folder_of(file) for file, count in counts.items() if count}
    say(f"base {base}: {sum(counts.values())} candidates in {len(folders)} folders")
    mutants = (candidate.mutant(ROOT) for candidate in drawn(ROOT, lines, seed=base))
    return islice((mutant for mutant in mutants if mutant is not None), sample), sum(counts.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine the mutants that the arguments select, by default the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of mutants, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of the names of mutants or of files")
    parser.add_argument("--generated", action="store_true", help="generated mutants instead of the list")
    parser.add_argument(
        "--changed",
        nargs="?",
        const="",
        metavar="COMMIT",
        help="generated mutants of the lines that are new since the commit",
    )
    parser.add_argument("--seconds", type=float, help="time limit")
    options = parser.parse_args(arguments)
    if options.changed is not None:
        if (base := base_commit(ROOT, options.changed)) is None:
            named = options.changed or os.environ.get(VARIABLE) or f"older than {AGE}"
            parser.error(f"there is no commit {named} to compare with (a shallow clone?); next: name one by {VARIABLE}")
        chosen, count = of_change(options.only, base=base, sample=options.sample)
        # Counting the candidates takes up to a minute, which the time limit does not include.
        end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
        examined = run(chosen, end=end, cpu_seconds=FIRST_LOOK) if count else []
        say(f"examined {len(examined)} of {count} candidates")
        return 1 if count and not examined else conclude(examined, too_many=contradicts)
    end = float("inf") if options.seconds is None else time.monotonic() + options.seconds
    if options.generated:
        examined = run(generated(options.only, sample=options.sample, seed=options.seed), end=end)
    else:
        chosen = listed(options.only, sample=options.sample, seed=options.seed)
        # Creating a copy takes as long as examining a few mutants.
        examined = run(chosen, end=end, copies=min(COPIES, len(chosen) // 8 + 1))
    if not examined and options.only:
        parser.error("no mutant of that name")
    return conclude(examined, too_many=lambda survivors, total: survivors > EQUIVALENT * total)


if __name__ == "__main__":
    sys.exit(main())
