"""The bounding box of a geometry: exact bounds, also across the antimeridian."""

from __future__ import annotations

from typing import Any

import pytest
import shapely
from hypothesis import example, given
from hypothesis import strategies as st

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.operators.metadata_extract import footprint
from kfm_dagster.readers.geometry import polygon_from_ring

pytestmark = pytest.mark.clause("OPR-17")


def square(west: float, south: float, east: float, north: float) -> list[list[list[float]]]:
    return [[[west, south], [east, south], [east, north], [west, north], [west, south]]]


def several(*parts: tuple[float, float, float, float]) -> dict[str, Any]:
    return {"type": "MultiPolygon", "coordinates": [square(*part) for part in parts]}


def test_the_bounding_box_of_a_geometry() -> None:
    for geometry, expected in [
        ({"type": "Point", "coordinates": (1, 2)}, (1, 2, 1, 2)),
        ({"type": "Point", "coordinates": (180, 2)}, (180, 2, 180, 2)),
        ({"type": "MultiPoint", "coordinates": [[5, 1], [-5, 2]]}, (-5, 1, 5, 2)),
        ({"type": "MultiPoint", "coordinates": [[180, 1], [-180, 2]]}, (180, 1, -180, 2)),
        ({"type": "Polygon", "coordinates": square(-180, -90, 180, 90)}, (-180, -90, 180, 90)),
        ({"type": "Polygon", "coordinates": square(170, 1, 180, 2)}, (170, 1, 180, 2)),
        (several((175, 0, 180, 2), (-180, -1, -170, 1)), (175, -1, -170, 2)),
        (several((20, 0, 180, 1), (-180, 0, 10, 1)), (20, 0, 10, 1)),
        # Two parts beyond the antimeridian.
        (several((150, 0, 180, 1), (-180, 0, -160, 1), (-180, 2, -170, 3)), (150, 0, -160, 3)),
        # A part ends at 180 and none begins at -180: no crossing.
        (several((170, 0, 180, 1), (-179, 0, -170, 1)), (-179, 0, 180, 1)),
        # All longitudes are covered.
        (several((-180, 0, 10, 1), (10, 2, 180, 3)), (-180, 0, 180, 3)),
        (several((-180, 0, 20, 1), (-10, 2, 180, 3)), (-180, 0, 180, 3)),
        # The wider of two uncovered ranges is outside of the box.
        (several((-180, 0, -100, 1), (-90, 0, -80, 1), (100, 0, 180, 1)), (100, 0, -80, 1)),
    ]:
        assert bounding_box(geometry) == expected


@st.composite
def outlines(draw: st.DrawFn) -> list[tuple[float, float]]:
    """Draw a convex outline of continuous longitudes, up to 355 degrees wide."""
    west, width = draw(st.floats(-180, 180)), draw(st.floats(0.001, 355))
    south, height = draw(st.floats(-89, 80)), draw(st.floats(0.001, 9))
    corners = draw(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=12))
    hull = shapely.MultiPoint([(west + x * width, south + y * height) for x, y in corners]).convex_hull
    if hull.geom_type != "Polygon" or hull.area < 1e-6:
        hull = shapely.box(west, south, west + width, south + height)
    return list(hull.exterior.coords)


@given(outline=outlines(), decimals=st.integers(3, 9))
@example(outline=[(81.0, 0.0), (81.0, 0.0625), (180.5, 0.0), (81.0, 0.0)], decimals=3)
@example(outline=[(179.0, 0.0), (180.0000001, 0.0), (180.0000001, 1.0), (179.0, 1.0)], decimals=6)
@example(outline=[(-180.0, 0.0), (-170.0, 0.0), (-170.0, 1.0), (-180.0, 1.0)], decimals=6)
@example(outline=[(170.0, 0.0), (180.0, 0.0), (180.0, 1.0), (170.0, 1.0)], decimals=6)
def test_a_rounded_footprint_has_the_box_of_its_outline(outline: list[tuple[float, float]], decimals: int) -> None:
    whole = polygon_from_ring(outline)
    geometry, (west, south, east, north) = footprint(whole, decimals=decimals)
    # Each side is a coordinate of the geometry, and no coordinate is outside.
    shape = shapely.geometry.shape(geometry)
    points = shapely.get_coordinates(shape).tolist()
    assert {west, east} <= {longitude for longitude, _ in points}
    assert (south, north) == (shape.bounds[1], shape.bounds[3])
    assert all((west <= x <= east) if west <= east else (x >= west or x <= east) for x, _ in points)
    # Compare with the outline before it was split and rounded.
    step = 10.0**-decimals + 1e-9
    first, last = min(x for x, _ in outline), max(x for x, _ in outline)
    # Rounding can remove a part beyond the antimeridian that is at most two steps high, of any width.
    parts = [part.bounds for part in shapely.get_parts(shapely.geometry.shape(whole))]
    lost = max((right - left for left, low, right, high in parts if high - low <= 2 * step), default=0.0)
    assert (east - west) % 360 == pytest.approx(last - first, abs=2 * step + lost)
    assert (west - first + 180) % 360 - 180 == pytest.approx(0, abs=step + lost)
