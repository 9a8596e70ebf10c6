"""Sample GOES ABI objects: small NetCDF-4 files under true keys, with the headers of real ones and no pixels.

Belongs here: what the files say (`goes_abi_layout.py` has the variables). Does not belong here: how they are read.

The expensive part, HDF5, is done once per product, satellite and band; an object is that template with its fixed-width
texts and numbers overwritten. That is sound because the file has superblock version 0, whose object headers carry no
checksum (HDF5 file format specification 3.0, IV.A.1.a). Scan times and extents are those of real objects of ABI mode 6.
"""

from __future__ import annotations

import io
import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

import h5py

from kfm_dagster.demo.samples import goes_abi_layout as layout

_J2000 = datetime(2000, 1, 1, 12, tzinfo=UTC)
_MODE = 6
_PRODUCT = re.compile(r"ABI-(?:L1b-(?=Rad)|L2-(?=M?CMIP))(?P<kind>Rad|CMIP|MCMIP)(?P<region>F|C|M1|M2)")
_BANDS = range(1, 17)

_STAMP = len("YYYYDDDHHMMSSt")
_PLACEHOLDERS = {
    "time_coverage_start": b"<time_coverage_start.>",
    "time_coverage_end": b"<time_coverage_end...>",
    "date_created": b"<date_created........>",
    "id": b"<id................................>",
}
"""As long as the values that replace them, and nowhere else in a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Template:
    """A file and where its variable parts stand: byte offsets by attribute or variable name."""

    content: bytes
    offsets: dict[str, int]


def make_goes_abi(
    *, product: str, start: datetime, satellite: int, band: int | None = None, created: datetime | None = None
) -> tuple[str, bytes]:
    """Make one object: its key and its content, a pure function of the arguments.

    `product` is the name in the key, with region: `ABI-L1b-RadF`, `ABI-L2-CMIPC`, `ABI-L1b-RadM1`, `ABI-L2-MCMIPM2`.
    `band` is 1 to 16, None for MCMIP. `start` is aware; a later `created` makes a re-issue of the same scan. Raises
    ValueError for a product, satellite or band that does not exist.
    """
    kind, region = _understand(product, band)
    scene = layout.SCENES[region]
    end = start + timedelta(seconds=scene.seconds)
    created = created or end + timedelta(seconds=6 if kind == "Rad" else 40)
    channel = "" if band is None else f"C{band:02}"
    name = f"OR_{product}-M{_MODE}{channel}_G{satellite}_s{_stamp(start)}_e{_stamp(end)}_c{_stamp(created)}.nc"
    key = f"{product.rstrip('12')}/{start.astimezone(UTC):%Y/%j/%H}/{name}"
    template = _template(product, satellite, band)
    bounds = [(moment - _J2000).total_seconds() for moment in (start, end)]
    content = bytearray(template.content)
    for field, value in (
        ("dataset_name", name.encode()),
        ("time_coverage_start", _rfc3339(start)),
        ("time_coverage_end", _rfc3339(end)),
        ("date_created", _rfc3339(created)),
        ("id", str(uuid.uuid5(uuid.NAMESPACE_URL, key)).encode()),
        ("t", struct.pack("<d", sum(bounds) / 2)),
        ("time_bounds", struct.pack("<2d", *bounds)),
    ):
        offset = template.offsets[field]
        content[offset : offset + len(value)] = value
    return key, bytes(content)


def goes_abi_samples(day: date, count: int, *, satellite: int = 19) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` distinct objects of one UTC day, in the order of their scans.

    The day is that of ABI mode 6: a full disk every ten minutes, CONUS every five, both mesoscale regions every minute;
    of each scan sixteen Rad, sixteen CMIP and one MCMIP, 109,296 objects in all, of which `count` are taken evenly.
    Raises ValueError when the day has fewer.
    """
    granules: list[tuple[str, int | None]] = [("ABI-L1b-Rad", band) for band in _BANDS]
    granules += [("ABI-L2-CMIP", band) for band in _BANDS]
    granules.append(("ABI-L2-MCMIP", None))
    scans = _scans(day)
    total = len(scans) * len(granules)
    if not 0 <= count <= total:
        raise ValueError(f"a day has {total} objects, {count} asked")
    for number in range(count):
        scan, granule = divmod(number * total // count, len(granules))
        (start, region), (product, band) = scans[scan], granules[granule]
        key, content = make_goes_abi(product=product + region, start=start, satellite=satellite, band=band)
        yield f"noaa-goes{satellite}", key, content


def _scans(day: date) -> list[tuple[datetime, str]]:
    """Start and region of every scan of a day in ABI mode 6."""
    midnight = datetime.combine(day, time(), UTC)
    return sorted(
        (midnight + timedelta(minutes=minute, seconds=scene.first_second), region)
        for region, scene in layout.SCENES.items()
        for minute in range(0, 24 * 60, scene.cadence_minutes)
    )


def _understand(product: str, band: int | None) -> tuple[str, str]:
    """Kind (Rad, CMIP, MCMIP) and region of a product name."""
    found = _PRODUCT.fullmatch(product)
    if found is None or (band is None) != (found["kind"] == "MCMIP") or (band is not None and band not in _BANDS):
        raise ValueError(f"no ABI product {product!r} with band {band}")
    return found["kind"], found["region"]


@lru_cache(maxsize=512)
def _template(product: str, satellite: int, band: int | None) -> _Template:
    kind, region = _understand(product, band)
    blank = "0" * _STAMP
    channel = "" if band is None else f"C{band:02}"
    placeholders = {
        **_PLACEHOLDERS,
        "dataset_name": f"OR_{product}-M{_MODE}{channel}_G{satellite}_s{blank}_e{blank}_c{blank}.nc".encode(),
    }
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver="earliest") as file:
        layout.write(file, kind=kind, region=region, satellite=satellite, band=band, texts=placeholders)
        offsets = {name: int(file[name].id.get_offset()) for name in ("t", "time_bounds")}
    content = buffer.getvalue()
    for name, text in placeholders.items():
        if content.count(text) != 1:
            raise AssertionError(f"placeholder {text!r} must stand once in the template")
        offsets[name] = content.index(text)
    return _Template(content=content, offsets=offsets)


def _stamp(moment: datetime) -> str:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y%j%H%M%S}{utc.microsecond // 100_000}"


def _rfc3339(moment: datetime) -> bytes:
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 100_000}Z".encode()
