"""`python -m benchmarks.cost`: what docs/deploy.md says of costs is what prices, contracts and measurements come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cost import PERFORMANCE, costs, objects_a_day, tables
from kfm_dagster.contracts.loader import ContractRegistry

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy.md"


def test_the_guide_has_the_tables_that_the_prices_come_to(contracts: ContractRegistry) -> None:
    assert tables(costs(), contracts) in DEPLOY.read_text(encoding="utf-8")


def test_each_price_and_assumption_counts() -> None:
    given = costs()
    whole = {**given.per_unit(1e6), **given.fixed()}
    for group in ("prices", "assumptions"):
        for name, value in getattr(given, group).items():
            other = replace(given, **{group: {**getattr(given, group), name: 2 * value}})
            assert {**other.per_unit(1e6), **other.fixed()} != whole, name


def test_objects_of_some_hours_only_count_in_these(contracts: ContractRegistry) -> None:
    assert objects_a_day(contracts["nexrad-l2"]) == 24 * 1300
    assert objects_a_day(contracts["ocean"]) == 1


def test_measurements_without_the_row_are_refused(tmp_path: Path) -> None:
    (tmp_path / "performance.md").write_text(PERFORMANCE.read_text(encoding="utf-8").replace("| hrrr |", "| gfs |"))
    with pytest.raises(LookupError, match="make bench"):
        costs(performance=tmp_path / "performance.md")
