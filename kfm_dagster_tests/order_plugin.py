"""Pytest plugin: starts the longest modules first, so that parallel workers end together.

By default xdist starts with the modules that have the most tests. But the longest modules have few tests, which
start and kill daemons. `make test` therefore passes `--no-loadscope-reorder`. Without workers the order is pytest's.
"""

from __future__ import annotations

import atexit
import gc
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LONGEST = [
    "docs/test_runbooks.py",
    "chaos/test_every_failpoint.py",
    "benchmarks/test_campaign.py",
    "integration/test_kill.py",
    "recovery/test_dead_letter_kill.py",
    "docs/test_examples.py",
    "integration/test_crash_matrix.py",
    "demo/test_demo.py",
    "simulation/test_simulation.py",
    "browser/test_dagster_ui.py",
    "browser/test_newcomers_walk.py",
    "integration/test_run_rollback.py",
    "integration/test_lanes.py",
    "ingest/test_heaviest.py",
    "deployment/test_deployment.py",
    "integration/test_backfill.py",
]
"""Modules of twenty CPU seconds or more, longest first. A long module that is not listed only worsens the balance."""


def pytest_configure(config: pytest.Config) -> None:
    if gone := [name for name in LONGEST if not (TESTS / name).is_file()]:
        raise pytest.UsageError(f"kfm_dagster_tests/order_plugin.py names missing modules: {gone}")


def pytest_collection_finish() -> None:
    gc.freeze()  # collected tests live to the end, so garbage collections need not scan them
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    sizes = Counter(item.path for item in items)
    items.sort(key=lambda item: (places.get(item.path, len(LONGEST)), -sizes[item.path], str(item.path)))
