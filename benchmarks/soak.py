"""The soak: everything that is too long for the tests, one after the other, and one table of figures at the end.

    python -m benchmarks.soak [--only NAME ...] [--records N] [--seeds N] [--steps N] [--messages N]

A part is a command of its own that ends with lines of figures; what ends with another code than 0 fails the soak, and
the others run all the same. Does not belong here: what a part does.
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

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the soak. The last `lines` of what it prints are its figures, 0 for all of them."""

    name: str
    command: Sequence[str]
    lines: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)


def parts(*, seeds: int, steps: int, records: int, messages: int) -> list[Part]:
    """Return the parts in their order."""
    ledger = ("-m", "benchmarks.ledger", "--records", str(records), "--database")
    campaign = ("-m", "benchmarks.campaign", "--units", "10000", "--kills", "200", "--database")
    mail = ("-m", "kfm_dagster_tests.ingest.mail", "--messages", str(messages // 2), "--database")
    return [
        Part(
            name="simulation",
            command=("-m", "kfm_dagster_tests.simulation", "--seeds", str(seeds), "--steps", str(steps)),
        ),
        Part(name="contention", command=("-m", "benchmarks.contention"), lines=0),
        Part(
            name="crash-matrix",
            command=("-m", "pytest", "-q", "kfm_dagster_tests/integration/test_crash_matrix.py"),
            variables={"KFM_CRASH_STRIDE": "1"},
        ),
        Part(name="mutants", command=("-m", "kfm_dagster_tests.mutants")),
        Part(name="chaos-sqlite", command=(*campaign, "sqlite")),
        Part(name="chaos-postgresql", command=(*campaign, "postgresql")),
        Part(name="mail-sqlite", command=(*mail, "sqlite")),
        Part(name="mail-postgresql", command=(*mail, "postgresql")),
        Part(name="ledger-sqlite", command=(*ledger, "sqlite"), lines=0),
        Part(name="ledger-postgresql", command=(*ledger, "postgresql"), lines=0),
    ]


def soak(chosen: Sequence[Part]) -> int:
    """Run the parts and print the table; 1 when one of them failed."""
    table: list[str] = []
    failed = False
    for part in chosen:
        begun = time.monotonic()
        print(f"soak: {part.name} ...", file=sys.stderr, flush=True)  # noqa: T201
        command = [sys.executable, *part.command]
        environment = {**os.environ, **part.variables}
        done = subprocess.run(  # noqa: S603, our own
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        said = done.stdout.splitlines()
        verdict = "held" if done.returncode == 0 else f"FAILED with exit code {done.returncode}"
        table.append(f"{part.name}: {verdict}, {time.monotonic() - begun:.0f} s")
        # Of a failure everything that was said is wanted.
        table += [f"    {line}" for line in (said if done.returncode else said[-part.lines :])]
        failed = failed or done.returncode != 0
    print("\n".join(table))  # noqa: T201
    return 1 if failed else 0


def main() -> int:
    """Run what is asked for, by default everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="names of parts")
    parser.add_argument("--seeds", type=int, default=10_000, help="histories of the simulation, at least")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the simulation, at least")
    parser.add_argument("--records", type=int, default=1_000_000, help="records of the ledger")
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages of intake, half on each database")
    given = parser.parse_args()
    every = parts(seeds=given.seeds, steps=given.steps, records=given.records, messages=given.messages)
    if unknown := set(given.only) - {part.name for part in every}:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in every)}")
    return soak([part for part in every if not given.only or part.name in given.only])


if __name__ == "__main__":
    sys.exit(main())
