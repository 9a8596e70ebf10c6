"""Fuzz: `python -m kfm_dagster_tests.fuzz --subject goes-abi --inputs 200000`, or examine one input again alone.

Without a subject, all of them. `--only NUMBER` examines that input of the subject, and `--write FILE` keeps its bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from kfm_dagster_tests.fuzz.campaign import Campaign, Summary, explore
from kfm_dagster_tests.fuzz.mutations import draw
from kfm_dagster_tests.fuzz.specimens import SUBJECTS

SHOWN = 20
"""Findings that are shown of a subject, those of one kind once."""


def main() -> int:
    """Print what many inputs gave; 1 when something is wrong with one of them."""
    parser = argparse.ArgumentParser(prog="python -m kfm_dagster_tests.fuzz", description=__doc__)
    parser.add_argument("--subject", choices=SUBJECTS, action="append", help="all without one")
    parser.add_argument("--inputs", type=int, default=1_000, help="of each subject (default 1,000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default 0)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="examine this input alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="of --only: write its bytes there")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    found = []
    for name in given.subject or SUBJECTS:
        if given.only is not None:
            if given.write:
                given.write.write_bytes(draw(SUBJECTS[name], given.seed, given.only).content)
            with Campaign(name) as campaign:
                found.append(campaign.examine_all([given.only], seed=given.seed, measured_of=1))
        else:
            processes = given.processes
            found.append(explore(name, inputs=given.inputs, seed=given.seed, first=given.first, processes=processes))
        _show(found[-1])
    return 1 if any(summary.findings for summary in found) else 0


def _show(summary: Summary) -> None:
    kinds: Counter[str] = Counter()
    for finding in summary.findings:
        kind = "".join(sign for sign in finding.text if not sign.isdigit())[:60]
        kinds[kind] += 1
        if kinds[kind] == 1 and len(kinds) <= SHOWN:
            print(finding)  # noqa: T201
    for kind, times in kinds.most_common() if len(kinds) < len(summary.findings) else ():
        print(f"{times:>9,}  {kind}")  # noqa: T201
    for fate, times in sorted(summary.fates.items()):
        print(f"{times:>9,}  {fate}")  # noqa: T201
    print(summary, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
