"""Sample GOES ABI objects: small NetCDF-4 files with true keys and headers.

Scan times and extents are those of real objects of ABI mode 6. Does not belong here: the variables
(`goes_abi_layout.py`), making an object from a template (`goes_template.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

import h5py

from kfm_dagster.demo.samples import goes_abi_layout as layout
from kfm_dagster.demo.samples.goes_template import Granule, Template, make_template
from kfm_dagster.demo.samples.netcdf4 import Attributes

_MODE = 6
_PRODUCT = re.compile(r"ABI-(?:L1b-(?=Rad)|L2-(?=M?CMIP))(?P<kind>Rad|CMIP|MCMIP)(?P<region>F|C|M1|M2)")
_BANDS = range(1, 17)


def make_goes_abi(
    *,
    product: str,
    start: datetime,
    satellite: int,
    band: int | None = None,
    created: datetime | None = None,
    drawn: bool = False,
) -> tuple[str, bytes]:
    """Make an object: its key and its content, a pure function of the arguments.

    `product` is the name in the key, with region: `ABI-L1b-RadF`, `ABI-L2-CMIPC`, `ABI-L1b-RadM1`, `ABI-L2-MCMIPM2`.
    `band` is 1 to 16, None for MCMIP. `start` is aware; a later `created` makes a re-issue of the same scan. If
    `drawn`, the image has values for a picture (in MCMIP only the image of band 13).

    Raises ValueError for a product, satellite or band that does not exist.
    """
    kind, region = _understand(product, band)
    scene = layout.SCENES[region]
    end = start + timedelta(seconds=scene.seconds)
    granule = Granule(
        product=_named(product, band),
        folder=product.rstrip("12"),
        satellite=satellite,
        start=start,
        end=end,
        created=created or end + timedelta(seconds=6 if kind == "Rad" else 40),
    )
    bounds = granule.seconds
    numbers = {"t": (sum(bounds) / 2,), "time_bounds": bounds}
    return granule.key, _template(product, satellite, band, drawn).filled(granule.texts, numbers)


def goes_abi_samples(day: date, count: int, *, satellite: int = 19) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` objects of a UTC day, in the order of scans.

    In ABI mode 6, a day has a full disk every ten minutes, CONUS every five, and both mesoscale regions every minute.
    Each scan gives sixteen Rad, sixteen CMIP and one MCMIP, so that a day has 109,296 objects. The `count` objects are
    spread evenly over these. Raises ValueError if the day has fewer.
    """
    granules: list[tuple[str, int | None]] = [("ABI-L1b-Rad", band) for band in _BANDS]
    granules += [("ABI-L2-CMIP", band) for band in _BANDS]
    granules.append(("ABI-L2-MCMIP", None))
    scans = _scans(day)
    total = len(scans) * len(granules)
    if not 0 <= count <= total:
        raise ValueError(f"a day has {total} objects, {count} requested")
    for number in range(count):
        scan, granule = divmod(number * total // count, len(granules))
        (start, region), (product, band) = scans[scan], granules[granule]
        key, content = make_goes_abi(product=product + region, start=start, satellite=satellite, band=band)
        yield f"noaa-goes{satellite}", key, content


def _scans(day: date) -> list[tuple[datetime, str]]:
    """Return start and region of every scan of a day in ABI mode 6."""
    midnight = datetime.combine(day, time(), UTC)
    return sorted(
        (midnight + timedelta(minutes=minute, seconds=scene.first_second), region)
        for region, scene in layout.SCENES.items()
        for minute in range(0, 24 * 60, scene.cadence_minutes)
    )


def _understand(product: str, band: int | None) -> tuple[str, str]:
    """Return the kind (Rad, CMIP, MCMIP) and the region of a product name."""
    match = _PRODUCT.fullmatch(product)
    if match is None or (band is None) != (match["kind"] == "MCMIP") or (band is not None and band not in _BANDS):
        raise ValueError(f"no ABI product {product!r} with band {band}")
    return match["kind"], match["region"]


def _named(product: str, band: int | None) -> str:
    """Return product, mode and channel, as file names have them."""
    return f"{product}-M{_MODE}" + ("" if band is None else f"C{band:02}")


@lru_cache(maxsize=512)
def _template(product: str, satellite: int, band: int | None, drawn: bool) -> Template:  # noqa: FBT001 - a key of the cache
    kind, region = _understand(product, band)

    def write(file: h5py.File, texts: Attributes) -> None:
        layout.write(file, kind=kind, region=region, satellite=satellite, band=band, texts=texts, drawn=drawn)

    return make_template(_named(product, band), satellite, write, numbers=("t", "time_bounds"))
