"""NEXRAD: what Py-ART and xradar read of volumes and their chunks, and MetPy of products and their ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from pyproj import Geod

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.nexrad_radar import RANGE_M
from kfm_dagster_tests.readers.nexrad_bytes import PYART_MOMENTS, key_groups
from kfm_dagster_tests.readers.reading import header_of
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


def open_volume(path: str, content: bytes, _: Mapping[str, Any]) -> Opened:
    """Open a volume whose name is no key."""
    return path, key_groups(path, CONTRACTS), content


@compares("nexrad-l2", reader="nexrad-level2", open_file=open_volume)
def nexrad_level2(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    header, first, last, pattern = native["header"], native["radial"], native["end"]["radial"], native["pattern"]
    for name, value in (
        ("extension", header["extension"]),
        ("icao_header", header["icao"]),
        ("uncompressed_magic", header["magic"]),
        ("nsweeps", last["cut"]),
        # The reference names the moments of the first radial.
        ("moments", list(first["moments"])),
        ("msg_type", str(first["message_type"])),
    ):
        yield same(name, value, expected[name])
    place = tuple((first["position"] or dict.fromkeys(("latitude", "longitude", "height_m"))).values())
    yield same("position", place, (expected["lat"], expected["lon"], expected["alt_m"]))
    yield same("vcp_message_5", pattern["number"] if pattern else None, expected["vcp"])
    if expected["vcp"]:
        yield same("vcp", (properties["nexrad:vcp"], first["vcp"]), (expected["vcp"], expected["vcp"]))
        # The reference lists the sweeps that were made: AVSET ends a volume before the pattern's last cuts.
        angles = [round(angle, 3) for angle in pattern["elevations"]]
        yield same("target_elev_deg", angles[: expected["nsweeps"]], expected["target_elev_deg"])
        yield same("nexrad:elevations", properties["nexrad:elevations"], sorted(set(expected["target_elev_deg"])))
    for name, part in (("volume_header_time", header), ("first_ray_time", first), ("last_ray_time", last)):
        yield seconds(name, part["time"], datetime.fromisoformat(expected[name]), within=0)
    start = min(datetime.fromisoformat(expected[name]) for name in ("volume_header_time", "first_ray_time"))
    yield seconds("start", found.start, start, within=0)
    yield seconds("end", found.end, datetime.fromisoformat(expected["last_ray_time"]))
    yield same("nexrad:moments", set(properties["nexrad:moments"]), PYART_MOMENTS[Path(real.path).name])
    if expected["lon"] is not None:
        # A volume of before 2008 does not say where it was made.
        yield degrees("bbox", bounding_box(found.geometry), disc(expected["lon"], expected["lat"]))
    yield same("findings", found.findings, ())


def disc(longitude: float, latitude: float) -> tuple[float, ...]:
    """Box of a circle of the reader's range round the position that the independent reader gives."""
    around = np.linspace(0, 360, 3601)
    x, y, _ = Geod(ellps="WGS84").fwd(
        *(np.full(3601, value) for value in (longitude, latitude)), around, np.full(3601, RANGE_M)
    )
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


