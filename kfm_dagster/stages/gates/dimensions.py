"""Gate G4, dimensional closure: extracted numbers have fitting units and possible values.

A quantity is a numeric field of an ingested unit. A quantity closes if (1) its declared unit of measurement has the
dimension that STAC or the contract expects, (2) STAC and the projection prescribe no other unit, and (3) its values are
finite and in range. The contract declares the units of measurement; for the fields in OURS this package does. p_dim is
the share of quantities that close. Does not belong here: parsing units of measurement (`units.py`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyproj
from pyproj.exceptions import CRSError

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import Quantity, covers
from kfm_dagster.stages.gates.subject import Extracted, Subject, shortened
from kfm_dagster.stages.gates.units import SAME, UnitError, dimension, dimension_of, same_unit
from kfm_dagster.stages.gates.verdict import Finding, Gate, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Standard:
    """A standard's definition of a field: the unit of its values, and their range."""

    unit: str
    minimum: float = -math.inf
    maximum: float = math.inf


_LONGITUDE = Standard(unit="degree", minimum=-180, maximum=180)
_LATITUDE = Standard(unit="degree", minimum=-90, maximum=90)
STANDARDS: Mapping[str, Standard] = {
    # STAC 1.1.0, common metadata.
    "gsd": Standard(unit="m", minimum=0),
    # EO extension 2.0.0.
    "eo:cloud_cover": Standard(unit="percent", minimum=0, maximum=100),
    "eo:snow_cover": Standard(unit="percent", minimum=0, maximum=100),
    "bands.eo:center_wavelength": Standard(unit="um", minimum=0),
    "bands.eo:full_width_half_max": Standard(unit="um", minimum=0),
    # STAC 1.1.0, common metadata, and raster extension 2.0.0: the packed number for nodata, and the scale and offset
    # of the packing. STAC gives them the unit of the band's values; here they are dimensionless.
    "bands.nodata": Standard(unit="1"),
    "bands.raster:scale": Standard(unit="1"),
    "bands.raster:offset": Standard(unit="1"),
    # View extension 1.0.0.
    "view:off_nadir": Standard(unit="degree", minimum=0, maximum=90),
    "view:incidence_angle": Standard(unit="degree", minimum=0, maximum=90),
    "view:azimuth": Standard(unit="degree", minimum=0, maximum=360),
    "view:sun_azimuth": Standard(unit="degree", minimum=0, maximum=360),
    "view:sun_elevation": Standard(unit="degree", minimum=-90, maximum=90),
    # Projection extension 2.0.0.
    "proj:centroid.lon": _LONGITUDE,
    "proj:centroid.lat": _LATITUDE,
    "proj:shape": Standard(unit="1", minimum=1),
    # Satellite extension 1.2.0.
    "sat:absolute_orbit": Standard(unit="1", minimum=1),
    "sat:relative_orbit": Standard(unit="1", minimum=1),
    # RFC 7946, section 4, and file extension 2.1.0: fields that metadata-extract and integrity-check compute.
    "bbox.longitude": _LONGITUDE,
    "bbox.latitude": _LATITUDE,
    "geometry.longitude": _LONGITUDE,
    "geometry.latitude": _LATITUDE,
    "file:size": Standard(unit="byte", minimum=0),
}
OF_PROJECTION = frozenset({"proj:transform", "proj:bbox"})
"""Fields in the unit of the axes of `proj:wkt2` (projection extension 2.0.0)."""
_NUMBER = (int, float)
_NUMERIC = (*_NUMBER, list, tuple)
_LARGEST = sys.float_info.max
OURS = frozenset({
    "bbox.longitude", "bbox.latitude", "geometry.longitude", "geometry.latitude", "file:size",
    "bands.nodata", "bands.raster:scale", "bands.raster:offset",
})  # fmt: skip
"""Quantities that this package computes in the standard's unit; contracts need not declare the unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Closure:
    """A field's declared and expected dimension, and its range; with a `fault` no value closes."""

    unit: str | None
    expected: str | None
    observed: str | None
    minimum: float = -math.inf
    maximum: float = math.inf
    fault: str | None = None


@dataclass(slots=True)
class _Count:
    closure: Closure
    units: int = 0
    closed: int = 0


