"""Generalising: a coarse cell in a unit's metadata, instead of its exact location (IEN-12).

Pure. The result depends on the cell of the footprint's centre, the times and the properties that are kept, and on
nothing else of the header. Belongs here: the parts of a header that may stay, the outline of a cell. Does not belong
here: masks (`masking.py`), the choice of masked units (`rules.py`), sensitive areas (`areas.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import h3

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.envelope import Metadata
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.governance.masking import DECIMALS, DonutMask, ExactLocation, cell_of

TIMES = ("datetime", "start_datetime", "end_datetime")
WITHHELD = "not shown: locations of this dataset are masked"


def generalised(metadata: Metadata, masking: Masking, *, salt: bytes = b"") -> Metadata:
    """Return metadata that show only the cell of a place: its box as geometry and bbox.

    `salt` is the secret of method donut. Raises ConfigurationError when it is too short.
    """
    kept = {*TIMES, *masking.properties}
    shape = None if metadata.bbox is None else outline(_cell_of(metadata.bbox, masking, salt))
    return dataclasses.replace(
        metadata,
        geometry=shape,
        bbox=None if shape is None else bounding_box(shape),
        stac_properties={name: value for name, value in metadata.stac_properties.items() if name in kept},
        # The message of an issue may quote the header.
        issues=tuple(dataclasses.replace(issue, message=WITHHELD) for issue in metadata.issues),
    )


def _cell_of(bbox: Box, masking: Masking, salt: bytes) -> Box:
    centre = _centre(bbox)
    if masking.resolution is not None:
        return _cell_box(centre, masking.resolution)
    mask = DonutMask(minimum_m=masking.minimum_m or 0.0, maximum_m=masking.maximum_m or 0.0, salt=salt)
    # Seeded by the place, so that its footprints share one displacement: the mean of many would be the place itself.
    site = cell_of(centre, mask.anchor_resolution)
    shown = mask.apply(site, centre)
    return _cell_box(ExactLocation(latitude=shown.latitude, longitude=shown.longitude), mask.anchor_resolution)


def _centre(bbox: Box) -> ExactLocation:
    """Return the centre of (west, south, east, north); west > east across the antimeridian."""
    west, south, east, north = bbox
    middle = west + ((east - west) % 360 if west > east else east - west) / 2
    return ExactLocation(latitude=(south + north) / 2, longitude=(middle + 180) % 360 - 180)


def _cell_box(place: ExactLocation, resolution: int) -> Box:
    """Return (west, south, east, north) in degrees of the H3 cell that holds a place.

    west > east across the antimeridian.
    """
    cell = cell_of(place, resolution)
    corners = h3.cell_to_boundary(cell)
    latitudes = [latitude for latitude, _ in corners]
    for pole in (-90.0, 90.0):
        # Around a pole a cell has every longitude, and its corners only six of them.
        if h3.latlng_to_cell(pole, 0.0, resolution) == cell:
            return -180.0, _rounded(min(*latitudes, pole)), 180.0, _rounded(max(*latitudes, pole))
    longitudes = [longitude for _, longitude in corners]
    if max(longitudes) - min(longitudes) > 180:
        longitudes = [longitude % 360 for longitude in longitudes]
    first, last = ((edge + 180) % 360 - 180 for edge in (min(longitudes), max(longitudes)))
    return _rounded(first), _rounded(min(latitudes)), _rounded(last), _rounded(max(latitudes))


def outline(box: Box) -> dict[str, Any]:
    """Return (west, south, east, north) as GeoJSON, cut at the antimeridian (RFC 7946, 3.1.9)."""
    west, south, east, north = box
    spans = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    # Drop a part beyond the antimeridian that rounding has left without an area.
    rings = [[[[a, south], [b, south], [b, north], [a, north], [a, south]]] for a, b in spans if a < b]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def _rounded(degrees: float) -> float:
    return round(degrees, DECIMALS) + 0.0