@compares("nexrad-l2-chunks", reader="nexrad-chunk")
def nexrad_chunks(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    answers, properties, native = real.expected, found.properties, found.native
    whole, groups = answers["xradar"], real.groups
    number = int(groups["chunk"])
    name = real.key.rpartition("/")[2]
    is_last = number == answers["n_chunks"]
    yield same("size", len(real.content), {one["name"]: one["size"] for one in answers["chunks"]}[name])
    for which, moment in (("start", found.start), ("datetime", found.datetime)):
        yield seconds(which, moment, datetime.fromisoformat(whole["time_coverage_start"]), within=0)
    yield same("nexrad:site", properties["nexrad:site"], whole["instrument_name"])
    yield same("nexrad:vcp", f"VCP-{properties['nexrad:vcp']}", whole["scan_name"])
    yield same("nexrad:chunks", properties["nexrad:chunks"], number)
    yield same("nexrad:volume-number", properties["nexrad:volume-number"], int(groups["volume"]))
    yield same("nexrad:complete", properties["nexrad:complete"], is_last)
    yield same("is_last_record", native["is_last_record"], is_last)
    yield degrees("bbox", bounding_box(found.geometry), disc(whole["longitude"], whole["latitude"]))
    yield same("findings", found.findings, ())
    if number == 1:
        angles = sorted({round(angle, 3) for angle in native["pattern"]["elevations"]})
        yield same("target_elev_deg", angles, sorted(set(whole["sweep_fixed_angle"])))
        # The reference's text begins with it: the archive's version, a full stop, and the volume's number.
        magic = answers["volume_header"].split()[0]
        yield same("extension", native["header"]["extension"], magic.rpartition(".")[2])
        yield same("icao_header", native["header"]["icao"], answers["site"])
    else:
        place = native["first"]["position"]
        yield same("position", (place["latitude"], place["longitude"]), (whole["latitude"], whole["longitude"]))
        yield same("alt_m", (place["height_m"], properties["nexrad:height-m"]), (whole["altitude"], whole["altitude"]))
        yield same("nexrad:cuts", properties["nexrad:cuts"] in range(1, whole["nsweeps"] + 1), True)
    if is_last:
        yield same("nexrad:cuts", properties["nexrad:cuts"], whole["nsweeps"])
        yield seconds("end", found.end, datetime.fromisoformat(whole["time_coverage_end"]))
        yield from _together(real, whole)


def _together(real: RealObject, whole: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield what the archive's reader says of all chunks put together, which are then a volume of the archive."""
    content = b"".join(file.read_bytes() for file in sorted(real.beside.parent.iterdir()))
    found = header_of("nexrad-level2", content, key=real.key, groups=real.groups)
    yield same("together: nsweeps", found.native["end"]["radial"]["cut"], whole["nsweeps"])
    angles = sorted(set(whole["sweep_fixed_angle"]))
    yield same("together: nexrad:elevations", found.properties["nexrad:elevations"], angles)
    yield seconds("together: start", found.start, datetime.fromisoformat(_microseconds(whole["min_time"])))
    yield seconds("together: end", found.end, datetime.fromisoformat(_microseconds(whole["max_time"])))
    yield degrees("together: bbox", bounding_box(found.geometry), disc(whole["longitude"], whole["latitude"]))
    yield same("together: findings", found.findings, ())


def _microseconds(text: str) -> str:
    """Return a time of nanoseconds, which has no zone, to the microsecond and in UTC."""
    return f"{text[:26]}+00:00"


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


def open_product(path: str, content: bytes, expected: Mapping[str, Any]) -> Opened:
    """Open a product under the key that Unidata's uploader makes of it: site, product, time of the volume."""
    identifier = re.search(rb"\r\r\n([A-Z0-9]{3})([A-Z0-9]{3})\r\r\n", content)
    assert identifier is not None, path
    start = datetime.fromisoformat(expected["vol_time"]) if expected else FREE_TEXT_TIME
    key = f"{identifier[2].decode()}_{identifier[1].decode()}_{start:%Y_%m_%d_%H_%M_%S}"
    match = CONTRACTS.grammars["nexrad-l3"].match(key)
    assert match is not None, key
    return key, match.groups, content


@compares("nexrad-l3", reader="nexrad-level3", open_file=open_product)
def nexrad_level3(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    yield same("nexrad:awips-id", properties["nexrad:awips-id"], _awips_id(real.path))
    yield same("findings", found.findings, ())
    yield from _footprint(found, expected)
    if not expected:
        return
    # Empty but for one object: MetPy forgets the heading when it looks for a second one.
    yield same("wmo", native["wmo"][: len(expected["wmo"])], expected["wmo"])
    description = native["description"]
    said = {
        "site": native["site"],
        "lat": description["latitude"] / 1000,
        "lon": description["longitude"] / 1000,
        "height_ft": description["height_ft"],
        "product_code": description["product_code"],
        "prod_time": description["generation_time"],
        "vol_time": description["volume_time"],
        "max_range_km": properties.get("nexrad:range-m", 0) / 1000,
        "product_name": properties["nexrad:product-name"],
        **_parameters(description),
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


def _parameters(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return what MetPy makes of the product-dependent parameters, for every product among the real objects."""
    code, values = description["product_code"], dict(enumerate(description["parameters"], 1))
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