@dataclass(slots=True)
class Closing:
    """The closure of a batch's quantities: counts by field and its axes' unit, faults by wal_id."""

    counts: dict[tuple[str, str], _Count] = field(default_factory=dict)
    faults: dict[WalId, list[str]] = field(default_factory=dict)

    @property
    def p_dim(self) -> float | None:
        """Share of quantities that close; None without quantities."""
        total = sum(count.units for count in self.counts.values())
        return sum(count.closed for count in self.counts.values()) / total if total else None


def dimensional_closure(subject: Subject) -> Verdict:
    """Compare p_dim with the threshold, and list the faults by field and by ingested unit."""
    least = subject.rules.G4.min_p_dim
    rule = f"p_dim >= {least:g}"
    closing = close(subject)
    p_dim = closing.p_dim
    if p_dim is None:
        return Verdict.not_applicable(Gate.G4, rule, "no quantity is extracted yet")
    findings: list[Finding] = []
    if p_dim < least:
        findings += [
            Finding(what=f"{path}: {count.closure.fault}")
            for (path, _), count in sorted(closing.counts.items())
            if count.closure.fault is not None
        ]
        findings += [
            Finding(wal_id=wal_id, what=shortened(sorted(texts))) for wal_id, texts in sorted(closing.faults.items())
        ]
    total = sum(count.units for count in closing.counts.values())
    closed = sum(count.closed for count in closing.counts.values())
    return Verdict(
        gate=Gate.G4,
        rule=rule,
        observed=f"{closed} of {total} quantities close: p_dim {p_dim:.4f}",
        expected=f"p_dim of {least:g}",
        findings=tuple(findings),
        figures={"closed": closed, "quantities": total},
    )


def p_dim_against(p_dim: float | None, least: float) -> dict[str, Any]:
    """Return p_dim, min_p_dim and ok for a dimensional report; without quantities ok is true."""
    return {"p_dim": p_dim, "min_p_dim": least, "ok": p_dim is None or p_dim >= least}


def dim_report(subject: Subject) -> dict[str, Any]:
    """Return a stage's `check_dim_report.json` as JSON values, under the public dataset id."""
    closing = close(subject)
    return {
        "dataset": subject.contract.public_id,
        "stage": subject.stage,
        "reference_time": subject.reference_time.isoformat(),
        **p_dim_against(closing.p_dim, subject.rules.G4.min_p_dim),
        "quantities": [
            {
                "quantity": path,
                "unit": count.closure.unit,
                "dimension_expected": count.closure.expected,
                "dimension_observed": count.closure.observed,
                "values": count.units,
                "closed": count.closed,
                "ok": count.closed == count.units,
                "fault": count.closure.fault,
            }
            for (path, _), count in sorted(closing.counts.items())
        ],
    }


def close(subject: Subject) -> Closing:
    """Check the closure of every quantity of the units that have not failed."""
    closing = Closing()
    for extracted in subject.extracted:
        numbers = [
            (path, values)
            for path, value in extracted.fields
            if type(value) in _NUMERIC and (values := _numbers(value))
        ]
        numbers += _own_numbers(extracted, subject)
        projection = extracted.metadata.stac_properties.get("proj:wkt2")
        _close_unit(closing, subject.contract, extracted.unit.wal_id, numbers, projection)
    return closing


def _close_unit(
    closing: Closing,
    contract: DatasetContract,
    wal_id: WalId,
    numbers: Iterable[tuple[str, Sequence[float]]],
    projection: Any,
) -> None:
    axes_unit = (_axis_unit(projection) if isinstance(projection, str) else None) or ""
    for path, values in numbers:
        axes = axes_unit if path in OF_PROJECTION else ""
        count = closing.counts.get((path, axes))
        if count is None:
            count = closing.counts[path, axes] = _Count(closure=closure_of(contract, path, axes))
        count.units += 1
        closure = count.closure
        if closure.fault is not None:
            continue
        fault = _out_of_range(closure, values)
        if fault is None and path in OF_PROJECTION:
            fault = _not_of_axes(closure, axes)
        if fault is None:
            count.closed += 1
        else:
            closing.faults.setdefault(wal_id, []).append(f"{path}: {fault}")


