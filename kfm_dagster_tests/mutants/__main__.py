"""Examine mutants: `python -m kfm_dagster_tests.mutants [--sample N --seed S] [--only NAME ...]`.

Those of the list, of which every one must be killed, or with `--generated` those that are generated, of which every
guard must be, and 90 % of all; with `--changed COMMIT` those generated from the lines that are new since a commit, of
which 90 % must be; with `--seconds N` as many as there is time for. Prints a line for each and the survivors at the
end; ends with 1 when too many survived.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from kfm_dagster_tests.mutants.examining import (
    ROOT,
    TIMEOUT_SECONDS,
    Examined,
    Mutant,
    StepResult,
    confirmed,
    copied,
    examine,
    imported_from,
    load,
)
from kfm_dagster_tests.mutants.generating import candidates, changed_lines, drawn, mutated_files

EQUIVALENT, FEW = 0.1, 2
"""Share of the mutants that need not be killed: some change nothing that anybody could see. So many of a few."""


def run(chosen: Iterable[Mutant], *, seconds: float | None) -> list[Examined]:
    """Examine the mutants one after the other, for so many seconds; raises SystemExit where none can be."""
    found: list[Examined] = []
    with copied() as copy:
        if (folder := imported_from(copy)) != copy / "kfm_dagster":
            raise SystemExit(f"the tests would import {folder}, not the copy")
        end = time.monotonic() + seconds if seconds is not None else float("inf")
        for mutant in chosen:
            begun = time.monotonic()
            if begun > end:
                break
            one = examine(copy, mutant, timeout=min(TIMEOUT_SECONDS, end - begun))
            if time.monotonic() > end:
                # It was cut short.
                break
            found.append(one)
            print(f"{one.fate:8} {time.monotonic() - begun:5.1f} s  {mutant.file}: {mutant.rule}", flush=True)  # noqa: T201
        return confirmed(copy, found)


def conclude(found: list[Examined]) -> int:
    """Print what survived, and the counts; 1 when one was left that is required, or too many were."""
    left = [one for one in found if one.fate is not StepResult.KILLED]
    for one in left:
        print(f"{one.fate}: {one.mutant.file}: {one.mutant.rule}\n    {one.why}", flush=True)  # noqa: T201
    counts = Counter(one.fate for one in found)
    print(f"{len(found)} mutants: " + ", ".join(f"{counts[fate]} {fate}" for fate in StepResult), flush=True)  # noqa: T201
    too_many = len(left) > max(FEW, EQUIVALENT * len(found))
    return 1 if too_many or any(one.mutant.required for one in left) else 0


def listed(only: list[str] | None, *, sample: int | None, seed: int) -> Iterator[Mutant]:
    """Choose from the list."""
    chosen = [one for one in load() if not only or any(text in one.rule or text in one.file for text in only)]
    return iter(chosen if sample is None else random.Random(seed).sample(chosen, min(sample, len(chosen))))


def generated(only: list[str] | None, *, base: str | None, sample: int | None, seed: int) -> Iterator[Mutant]:
    """Generate mutants of the files that are named, and of the lines that are new since a commit."""
    files = [file for file in mutated_files(ROOT) if not only or any(text in file for text in only)]
    if base is None:
        found = candidates(ROOT, files)
    elif (lines := changed_lines(ROOT, base)) is None:
        print(f"no commit {base} to compare with (a shallow clone?)", flush=True)  # noqa: T201
        found = []
    else:
        touched = candidates(ROOT, [file for file in files if file in lines])
        found = [one for one in touched if one.line in lines[one.file]]
    mutants = (one.mutant(ROOT) for one in drawn(found, seed=seed))
    # Of a change, the nearest tests are a first look.
    return islice((one if base is None else replace(one, required=False) for one in mutants if one is not None), sample)


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine what is asked for, by default the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="parts of the names of mutants or of files")
    parser.add_argument("--generated", action="store_true", help="generated ones instead of those of the list")
    parser.add_argument("--changed", metavar="COMMIT", help="generated ones, of the lines that are new since then")
    parser.add_argument("--seconds", type=float, help="as many as there is time for")
    given = parser.parse_args(arguments)
    if given.generated or given.changed is not None:
        chosen = generated(given.only, base=given.changed, sample=given.sample, seed=given.seed)
    else:
        chosen = listed(given.only, sample=given.sample, seed=given.seed)
    first = next(chosen, None)
    if first is None:
        if given.only:
            parser.error("no mutant of that name")
        print("no mutant to examine", flush=True)  # noqa: T201
        return 0
    return conclude(run(chain([first], chosen), seconds=given.seconds))


if __name__ == "__main__":
    sys.exit(main())
