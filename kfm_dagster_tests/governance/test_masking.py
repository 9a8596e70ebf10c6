"""Masking: shown locations keep their bounds; no hash or shown value reveals an exact location."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import h3
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kfm_dagster.contracts.stewardship import FINEST_RESOLUTION, Masking
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.masking import (
    CELL_RADIUS,
    ExactLocation,
    MaskedLocation,
    MaskingDecision,
    anchor_resolution,
    masked_entry,
    masked_location,
    ring_radius_m,
)
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry, compute_content_hash

SALT = bytes(range(32))
DECISION = {"requested_by": "steward@example.org", "reason": "a council asked for it", "change_ref": "CARE-7"}


def h3_mask(resolution: int) -> Masking:
    return Masking(method="h3", resolution=resolution, **DECISION)


def donut(minimum_m: float, maximum_m: float) -> Masking:
    return Masking(method="donut", minimum_m=minimum_m, maximum_m=maximum_m, **DECISION)


def masked(mask: Masking, site: str, location: ExactLocation, salt: bytes = SALT) -> MaskedLocation:
    return masked_location(mask, site, location, salt=salt)


DONUT = donut(2_000, 8_000)
MASKS = [h3_mask(5), DONUT, donut(50, 90)]

LATITUDES = st.one_of(
    st.floats(-90, 90), st.floats(89.9, 90), st.floats(-90, -89.9), st.sampled_from([-90.0, 0.0, 90.0])
)
LONGITUDES = st.one_of(
    st.floats(-180, 180), st.floats(179.9, 180), st.floats(-180, -179.9), st.sampled_from([-180.0, 0.0, 180.0])
)
LOCATIONS = st.builds(ExactLocation, latitude=LATITUDES, longitude=LONGITUDES)
SITES = st.text(min_size=1, max_size=8)


def vector(latitude: float, longitude: float) -> tuple[float, float, float]:
    phi, lam = math.radians(latitude), math.radians(longitude)
    return math.cos(phi) * math.cos(lam), math.cos(phi) * math.sin(lam), math.sin(phi)


def metres(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the distance of two points by H3's function."""
    return float(h3.great_circle_distance(tuple(first), tuple(second), unit="m"))


def moved_within(cell: str, shares: Sequence[float]) -> ExactLocation:
    """Return another location in a cell, a weighted mean of the cell's centre and corners."""
    corners = [h3.cell_to_latlng(cell), *h3.cell_to_boundary(cell)]
    weights = [*shares, *[0.0] * len(corners)][: len(corners)]
    x, y, z = (
        sum(weight * vector(*corner)[axis] for weight, corner in zip(weights, corners, strict=True))
        for axis in range(3)
    )
    return ExactLocation(
        latitude=math.degrees(math.atan2(z, math.hypot(x, y))), longitude=math.degrees(math.atan2(y, x))
    )


def point(location: ExactLocation | MaskedLocation) -> tuple[float, float]:
    return location.latitude, location.longitude


def published(mask: Masking, site: str, location: ExactLocation) -> str:
    """Return all public values of a masked site, and its content hash."""
    shown = masked(mask, site, location)
    content = json.dumps([shown.group, *point(shown), 12.5]).encode()
    entry = masked_entry("soil", shown, content)
    decision = MaskingDecision.declared(mask, dataset="soil")
    hashed = compute_content_hash([ManifestEntry(**entry).canonical()], {"masking": mask.parameters}, "code", "lock")
    return repr((shown, content, entry, decision.as_json(), decision.prov_nodes([entry["uri"]]), hashed))


@pytest.mark.clause("IEN-12")
@pytest.mark.parametrize("mask", MASKS, ids=["h3", "donut", "narrow donut"])
@given(site=SITES, location=LOCATIONS, shares=st.lists(st.floats(0.01, 1), min_size=3, max_size=7))
def test_no_public_value_or_hash_changes_while_a_site_moves_within_its_mask(
    mask: Masking, site: str, location: ExactLocation, shares: list[float]
) -> None:
    resolution = anchor_resolution(mask) if mask.resolution is None else mask.resolution
    cell = h3.latlng_to_cell(*point(location), resolution)
    moved = moved_within(cell, shares)
    assume(h3.latlng_to_cell(*point(moved), resolution) == cell)
    assert published(mask, site, moved) == published(mask, site, location)


@pytest.mark.clause("IEN-12")
@given(location=LOCATIONS, resolution=st.integers(0, FINEST_RESOLUTION))
def test_a_mask_by_cell_contains_the_site_and_shows_only_the_cell_s_centre(
    location: ExactLocation, resolution: int
) -> None:
    shown = masked(h3_mask(resolution), "site", location)
    cell = shown.group.removeprefix("h3:")
    assert h3.get_resolution(cell) == resolution
    centre, corners = h3.cell_to_latlng(cell), h3.cell_to_boundary(cell)
    # No other cell's centre is nearer, except slightly for cells across an icosahedron's edge.
    away = metres(point(location), centre)
    assert away <= 1.01 * max(metres(centre, corner) for corner in corners) + 1
    others = [h3.cell_to_latlng(neighbour) for neighbour in h3.grid_ring(cell, 1)]
    assert away <= 1.2 * min(metres(point(location), other_centre) for other_centre in others) + 1
    assert metres(point(shown), centre) < 1


