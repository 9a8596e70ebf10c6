"""NEXRAD Level III: what MetPy reads of a product's description, and its range around the radar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyproj import Geod

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import (
    CONTRACTS,
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    near,
    same,
    seconds,
)

KTLX = (-97.278, 35.333)
"""Longitude and latitude by MetPy; of the one object that it does not read, a free text, too."""
FREE_TEXT_TIME = datetime(2013, 5, 20, 21, 0, 59, tzinfo=UTC)
"""Of that object: its message's time. Its WMO heading has no seconds."""
METPY_SCALES = {161: 0.00333, 163: 0.05}
"""Of minimum and maximum in MetPy's `prod_spec_map`, where they are not 1; the ICD's are 1/300 and 1/20."""
TIMES = ("_time", "_begin", "_end")
WINDOW = ("rainfall_begin", "rainfall_end")
EXACT = 1e-6
WGS84 = Geod(ellps="WGS84")


def open_file(path: str, content: bytes, expected: Mapping[str, Any]) -> Opened:
    """Open a product under the key that Unidata's uploader makes of it: site, product, time of the volume."""
    identifier = re.search(rb"\r\r\n([A-Z0-9]{3})([A-Z0-9]{3})\r\r\n", content)
    assert identifier is not None, path
    start = datetime.fromisoformat(expected["vol_time"]) if expected else FREE_TEXT_TIME
    key = f"{identifier[2].decode()}_{identifier[1].decode()}_{start:%Y_%m_%d_%H_%M_%S}"
    match = CONTRACTS.grammars["nexrad-l3"].match(key)
    assert match is not None, key
    return key, match.groups, content


@compares("nexrad-l3", reader="nexrad-level3", open_file=open_file)
def nexrad_level3(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    yield same("nexrad:awips-id", properties["nexrad:awips-id"], _awips_id(real.path))
    yield same("findings", found.findings, ())
    yield from _footprint(found, expected)
    if not expected:
        return
    # Empty but for one object: MetPy forgets the heading when it looks for a second one.
    yield same("wmo", native["wmo"][: len(expected["wmo"])], expected["wmo"])
    said = {
        **{name: native[name] for name in ("lat", "lon", "height_ft", "product_code", "prod_time", "vol_time", "site")},
        "max_range_km": properties.get("nexrad:range-m", 0) / 1000,
        "product_name": properties["nexrad:product-name"],
        **_parameters(native),
    }
    for name in sorted({*said, *expected} - {"wmo"}):
        value = expected.get(name)
        if name.endswith(TIMES) and value is not None and name in said:
            yield seconds(name, said[name], datetime.fromisoformat(value), within=0)
        elif isinstance(value, float):
            yield near(name, said.get(name), value, within=EXACT)
        else:
            yield same(name, said.get(name), value)
    # An accumulation holds from its begin to its end, all else when its volume was scanned.
    begin, end = (datetime.fromisoformat(expected.get(name, expected["vol_time"])) for name in WINDOW)
    for name, moment, time in (
        ("start", found.start, begin),
        ("end", found.end, end),
        ("datetime", found.datetime, end),
    ):
        yield seconds(name, moment, time, within=0)
    made = datetime.fromisoformat(properties["processing:datetime"])
    yield seconds("processing:datetime", made, datetime.fromisoformat(expected["prod_time"]), within=0)


def _awips_id(path: str) -> str:
    """Return what the file's name says, which others gave it: CCCC_TTAAII_PPPSSS_..., or Level3_SSS_PPP_..."""
    parts = Path(path).name.split("_")
    return parts[2] + parts[1] if parts[0] == "Level3" else parts[2]


def _footprint(found: HeaderMetadata, expected: Mapping[str, Any]) -> Iterator[Compared]:
    box, longitude, latitude = bounding_box(found.geometry), *KTLX
    if expected:
        longitude, latitude = expected["lon"], expected["lat"]
    metres = expected.get("max_range_km", 0) * 1000
    yield same("geometry.type", found.geometry["type"], "Polygon" if metres else "Point")
    reach = [WGS84.fwd(longitude, latitude, azimuth / 10, metres)[:2] for azimuth in range(3600 if metres else 1)]
    sides = [side(values) for side in (min, max) for values in zip(*reach, strict=True)]
    yield degrees("bbox", box, sides)


def _parameters(native: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MetPy makes of the product-dependent parameters, for every product among the real objects."""
    code, values = native["product_code"], dict(enumerate(native["parameters"], 1))
    scale = METPY_SCALES.get(code, 1)
    found: dict[str, Any] = {}
    if code in {94, 19, 99, 134, 161, 163, 181, 186}:
        found["el_angle"] = values[3] * 0.1
    if code in {99, 161, 163}:
        found |= {"min": values[4] * scale, "max": values[5] * scale}
    elif code not in {58, 80}:
        found["max"] = values[4] * scale
    for name, place, product in (("avg_time", 5, 32), ("rainfall_begin", 5, 80), ("rainfall_end", 7, 80)):
        if code == product:
            day, minutes = values[place], values[place + 1]
            found[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day - 1, minutes=minutes)
    return found
