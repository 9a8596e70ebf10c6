"""Simulate: `python -m kfm_dagster_tests.simulation --seeds 10000 --steps 1000000`."""

from __future__ import annotations

import argparse
import sys

from kfm_dagster_tests.simulation.exploring import explore

SHOWN = 5
"""Number of failing seeds that are printed with their last steps."""


def main() -> int:
    """Print the results of many seeds; return 1 if one violated an invariant."""
    parser = argparse.ArgumentParser(prog="python -m kfm_dagster_tests.simulation", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds at least (default 100)")
    parser.add_argument("--steps", type=int, default=0, help="how many steps in all at least; more seeds are taken")
    arguments = parser.parse_args()
    exploration = explore(first=arguments.first, seeds=arguments.seeds, least_steps=arguments.steps)
    for outcome in exploration.broken[:SHOWN]:
        print(outcome)  # noqa: T201
    for event, times in sorted(exploration.happened.items()):
        print(f"{times:>9,}  {event}")  # noqa: T201
    print(f"simulation: {exploration}")  # noqa: T201
    return 1 if exploration.broken else 0


if __name__ == "__main__":
    sys.exit(main())