def closure_of(contract: DatasetContract, path: str, axes: str = "") -> Closure:
    """Compare a field's declared unit with the expected dimension; `axes` is the axes' unit."""
    declared = _declared(contract, path, axes)
    standard = STANDARDS.get(path)
    unit = standard.unit if standard and path in OURS else declared.unit if declared else None
    if unit is None:
        return Closure(unit=None, expected=None, observed=None, fault="no unit is declared")
    try:
        observed = dimension_of(unit)
        expected = _expected(path, declared, standard)
        fault = _mismatch(unit, observed, expected, standard)
    except UnitError as error:
        return Closure(unit=unit, expected=None, observed=None, fault=f"{error.what}: {error.observed}")
    ranges = [(standard.minimum, standard.maximum)] if standard else []
    if declared is not None:
        low = -math.inf if declared.minimum is None else declared.minimum
        ranges.append((low, math.inf if declared.maximum is None else declared.maximum))
    return Closure(
        unit=unit,
        expected=expected,
        observed=observed,
        minimum=max((low for low, _ in ranges), default=-math.inf),
        maximum=min((high for _, high in ranges), default=math.inf),
        fault=fault,
    )


def _declared(contract: DatasetContract, path: str, axes: str) -> Quantity | None:
    """Return a field's first declaration in the unit of its axes, else its first declaration."""
    units = contract.metadata_extract.units
    declared = [quantity for quantity in units if any(covers(pattern, path) for pattern in quantity.fields)]
    of_axes = (quantity for quantity in declared if quantity.unit == axes or (axes, quantity.unit) in SAME)
    return next(of_axes, declared[0] if declared else None)


def _expected(path: str, declared: Quantity | None, standard: Standard | None) -> str | None:
    """Return a field's expected dimension; a projection's fields are compared with axes later."""
    if standard is not None:
        return dimension_of(standard.unit)
    if declared is not None and declared.dimension is not None:
        return dimension(declared.dimension)
    if declared is not None and path in OF_PROJECTION:
        return dimension_of(declared.unit)
    return None


def _mismatch(unit: str, observed: str, expected: str | None, standard: Standard | None) -> str | None:
    if expected is None:
        return "neither STAC nor the contract declares its dimension"
    if observed != expected:
        return f"{unit} has dimension {observed}, expected {expected}"
    if standard is not None and not same_unit(unit, standard.unit):
        return f"is declared in {unit}, the standard's unit is {standard.unit}"
    return None


def _numbers(value: Any) -> Sequence[float]:
    """Return a field's numbers: a number, or a list of only numbers; booleans do not count."""
    if type(value) in _NUMBER:
        return (value,)
    return value if value and all(type(item) in _NUMBER for item in value) else ()


def _own_numbers(extracted: Extracted, subject: Subject) -> list[tuple[str, Sequence[float]]]:
    """Return the quantities of footprint and size; an invalid footprint is left to G1."""
    metadata, integrity = extracted.metadata, extracted.unit.integrity
    quantities: list[tuple[str, Sequence[float]]] = []
    if len(box := _numbers(metadata.bbox or ())) == 4:
        west, south, east, north = box
        quantities += [("bbox.longitude", (west, east)), ("bbox.latitude", (south, north))]
    measured = subject.footprints[id(metadata.geometry)]
    if measured.fault is None:
        quantities += [("geometry.longitude", measured.longitudes), ("geometry.latitude", measured.latitudes)]
    if integrity is not None and integrity.actual_size_bytes is not None:
        quantities.append(("file:size", (integrity.actual_size_bytes,)))
    return quantities


def _out_of_range(closure: Closure, values: Sequence[float]) -> str | None:
    for value in values:
        # Written so that NaN fails.
        if not (closure.minimum <= value <= closure.maximum and -_LARGEST <= value <= _LARGEST):
            return f"{value:g} {closure.unit} is not between {closure.minimum:g} and {closure.maximum:g}"
    return None


def _not_of_axes(closure: Closure, axes: str) -> str | None:
    if not axes:
        return "no proj:wkt2 declares the unit of its axes"
    if dimension_of(axes) != closure.observed or not same_unit(axes, str(closure.unit)):
        return f"is declared in {closure.unit}, the axes of proj:wkt2 are in {axes}"
    return None


@lru_cache(maxsize=256)
def _axis_unit(wkt2: str) -> str | None:
    """Return pyproj's name for the unit of a projection's first axis; None for invalid WKT."""
    try:
        axes = pyproj.CRS.from_wkt(wkt2).axis_info
    except CRSError:
        return None
    return axes[0].unit_name if axes else None
