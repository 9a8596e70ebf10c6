"""Masking: generalise sensitive locations before hashing, storing or showing (CARE, IEN-12).

    masked_location(masking, site, ExactLocation) -> MaskedLocation -> masked_entry(...) -> content hash

Two exact locations that share a masked location give equal groups, coordinates, content hashes, and entries in a
node's manifest (the list of its inputs). Exact and masked locations have different types; no repr and no error shows an
`ExactLocation`. A unit's generalised metadata depend only on the cell of the footprint's centre, the times and the kept
properties of the header.

Belongs here: masked locations, a manifest's entry for masked input, the kept parts of a header, the decision to mask,
and the published forms of this decision. Does not belong here: the sensitive sites, which a dataset's owner declares,
and the rules about which units are masked (`rules.py`, `areas.py`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import h3

from kfm_dagster.contracts.bounding_box import Box, bounding_box
from kfm_dagster.contracts.envelope import Metadata
from kfm_dagster.contracts.identity import uuid8
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision, GovernanceAction, GovernanceLog
from kfm_dagster.storage.database import Transaction

EARTH_RADIUS_M = 6_371_007.180918475
"""Authalic radius of WGS 84, the sphere of H3."""
SHORTEST_SALT = 16
"""Least length in bytes: a shorter salt could be guessed, and a guessed salt undoes every displacement."""
DECIMALS = 5
"""Decimals of published degrees: about a metre. Rounded degrees have the same text under every libm."""
ROUNDING_M = 1.0
"""Exceeds a point's shift by rounding to DECIMALS (at most 0.79 m)."""
CELL_RADIUS = 1.2
"""Maximum distance of a corner from a cell's centre, in average edges (1.11 in H3 version 4, over all resolutions)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactLocation:
    """A sensitive site in degrees (WGS 84). Raises a ConfigurationError that hides the location."""

    latitude: float = field(repr=False)
    longitude: float = field(repr=False)

    def __post_init__(self) -> None:
        # False for NaN, too.
        if not (-90 <= self.latitude <= 90 and -180 <= self.longitude <= 180):
            raise ConfigurationError(
                "a location is not on Earth",
                observed="a value that is not shown",
                expected="latitude -90 to 90, longitude -180 to 180",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedLocation:
    """The location shown for a site: a point in degrees, and the group of sites that share it."""

    group: str
    latitude: float
    longitude: float


def masked_location(masking: Masking, site: str, location: ExactLocation, *, salt: bytes = b"") -> MaskedLocation:
    """Return the location to show for a site: its H3 cell's centre, or a displaced point.

    A displacement is between `minimum_m` and `maximum_m` of method donut. Direction and distance come from HMAC-SHA256
    of the site's id under a salt, uniform over the ring's area. The centre of the H3 cell (`anchor_resolution`) is
    displaced instead of the site. Otherwise a corrected coordinate would move the shown point equally, and a person who
    learns the displacement would know the site to the metre. The ring is narrowed by the cell's radius, so these
    bounds also hold for the distance from the site itself. The group of a displaced point is a pseudonym of the site.

    The salt is a secret of the deployment: no parameter, hash, record or repr contains it. Another salt moves every
    shown location, and publishing a site under two salts narrows down its location. Raises ConfigurationError for a
    short salt.
    """
    if masking.resolution is not None:
        cell = cell_of(location, masking.resolution)
        return _masked(f"{masking.method}:{cell}", *h3.cell_to_latlng(cell))
    if len(salt) < SHORTEST_SALT:
        raise ConfigurationError(
            "a donut's salt is too short",
            observed=f"{len(salt)} bytes",
            expected=f"at least {SHORTEST_SALT}, random and secret",
        )
    from pyproj import Geod  # noqa: PLC0415, only where a ring is declared

    low, high = _ring(masking)
    resolution = anchor_resolution(masking)
    margin = _cell_radius_m(resolution) + ROUNDING_M

    def keyed(purpose: str) -> bytes:
        # The radii are included. Otherwise the points of two rings would have the same direction from the site's cell,
        # and show a line through its centre.
        message = json.dumps(["kfm:donut:1", purpose, site, low, high])
        return hmac.digest(salt, message.encode(), hashlib.sha256)

    digest = keyed("step")
    anchor_latitude, anchor_longitude = h3.cell_to_latlng(cell_of(location, resolution))
    longitude, latitude, _ = Geod(a=EARTH_RADIUS_M, b=EARTH_RADIUS_M).fwd(
        anchor_longitude,
        anchor_latitude,
        360 * _unit(digest[:8]),
        ring_radius_m(low + margin, high - margin, _unit(digest[8:16])),
    )
    return _masked(f"{masking.method}:{keyed('name').hex()[:16]}", latitude, longitude)


def anchor_resolution(masking: Masking) -> int:
    """Return the coarsest H3 resolution with cells of at most half the ring's width."""
    low, high = _ring(masking)
    return next(resolution for resolution in range(16) if 2 * _cell_radius_m(resolution) <= (high - low) / 2)


