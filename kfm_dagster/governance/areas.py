"""Sensitive areas: places in a GeoJSON file, masked in every dataset (CARE, IEN-17).

    KFM_SENSITIVE_AREAS=areas.geojson
    {"type": "FeatureCollection", "features": [
      {"type": "Feature", "properties": {"name": "...", "method": "h3", ...}, "geometry": {"type": "Polygon", ...}}]}

Edges are straight in longitude and latitude (RFC 7946, 3.1.1). Belongs here: the file, and the search for the
area that a footprint meets. Does not belong here: rulings on units (`rules.py`), generalising (`masking.py`).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.documents import DocumentError, checked
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.masking import SHORTEST_SALT
from kfm_dagster.settings import Settings

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry


class AreaProperties(Masking):
    """Properties of an area's feature: its name, and the masking of footprints that meet it."""

    name: str = Field(max_length=200, pattern=r"\S")


class _GeoJSON(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


class _Outline(_GeoJSON):
    type: Literal["Polygon", "MultiPolygon"]
    coordinates: list[Any]


class _Feature(_GeoJSON):
    type: Literal["Feature"]
    properties: AreaProperties
    geometry: _Outline


class _Collection(_GeoJSON):
    type: Literal["FeatureCollection"]
    features: list[_Feature] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_different(self) -> _Collection:
        names = [feature.properties.name for feature in self.features]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several areas with the same name: {', '.join(repeated)}")
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitiveArea:
    """An area, and the masking of footprints that meet it."""

    name: str
    masking: Masking
    shape: BaseGeometry = field(repr=False)

    def meets(self, footprint: BaseGeometry) -> bool:
        """Return whether a footprint (degrees, split at the antimeridian) and the area intersect."""
        from shapely.affinity import translate  # noqa: PLC0415, only where areas are declared

        # 180 and -180 degrees are the same meridian, and at a pole all longitudes are the same point.
        touching = any(self.shape.intersects(translate(footprint, turn)) for turn in (-360.0, 0.0, 360.0))
        (_, south, _, north), (_, low, _, high) = self.shape.bounds, footprint.bounds
        return bool(touching or north == high == 90 or south == low == -90)


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitiveAreas:
    """The areas of a deployment, in the file's order; empty if the deployment has no file."""

    areas: tuple[SensitiveArea, ...] = ()
    content: bytes = field(default=b"", repr=False)

    def __iter__(self) -> Iterator[SensitiveArea]:
        return iter(self.areas)

    def met_by(self, geometry: Mapping[str, Any] | None) -> SensitiveArea | None:
        """Return the first area that a GeoJSON geometry meets, or None."""
        if not self.areas or geometry is None:
            return None
        from shapely.geometry import shape  # noqa: PLC0415, only where areas are declared

        footprint = shape(geometry)
        return next((area for area in self.areas if area.meets(footprint)), None)

    def fingerprint(self, salt: bytes) -> str:
        """Return the file's HMAC, 64 hex digits; checking a guessed area against it needs the salt."""
        return hmac.digest(salt, self.content, "sha256").hex()


def load_areas(settings: Settings) -> SensitiveAreas:
    """Return the areas that the settings name. Raises ConfigurationError for a wrong file."""
    return SensitiveAreas() if settings.sensitive_areas is None else _load(settings.sensitive_areas)


def salt_of(settings: Settings) -> bytes:
    """Return the secret salt by which method donut displaces locations; empty if not set."""
    return settings.masking_salt.get_secret_value().encode() if settings.masking_salt else b""


def refuse_unmaskable(settings: Settings, registry: ContractRegistry) -> None:
    """Refuse unreadable areas, and method donut without a long salt. Raises ConfigurationError."""
    declared = {contract.id: contract.governance.masking for contract in registry}
    declared |= {f"area {area.name}": area.masking for area in load_areas(settings)}
    displaced = [name for name, masking in declared.items() if masking and masking.method == "donut"]
    if displaced and len(salt_of(settings)) < SHORTEST_SALT:
        raise ConfigurationError(
            f"{displaced[0]} is masked by method donut, and KFM_MASKING_SALT is missing or too short",
            observed=f"{len(salt_of(settings))} bytes",
            expected=f"at least {SHORTEST_SALT}, random and secret",
            next_step="set KFM_MASKING_SALT once and keep it, because another salt moves every shown location",
        )


@cache
def _load(path: Path) -> SensitiveAreas:
    import antimeridian  # noqa: PLC0415, only where areas are declared
    from shapely.geometry import box, shape  # noqa: PLC0415, likewise

    try:
        content = path.read_bytes()
        collection = checked(orjson.loads(content), _Collection)
    except OSError as error:
        raise _wrong(path, "cannot be read", error.strerror or error, "a GeoJSON FeatureCollection") from None
    except orjson.JSONDecodeError as error:
        raise _wrong(path, "is not JSON", error, "a GeoJSON FeatureCollection") from None
    except DocumentError as error:
        raise _wrong(path, error.what, error.observed, error.expected) from None
    areas = []
    for number, feature in enumerate(collection.features):
        try:
            # Cut rings that cross the antimeridian or go round a pole.
            outline = shape(antimeridian.fix_shape(feature.geometry.model_dump(), fix_winding=True))
        except Exception as error:
            raise _wrong(path, f"features.{number}.geometry is wrong", error, "rings of positions") from None
        # GEOS crashes the process on an empty ring.
        has_empty = b"[]" in orjson.dumps(feature.geometry.coordinates)
        if has_empty or not (outline.is_valid and outline.area > 0 and box(-180, -90, 180, 90).covers(outline)):
            observed = f"an outline that crosses itself, has no area, or leaves the globe ({feature.properties.name})"
            raise _wrong(path, f"features.{number}.geometry is wrong", observed, "a valid polygon in degrees (WGS 84)")
        areas.append(SensitiveArea(name=feature.properties.name, masking=feature.properties, shape=outline))
    return SensitiveAreas(areas=tuple(areas), content=content)


def _wrong(path: Path, what: str, observed: object, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"KFM_SENSITIVE_AREAS: {path}: {what}", observed=observed, expected=expected, next_step="correct the file"
    )
