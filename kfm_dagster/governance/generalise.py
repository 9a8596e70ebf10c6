"""Generalising: a unit's metadata with the H3 cell of its footprint's centre in the place of where it was (IEN-12).

Pure. What is returned depends on the cell, the times and the properties that the contract keeps, and on nothing else of
the header. Belongs here: what of a header may stay, the outline of a cell. Does not belong here: masks (`masking.py`),
who is masked (`rules.py`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import h3

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.envelope import Metadata
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.masking import DECIMALS, ExactLocation, H3Mask, MaskingDecision

TIMES = ("datetime", "start_datetime", "end_datetime")
WITHHELD = "not shown: locations of this dataset are masked"


def masking_decision(contract: DatasetContract) -> MaskingDecision | None:
    """Return the decision that a contract's masking rests on, or None where it has none."""
    masking = contract.governance.masking
    if masking is None:
        return None
    decision = Decision(actor=masking.requested_by, reason=masking.reason, change_ref=masking.change_ref)
    return MaskingDecision.of(H3Mask(resolution=masking.resolution), dataset=contract.id, decision=decision)


def generalised(metadata: Metadata, masking: Masking) -> Metadata:
    """Return metadata that tell of a place no more than its cell: a box around it as geometry and bbox."""
    kept = {*TIMES, *masking.properties}
    shape = None if metadata.bbox is None else outline(cell_box(metadata.bbox, masking.resolution))
    return dataclasses.replace(
        metadata,
        geometry=shape,
        bbox=None if shape is None else bounding_box(shape),
        stac_properties={name: value for name, value in metadata.stac_properties.items() if name in kept},
        # A finding may quote what the header says.
        issues=tuple(dataclasses.replace(issue, message=WITHHELD) for issue in metadata.issues),
    )


def cell_box(bbox: Box, resolution: int) -> Box:
    """Return (west, south, east, north) of the corners of the H3 cell that holds a bbox's centre, in degrees.

    west > east across the antimeridian, as in the bbox that is given.
    """
    west, south, east, north = bbox
    middle = west + ((east - west) % 360 if west > east else east - west) / 2
    centre = ExactLocation(latitude=(south + north) / 2, longitude=(middle + 180) % 360 - 180)
    cell = H3Mask(resolution=resolution).apply("", centre).group.rpartition(":")[2]
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
    # Rounding may leave nothing of a part beyond the antimeridian, and a ring without an area is none.
    rings = [[[[a, south], [b, south], [b, north], [a, north], [a, south]]] for a, b in spans if a < b]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def _rounded(degrees: float) -> float:
    return round(degrees, DECIMALS) + 0.0