def _ring(masking: Masking) -> tuple[float, float]:
    return float(masking.minimum_m or 0), float(masking.maximum_m or 0)


def masked_entry(dataset: str, location: MaskedLocation, content: bytes) -> dict[str, Any]:
    """Return the manifest entry of a group's masked content, for `ManifestEntry(**entry)`.

    Address, size and checksum of the source file are left out, because the checksum of a file with coordinates would
    confirm a correct guess of the coordinates.
    """
    uri = f"urn:kfm:masked:{dataset}:{location.group}"
    return {"uri": uri, "size": len(content), "checksum": hashlib.sha256(content).hexdigest()}


def _masked(group: str, latitude: float, longitude: float) -> MaskedLocation:
    return MaskedLocation(group=group, latitude=_rounded(latitude), longitude=_rounded(longitude))


def cell_of(location: ExactLocation, resolution: int) -> str:
    """Return the H3 cell that holds a location."""
    # 180 and -180 degrees are the same meridian, and at a pole every longitude is the same point.
    longitude = 0.0 if abs(location.latitude) == 90 else location.longitude
    cell: str = h3.latlng_to_cell(location.latitude, -180.0 if longitude == 180 else longitude, resolution)
    return cell


def ring_radius_m(low_m: float, high_m: float, share: float) -> float:
    """Return the radius in metres that encloses a share (0 to 1) of a ring's area."""
    # A cap's area is 4 pi R^2 sin^2(angle / 2). With cosines, the rounding error would exceed short radii.
    inner, outer = (math.sin(radius / EARTH_RADIUS_M / 2) ** 2 for radius in (low_m, high_m))
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(inner + share * (outer - inner)))


def _cell_radius_m(resolution: int) -> float:
    edge: float = h3.average_hexagon_edge_length(resolution, unit="m")
    return CELL_RADIUS * edge


def _unit(digest: bytes) -> float:
    """Return a number from 0 to below 1 with 53 bits, the most that a float has."""
    return (int.from_bytes(digest) >> 11) / 2**53


TIMES = ("datetime", "start_datetime", "end_datetime")
WITHHELD = "not shown: locations of this dataset are masked"


def generalised(metadata: Metadata, masking: Masking, *, salt: bytes = b"") -> Metadata:
    """Return metadata with the box of an H3 cell as geometry and bbox, and the kept properties.

    `salt` is the secret of method donut. Raises ConfigurationError if the salt is too short.
    """
    kept = {*TIMES, *masking.properties}
    shape = None if metadata.bbox is None else outline(_cell_of(metadata.bbox, masking, salt))
    return dataclasses.replace(
        metadata,
        geometry=shape,
        bbox=None if shape is None else bounding_box(shape),
        stac_properties={name: value for name, value in metadata.stac_properties.items() if name in kept},
        # The message of an issue can quote the header.
        issues=tuple(dataclasses.replace(issue, message=WITHHELD) for issue in metadata.issues),
    )


