"""Common parts of sample GOES-R files: satellites, global attributes, templates to fill.

Does not belong here: writing netCDF-4 (`netcdf4.py`), and the variables and keys of an instrument
(`goes_abi_layout.py`, `goes_abi.py`, `goes_glm.py`).

The expensive part, HDF5, is done once per template. An object is a copy of the template with other texts and numbers of
the same width. The copy is valid, because a file of superblock version 0 has object headers without a checksum (HDF5
file format specification 3.0, IV.A.1.a).
"""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import h5py

from kfm_dagster.demo.samples.netcdf4 import Attributes

_J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
_STAMP = len("YYYYDDDHHMMSSt")
_PLACEHOLDERS = {
    "time_coverage_start": b"<time_coverage_start.>",
    "time_coverage_end": b"<time_coverage_end...>",
    "date_created": b"<date_created........>",
    "id": b"<id................................>",
}
"""Texts as long as the values that replace them; each text occurs once in a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Satellite:
    """A satellite in its slot."""

    instrument: str
    orbital_slot: str
    longitude: float
    """Longitude of the fixed grid's origin, in degrees."""


_SATELLITES: Mapping[int, Satellite] = {
    16: Satellite(instrument="FM1", orbital_slot="GOES-East", longitude=-75.0),
    17: Satellite(instrument="FM2", orbital_slot="GOES-West", longitude=-137.0),
    18: Satellite(instrument="FM3", orbital_slot="GOES-West", longitude=-137.0),
    19: Satellite(instrument="FM4", orbital_slot="GOES-East", longitude=-75.0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Granule:
    """Facts of an object; `product` is the name up to the satellite (`GLM-L2-LCFA`)."""

    product: str
    folder: str
    satellite: int
    start: datetime
    end: datetime
    created: datetime

    @property
    def name(self) -> str:
        """Name of the file."""
        return _name(self.product, self.satellite, *map(_stamp, (self.start, self.end, self.created)))

    @property
    def key(self) -> str:
        """Key of the object."""
        return f"{self.folder}/{self.start.astimezone(UTC):%Y/%j/%H}/{self.name}"

    @property
    def texts(self) -> dict[str, bytes]:
        """Global attributes whose values differ from file to file."""
        return {
            "dataset_name": self.name.encode(),
            "time_coverage_start": _rfc3339(self.start),
            "time_coverage_end": _rfc3339(self.end),
            "date_created": _rfc3339(self.created),
            "id": str(uuid.uuid5(uuid.NAMESPACE_URL, self.key)).encode(),
        }

    @property
    def seconds(self) -> tuple[float, float]:
        """Start and end in seconds since J2000."""
        start, end = ((moment - _J2000).total_seconds() for moment in (self.start, self.end))
        return start, end


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """A file and the byte offsets of its variable parts, by attribute or variable name."""

    content: bytes
    offsets: Mapping[str, int]

    def filled(self, texts: Mapping[str, bytes], numbers: Mapping[str, tuple[float, ...]]) -> bytes:
        """Return the file with these attributes and 64-bit variables filled in."""
        content = bytearray(self.content)
        doubles = {name: struct.pack(f"<{len(values)}d", *values) for name, values in numbers.items()}
        for name, value in {**texts, **doubles}.items():
            offset = self.offsets[name]
            content[offset : offset + len(value)] = value
        return bytes(content)


def make_template(
    product: str, satellite: int, write: Callable[[h5py.File, Attributes], None], *, numbers: tuple[str, ...]
) -> Template:
    """Make a template with `write`; its texts and the variables `numbers` are overwritten later."""
    blank = "0" * _STAMP
    placeholders = {**_PLACEHOLDERS, "dataset_name": _name(product, satellite, blank, blank, blank).encode()}
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="earliest") as file:
        write(file, placeholders)
        offsets = {name: int(file[name].id.get_offset()) for name in numbers}
    content = buffer.getvalue()
    for name, text in placeholders.items():
        if content.count(text) != 1:
            raise AssertionError(f"placeholder {text!r} must occur once in the template")
        offsets[name] = content.index(text)
    return Template(content=content, offsets=offsets)


def satellite_of(number: int) -> Satellite:
    """Return the satellite of a number. Raises ValueError outside of the GOES-R series."""
    if number not in _SATELLITES:
        raise ValueError(f"no satellite GOES-{number}")
    return _SATELLITES[number]


def global_attributes(satellite: int, **of_product: Any) -> Attributes:
    """Return a file's global attributes. Raises ValueError as `satellite_of` does."""
    platform = satellite_of(satellite)
    return {
        "naming_authority": "gov.nesdis.noaa",
        "Conventions": "CF-1.7",
        "Metadata_Conventions": "Unidata Dataset Discovery v1.0",
        "standard_name_vocabulary": "CF Standard Name Table (v35, 20 July 2016)",
        "institution": "DOC/NOAA/NESDIS > U.S. Department of Commerce, National Oceanic and Atmospheric "
        "Administration, National Environmental Satellite, Data, and Information Services",
        "project": "GOES",
        "production_site": "WCDAS",
        "production_environment": "OE",
        "production_data_source": "Realtime",
        "orbital_slot": platform.orbital_slot,
        "platform_ID": f"G{satellite}",
        "instrument_ID": platform.instrument,
        "keywords_vocabulary": "NASA Global Change Master Directory (GCMD) Earth Science Keywords, Version 7.0.0.0.0",
        "license": "Unclassified data.  Access is restricted to approved users only.",
        **of_product,
    }


def _name(product: str, satellite: int, start: str, end: str, created: str) -> str:
    return f"OR_{product}_G{satellite}_s{start}_e{end}_c{created}.nc"


def _stamp(moment: datetime) -> str:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y%j%H%M%S}{utc.microsecond // 100_000}"


def _rfc3339(moment: datetime) -> bytes:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 100_000}Z".encode()
