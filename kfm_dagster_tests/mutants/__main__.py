"""Examine the mutants of the list: `python -m kfm_dagster_tests.mutants [--sample N --seed S] [--only NAME ...]`.

Prints a line for each and the survivors at the end; ends with 1 when one survived or is broken.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from kfm_dagster_tests.mutants.examining import (
    Examined,
    Mutant,
    StepResult,
    copied,
    examine,
    imported_from,
    load,
    unmutated,
)


def run(chosen: list[Mutant]) -> int:
    """Examine the chosen mutants; 1 unless every one is killed."""
    found: list[Examined] = []
    with copied() as copy:
        if (folder := imported_from(copy)) != copy / "kfm_dagster":
            print(f"the tests would import {folder}, not the copy", flush=True)  # noqa: T201
            return 1
        if (said := unmutated(copy, chosen)) is not None:
            print(f"{said}\nthe tests do not pass on the code as it is; nothing was changed", flush=True)  # noqa: T201
            return 1
        for mutant in chosen:
            begun = time.monotonic()
            one = examine(copy, mutant)
            found.append(one)
            print(f"{one.fate:8} {time.monotonic() - begun:5.1f} s  {mutant.file}: {mutant.name}", flush=True)  # noqa: T201
    left = [one for one in found if one.fate is not StepResult.KILLED]
    for one in left:
        print(f"{one.fate}: {one.mutant.name}\n    {one.why}", flush=True)  # noqa: T201
    counts = Counter(one.fate for one in found)
    print(f"{len(found)} mutants: " + ", ".join(f"{counts[fate]} {fate}" for fate in StepResult), flush=True)  # noqa: T201
    return 1 if left else 0


def main() -> int:
    """Examine what is asked for, by default everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names, or parts of names or of files")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in load()
        if not given.only or any(text in mutant.name or text in mutant.file for text in given.only)
    ]
    if not chosen:
        parser.error("no mutant of that name")
    if given.sample is not None:
        chosen = random.Random(given.seed).sample(chosen, min(given.sample, len(chosen)))
    return run(chosen)


if __name__ == "__main__":
    sys.exit(main())