def _cell_of(bbox: Box, masking: Masking, salt: bytes) -> Box:
    centre = _centre(bbox)
    if masking.resolution is not None:
        return _cell_box(centre, masking.resolution)
    resolution = anchor_resolution(masking)
    # All footprints of a cell share a displacement, because the mean of several displacements would reveal the cell.
    site = cell_of(centre, resolution)
    shown = masked_location(masking, site, centre, salt=salt)
    return _cell_box(ExactLocation(latitude=shown.latitude, longitude=shown.longitude), resolution)


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
        # A cell around a pole contains points of every longitude, but its corners have only six longitudes.
        if h3.latlng_to_cell(pole, 0.0, resolution) == cell:
            return -180.0, _rounded(min(*latitudes, pole)), 180.0, _rounded(max(*latitudes, pole))
    longitudes = [longitude for _, longitude in corners]
    if max(longitudes) - min(longitudes) > 180:
        longitudes = [longitude % 360 for longitude in longitudes]
    first, last = ((edge + 180) % 360 - 180 for edge in (min(longitudes), max(longitudes)))
    return _rounded(first), _rounded(min(latitudes)), _rounded(last), _rounded(max(latitudes))


def outline(box: Box) -> dict[str, Any]:
    """Return a box in degrees as GeoJSON, cut at the antimeridian (RFC 7946, 3.1.9)."""
    west, south, east, north = box
    spans = [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]
    # Drop a part without an area, which rounding can leave beyond the antimeridian.
    rings = [[[[a, south], [b, south], [b, north], [a, north], [a, south]]] for a, b in spans if a < b or west == east]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def _rounded(degrees: float) -> float:
    # Adding 0.0 turns a negative zero, which would print as -0.0, into zero.
    return round(degrees, DECIMALS) + 0.0


MASKING, MASKING_DECISION = "kfm:masking", "kfm:masking_decision"
"""Properties of an Item whose footprint met a sensitive area: the masking, and the decision to mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskingDecision:
    """The decision to mask a dataset's sensitive sites: method, requester, reason and change."""

    dataset: str
    method: str
    parameters: Mapping[str, float]
    decision: Decision

    @classmethod
    def declared(cls, masking: Masking, *, dataset: str) -> MaskingDecision:
        """Return the decision behind a masking, with the masking's public parameters."""
        return cls(
            dataset=dataset,
            method=masking.method,
            parameters=masking.parameters,
            decision=Decision(actor=masking.requested_by, reason=masking.reason, change_ref=masking.change_ref),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        mask = {"dataset": self.dataset, "method": self.method, "parameters": dict(self.parameters)}
        return {**mask, **self.decision.row}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> MaskingDecision:
        """Read a document of `as_json`."""
        return cls(
            dataset=document["dataset"],
            method=document["method"],
            parameters=dict(document["parameters"]),
            decision=Decision(**{name: document[name] for name in ("actor", "reason", "change_ref")}),
        )

    def prov_nodes(self, masked_uris: list[str]) -> list[dict[str, Any]]:
        """Return PROV-O nodes (`lineage.prov.CONTEXT`): masking, requester, masked entities.

        The sources of the entities are left out, because a source would name the location that the mask hides.
        """
        content = self.as_json()
        activity = "urn:uuid:" + uuid8("prov", "masking", json.dumps(content, sort_keys=True))
        agent = "urn:uuid:" + uuid8("prov", "agent", self.decision.actor)
        masking: dict[str, Any] = {
            "id": activity,
            "type": ["Activity", "kfm:Masking"],
            "wasAssociatedWith": [agent],
            "kfm:dataset": self.dataset,
            "kfm:method": self.method,
            **{f"kfm:{name}": value for name, value in sorted(self.parameters.items())},
            "kfm:reason": self.decision.reason,
        }
        if self.decision.change_ref is not None:
            masking["kfm:change_ref"] = self.decision.change_ref
        requester = {"id": agent, "type": ["Agent"], "kfm:name": self.decision.actor}
        entities = [
            {"id": uri, "type": ["Entity", "kfm:MaskedInput"], "wasGeneratedBy": activity}
            for uri in sorted(masked_uris)
        ]
        return [masking, requester, *entities]

    def record(self, log: GovernanceLog, *, tx: Transaction, details: Mapping[str, Any] | None = None) -> None:
        """Write the log's entry; `tx` must be the transaction that makes the masked output durable."""
        content = {"method": self.method, "parameters": dict(self.parameters), **(details or {})}
        log.record(GovernanceAction.MASK, self.decision, dataset=self.dataset, details=content, tx=tx)
