"""Which Items are a subscription's: boxes at their edges, and CQL2 as text and as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.announcements.selection import compiled, within
from kfm_dagster_tests.catalog.envelopes import box, goes
from kfm_dagster_tests.followers.announcements.changes import item_of

BOXES: list[tuple[tuple[float, float, float, float], dict[str, Any] | None, bool]] = [
    ((0, 0, 10, 10), box(9, 9, 20, 20), True),
    ((0, 0, 10, 10), box(10, 10, 20, 20), True),
    ((0, 0, 10, 10), box(10.0001, 0, 20, 10), False),
    ((170, -10, -170, 10), box(-175, 0, -160, 5), True),
    ((170, -10, -170, 10), box(172, 0, 176, 5), True),
    ((170, -10, -170, 10), box(-169, 0, 169, 5), False),
    ((170, -10, -170, 10), box(179, 0, -179, 5), True),
    ((0, 0, 10, 10), {"type": "Point", "coordinates": [5, 5]}, True),
    # The bounding box of a triangle meets a corner that the triangle itself does not.
    ((9, 9, 10, 10), {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [0, 10], [0, 0]]]}, False),
    ((0, 0, 10, 10), None, False),
]


def test_a_box_takes_the_footprints_that_meet_it() -> None:
    for bbox, geometry, meets in BOXES:
        assert within(bbox)({"geometry": geometry}) is meets


FILTERS: list[tuple[str | dict[str, Any], bool]] = [
    ("platform = 'goes-19'", True),
    ("platform = 'goes-18'", False),
    ({"op": "=", "args": [{"property": "platform"}, "goes-19"]}, True),
    ("\"goes:percent-uncorrectable\" < 0.5 AND platform LIKE 'goes-%'", True),
    ("datetime >= TIMESTAMP('2025-12-03T00:00:00Z')", True),
    ("datetime > TIMESTAMP('2025-12-04T00:00:00Z')", False),
    ("S_INTERSECTS(geometry, BBOX(-100, 35, -95, 40))", True),
    ("S_INTERSECTS(geometry, BBOX(10, 35, 20, 40))", False),
    # Nothing is known of what is not there.
    ("nothing = 1", False),
    ("NOT (nothing = 1)", False),
    ("nothing = 1 OR platform = 'goes-19'", True),
    ("nothing IS NULL", True),
]


def test_a_filter_is_cql2(contracts: ContractRegistry) -> None:
    for text, matches in FILTERS:
        assert compiled(text)(item_of(contracts, goes(0))) is matches


def test_what_is_no_cql2_is_refused() -> None:
    for text in ["", "platform =", "platform == 'x'", {"args": []}]:
        with pytest.raises(ValueError, match="CQL2"):
            compiled(text)