@pytest.mark.clause("IEN-12")
@given(
    location=LOCATIONS,
    site=SITES,
    minimum=st.floats(0.001, 100_000),
    width=st.floats(20.001, 300_000),
    salt=st.binary(min_size=16, max_size=32),
)
def test_a_donut_shows_a_location_between_its_minimum_and_maximum_distance(
    location: ExactLocation, site: str, minimum: float, width: float, salt: bytes
) -> None:
    shown = masked(donut(minimum, minimum + width), site, location, salt)
    assert minimum <= metres(point(location), point(shown)) <= minimum + width


@given(location=LOCATIONS)
@pytest.mark.parametrize("mask", MASKS, ids=["h3", "donut", "narrow donut"])
def test_masks_work_at_the_antimeridian_and_the_poles(mask: Masking, location: ExactLocation) -> None:
    shown = masked(mask, "site", location)
    assert -90 <= shown.latitude <= 90
    assert -180 <= shown.longitude <= 180
    for latitude in (-90.0, 90.0):
        pole = masked(mask, "site", ExactLocation(latitude=latitude, longitude=0))
        assert masked(mask, "site", ExactLocation(latitude=latitude, longitude=location.longitude)) == pole
    east, west = (ExactLocation(latitude=location.latitude, longitude=longitude) for longitude in (180.0, -180.0))
    assert masked(mask, "site", east) == masked(mask, "site", west)


def test_a_cell_s_corners_are_within_the_margin_of_the_ring() -> None:
    for resolution in range(16):
        bound = CELL_RADIUS * h3.average_hexagon_edge_length(resolution, unit="m")
        cells = {h3.latlng_to_cell(latitude, 0.7 * latitude * 2, resolution) for latitude in range(-90, 91)}
        cells |= {h3.latlng_to_cell(*h3.cell_to_latlng(base), resolution) for base in h3.get_res0_cells()}
        worst = max(metres(h3.cell_to_latlng(cell), corner) for cell in cells for corner in h3.cell_to_boundary(cell))
        assert worst < bound


def test_a_displacement_is_reproducible_and_differs_by_site_salt_and_ring() -> None:
    home = ExactLocation(latitude=38.5, longitude=-98.0)
    shown = {
        "first": masked(DONUT, "site", home),
        "another site": masked(DONUT, "site 2", home),
        "another salt": masked(DONUT, "site", home, SALT[::-1]),
        "another ring": masked(donut(2_000, 8_001), "site", home),
    }
    assert masked(DONUT, "site", home) == shown["first"]
    assert len({location.group for location in shown.values()}) == len({point(site) for site in shown.values()}) == 4
    assert ring_radius_m(3, 4, 0.5) == pytest.approx(math.sqrt((9 + 16) / 2), rel=1e-9), (
        "half of the ring's area lies within"
    )
    assert [ring_radius_m(2_000, 8_000, share) for share in (0, 1)] == pytest.approx([2_000, 8_000])
    # Pinned values: a release must not move published locations.
    assert shown["first"] == MaskedLocation(group="donut:0892cd1608f3464c", latitude=38.47862, longitude=-97.94804)


@pytest.mark.clause("IEN-12")
def test_neither_a_salt_nor_an_exact_location_is_in_any_text() -> None:
    home = ExactLocation(latitude=38.123456, longitude=-98.654321)
    text = f"{home!r} {DONUT!r} {published(DONUT, 'site-of-the-heron', home)} {DONUT.parameters}"
    for secret in ("38.123", "98.654", SALT.hex(), repr(SALT), "site-of-the-heron"):
        assert secret not in text
    with pytest.raises(ConfigurationError) as refused:
        ExactLocation(latitude=98.123456, longitude=0)
    assert "98.123" not in str(refused.value)


HERE = ExactLocation(latitude=0, longitude=0)
WRONG: list[tuple[str, Any]] = [
    ("not on Earth", lambda: ExactLocation(latitude=math.nan, longitude=0)),
    ("not on Earth", lambda: ExactLocation(latitude=0, longitude=180.1)),
    ("less than or equal to 8", lambda: h3_mask(FINEST_RESOLUTION + 1)),
    ("greater than or equal to 0", lambda: h3_mask(-1)),
    ("greater than 0", lambda: donut(0, 100)),
    ("maximum_m is less than", lambda: donut(100, 119)),
    ("less than or equal to 1000000", lambda: donut(1, math.inf)),
    ("salt is too short", lambda: masked(donut(1, 100), "site", HERE, b"secret")),
    ("salt is too short", lambda: masked(donut(1, 100), "site", HERE, b"fifteen bytes !")),
]


@pytest.mark.parametrize(("reason", "make"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mask_that_hides_nothing_is_refused(reason: str, make: Any) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=reason):
        make()
