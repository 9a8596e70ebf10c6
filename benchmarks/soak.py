"""The soak: runs all measurements that are too long for the tests, and prints their figures.

    python -m benchmarks.soak [PART ...] [--scale FRACTION]

A part is a separate command that ends with lines of figures. A part with an exit code other than 0 fails the soak; the
other parts still run. The scale reduces every part in the same proportion, down to its smallest useful size. Does not
belong here: the work of a part.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kfm_dagster_tests.fuzz.specimens import SUBJECTS
from kfm_dagster_tests.mutants.examining import load

ROOT = Path(__file__).resolve().parent.parent
LONGEST_STRIDE = 15
"""The crash matrix kills at every n-th moment. An operator has more than 15 moments, so it dies at least once."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the soak. The last `lines` of its output are its figures; 0: all lines."""

    name: str
    command: Sequence[str]
    lines: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)


def parts(scale: float) -> list[Part]:
    """Return the parts in their order, at a fraction of their full size (above 0, at most 1)."""

    def sized(option: str, full: int, *, least: int) -> tuple[str, str]:
        return option, str(max(least, round(full * scale)))

    simulation = (*sized("--seeds", 10_000, least=10), *sized("--steps", 1_000_000, least=1_000))
    campaign = (*sized("--units", 10_000, least=500), *sized("--kills", 200, least=10), "--worker", "--database")
    odd = (*sized("--units", 3_000, least=500), *sized("--kills", 60, least=10), "--odd-every", "100", "--database")
    mail = (*sized("--messages", 500_000, least=1_000), "--database")
    ledger = (*sized("--records", 1_000_000, least=25_000), "--database")
    return [
        Part(name="tests", command=("-m", "pytest", "-q", "-n", str((os.cpu_count() or 1) + 2), "--dist", "loadfile")),
        Part(name="simulation", command=("-m", "kfm_dagster_tests.simulation", *simulation)),
        Part(
            name="contention",
            command=("-m", "benchmarks.contention", *sized("--records", 10_000, least=500)),
            lines=0,
        ),
        Part(
            name="crash-matrix",
            command=("-m", "pytest", "-q", "--timeout=0", "kfm_dagster_tests/integration/test_crash_matrix.py"),
            variables={"KFM_CRASH_STRIDE": str(min(LONGEST_STRIDE, round(1 / scale)))},
        ),
        Part(
            name="store-answers",
            command=("-m", "pytest", "-q", "--timeout=0", "kfm_dagster_tests/fuzz/test_store_answers.py"),
            variables={"KFM_STORE_ANSWERS": str(max(60, round(10_000 * scale)))},
        ),
        Part(
            name="mutants",
            command=("-m", "kfm_dagster_tests.mutants", *sized("--sample", len(load()), least=10)),
        ),
        Part(
            name="generated-mutants",
            command=("-m", "kfm_dagster_tests.mutants", "--generated", *sized("--sample", 300, least=10)),
        ),
        Part(
            name="fuzz",
            command=("-m", "pytest", "-q", "--timeout=0", "-n", "2", "kfm_dagster_tests/fuzz/test_fuzz.py"),
            lines=len(SUBJECTS) + 1,
            variables={"KFM_FUZZ_INPUTS": str(max(200, round(200_000 * scale)))},
        ),
        Part(name="chaos-sqlite", command=("-m", "benchmarks.campaign", *campaign, "sqlite")),
        Part(name="chaos-postgresql", command=("-m", "benchmarks.campaign", *campaign, "postgresql")),
        Part(name="odd-store-sqlite", command=("-m", "benchmarks.campaign", *odd, "sqlite")),
        Part(name="odd-store-postgresql", command=("-m", "benchmarks.campaign", *odd, "postgresql")),
        Part(name="mail-sqlite", command=("-m", "kfm_dagster_tests.ingest.mail", *mail, "sqlite")),
        Part(name="mail-postgresql", command=("-m", "kfm_dagster_tests.ingest.mail", *mail, "postgresql")),
        Part(name="ledger-sqlite", command=("-m", "benchmarks.ledger", *ledger, "sqlite"), lines=0),
        Part(name="ledger-postgresql", command=("-m", "benchmarks.ledger", *ledger, "postgresql"), lines=0),
    ]


def chosen(names: Sequence[str], *, scale: str) -> list[Part]:
    """Return the named parts, by default all. Raises ValueError for a wrong name or scale."""
    try:
        fraction = float(scale)
    except ValueError:
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"SCALE is a number above 0, at most 1; observed {scale!r}")
    every = parts(fraction)
    known = [part.name for part in every]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    return [part for part in every if not names or part.name in names]


def soak(parts: Sequence[Part]) -> int:
    """Run the parts and print the figures of each as it ends; 1 when one of them failed."""
    failed = False
    for part in parts:
        begun = time.monotonic()
        print(f"soak: {part.name} ...", file=sys.stderr, flush=True)  # noqa: T201
        command = [sys.executable, *part.command]
        environment = {**os.environ, **part.variables}
        done = subprocess.run(  # noqa: S603, our own
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        output = done.stdout.splitlines()
        verdict = "passed" if done.returncode == 0 else f"FAILED with exit code {done.returncode}"
        print(f"{part.name}: {verdict}, {time.monotonic() - begun:.0f} s")  # noqa: T201
        # Print the whole output of a failure.
        for line in output if done.returncode else output[-part.lines :]:
            print(f"    {line}")  # noqa: T201
        sys.stdout.flush()
        failed = failed or done.returncode != 0
    return 1 if failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts, by default all; return 2 for an unknown part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="a part's name; all without one")
    parser.add_argument("--scale", default="1", help="a fraction of every part's size, for example 0.1")
    options = parser.parse_args(arguments)
    try:
        parts = chosen(options.parts, scale=options.scale)
    except ValueError as error:
        print(f"soak: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return soak(parts)


if __name__ == "__main__":
    sys.exit(main())
