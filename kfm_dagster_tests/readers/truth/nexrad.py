"""NEXRAD: compare volumes with Py-ART, chunks with xradar, and products with MetPy."""

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
from kfm_dagster.readers.nexrad_radar import RANGE_M, sites
from kfm_dagster_tests.readers.reading import header_of, match_of
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    near,
    same,
    seconds,
    times,
)

PYART_MOMENTS = {
    "Level2_KFTG_20150430_1419.ar2v": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO"},
    "KTLX19910605_162126.gz": {"REF", "VEL", "SW"},
    "KABR20050101_000745.gz": {"REF", "VEL", "SW"},
    "KTLX20140101_000624_V06.gz": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO"},
    "KLBB20160601_150025_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO"},
    "KTLX20190715_120037_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO"},
    "KCRP20200101_000431_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO"},
    "KCRP20210101_000031_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO", "CFP"},
    "KLOT20220317_000842_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO", "CFP"},
    "KDMX20250101_225441_V06": {"REF", "VEL", "SW", "ZDR", "PHI", "RHO", "CFP"},
}
"""Union over all radials of `NEXRADLevel2File.radial_records`, by arm_pyart 2.3.0."""


def open_volume(path: str, content: bytes, _: Mapping[str, Any]) -> Opened:
    """Open the volume whose file name is not a key, with the groups of its first radial."""
    return path, {"site": "KFTG", "date": "20150430", "time": "141910"}, content


@compares("nexrad-l2", reader="nexrad-level2", open_file=open_volume)
def nexrad_level2(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, metadata.native, metadata.properties
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
    position = tuple((first["position"] or dict.fromkeys(("latitude", "longitude", "height_m"))).values())
    yield same("position", position, (expected["lat"], expected["lon"], expected["alt_m"]))
    yield same("vcp_message_5", pattern["number"] if pattern else None, expected["vcp"])
    if expected["vcp"]:
        yield same("vcp", (properties["nexrad:vcp"], first["vcp"]), (expected["vcp"], expected["vcp"]))
        # The reference lists the sweeps of the volume, which AVSET may end before the pattern's last cuts.
        angles = [round(angle, 3) for angle in pattern["elevations"]]
        yield same("target_elev_deg", angles[: expected["nsweeps"]], expected["target_elev_deg"])
        yield same("nexrad:elevations", properties["nexrad:elevations"], sorted(set(expected["target_elev_deg"])))
    for name, part in (("volume_header_time", header), ("first_ray_time", first), ("last_ray_time", last)):
        yield seconds(name, part["time"], datetime.fromisoformat(expected[name]), within=0)
    start = min(datetime.fromisoformat(expected[name]) for name in ("volume_header_time", "first_ray_time"))
    yield seconds("start", metadata.start, start, within=0)
    yield seconds("end", metadata.end, datetime.fromisoformat(expected["last_ray_time"]))
    yield from of_site(properties)
    yield same("nexrad:moments", set(properties["nexrad:moments"]), PYART_MOMENTS[Path(real.path).name])
    if expected["lon"] is not None:
        # A volume before 2008 has no position.
        yield degrees("bbox", bounding_box(metadata.geometry), disc(expected["lon"], expected["lat"]))
    yield same("findings", metadata.findings, ())


def of_site(properties: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare position and height with those of the site table, an independent source."""
    site = sites()[properties["nexrad:site"]]
    metres = WGS84.inv(site.longitude, site.latitude, properties["nexrad:longitude"], properties["nexrad:latitude"])[2]
    yield near("metres from the site", metres, 0.0, within=100)
    yield near("nexrad:height-m of the site", properties["nexrad:height-m"], site.height_m, within=3)


def disc(longitude: float, latitude: float, metres: float = RANGE_M) -> tuple[float, ...]:
    """Return the box of a circle, by default of the reader's range, around the independent reader's position."""
    centre = [np.full(3601, value) for value in (longitude, latitude)]
    x, y, _ = WGS84.fwd(*centre, np.linspace(0, 360, 3601), np.full(3601, metres))
    return float(x.min()), float(y.min()), float(x.max()), float(y.max())


@compares("nexrad-l2-chunks", reader="nexrad-chunk")
def nexrad_chunks(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    answers, properties, native = real.expected, metadata.properties, metadata.native
    whole, groups = answers["xradar"], real.groups
    number = int(groups["chunk"])
    name = real.key.rpartition("/")[2]
    is_last = number == answers["n_chunks"]
    yield same("size", len(real.content), {chunk["name"]: chunk["size"] for chunk in answers["chunks"]}[name])
    for which, moment in (("start", metadata.start), ("datetime", metadata.datetime)):
        yield seconds(which, moment, datetime.fromisoformat(whole["time_coverage_start"]), within=0)
    yield same("nexrad:site", properties["nexrad:site"], whole["instrument_name"])
    yield same("nexrad:vcp", f"VCP-{properties['nexrad:vcp']}", whole["scan_name"])
    yield same("nexrad:chunks", properties["nexrad:chunks"], number)
    yield same("nexrad:volume-number", properties["nexrad:volume-number"], int(groups["volume"]))
    yield same("nexrad:complete", properties["nexrad:complete"], is_last)
    yield same("is_last_record", native["is_last_record"], is_last)
    yield degrees("bbox", bounding_box(metadata.geometry), disc(whole["longitude"], whole["latitude"]))
    yield same("findings", metadata.findings, ())
    if number == 1:
        angles = sorted({round(angle, 3) for angle in native["pattern"]["elevations"]})
        yield same("target_elev_deg", angles, sorted(set(whole["sweep_fixed_angle"])))
        # The reference's text begins with the archive's version, a full stop, and the volume's number.
        magic = answers["volume_header"].split()[0]
        yield same("extension", native["header"]["extension"], magic.rpartition(".")[2])
        yield same("icao_header", native["header"]["icao"], answers["site"])
    else:
        position = native["first"]["position"]
        yield same("position", (position["latitude"], position["longitude"]), (whole["latitude"], whole["longitude"]))
        yield same(
            "alt_m", (position["height_m"], properties["nexrad:height-m"]), (whole["altitude"], whole["altitude"])
        )
        yield same("nexrad:cuts", properties["nexrad:cuts"] in range(1, whole["nsweeps"] + 1), True)
    if is_last:
        yield same("nexrad:cuts", properties["nexrad:cuts"], whole["nsweeps"])
        yield seconds("end", metadata.end, datetime.fromisoformat(whole["time_coverage_end"]))
        yield from _joined_chunks(real, whole)


def _joined_chunks(real: RealObject, whole: Mapping[str, Any]) -> Iterator[Compared]:
    """Compare the joined chunks, a volume of the archive, as read by the archive's reader."""
    content = b"".join(file.read_bytes() for file in sorted(real.beside.parent.iterdir()))
    metadata = header_of("nexrad-level2", content, key=real.key, groups=real.groups)
    yield same("joined: nsweeps", metadata.native["end"]["radial"]["cut"], whole["nsweeps"])
    angles = sorted(set(whole["sweep_fixed_angle"]))
    yield same("joined: nexrad:elevations", metadata.properties["nexrad:elevations"], angles)
    yield seconds("joined: start", metadata.start, datetime.fromisoformat(_microseconds(whole["min_time"])))
    yield seconds("joined: end", metadata.end, datetime.fromisoformat(_microseconds(whole["max_time"])))
    yield degrees("joined: bbox", bounding_box(metadata.geometry), disc(whole["longitude"], whole["latitude"]))
    yield same("joined: findings", metadata.findings, ())


def _microseconds(text: str) -> str:
    """Return a time with nanoseconds and without zone as UTC with microseconds."""
    return f"{text[:26]}+00:00"


KTLX = (-97.278, 35.333)
"""Longitude and latitude by MetPy; also for the one object that MetPy does not read, a free text."""
FREE_TEXT_TIME = datetime(2013, 5, 20, 21, 0, 59, tzinfo=UTC)
"""The free text's time in its message; its WMO heading has no seconds."""
METPY_SCALES = {161: 0.00333, 163: 0.05}
"""Scales of minimum and maximum in MetPy's `prod_spec_map`, if not 1; the ICD has 1/300 and 1/20."""
TIMES = ("_time", "_begin", "_end")
WINDOW = ("rainfall_begin", "rainfall_end")
EXACT = 1e-6
WGS84 = Geod(ellps="WGS84")


def open_product(path: str, content: bytes, expected: Mapping[str, Any]) -> Opened:
    """Open a product under its key by Unidata's uploader: site, product, time of the volume."""
    identifier = re.search(rb"\r\r\n([A-Z0-9]{3})([A-Z0-9]{3})\r\r\n", content)
    assert identifier is not None, path
    start = datetime.fromisoformat(expected["vol_time"]) if expected else FREE_TEXT_TIME
    key = f"{identifier[2].decode()}_{identifier[1].decode()}_{start:%Y_%m_%d_%H_%M_%S}"
    return key, match_of("nexrad-l3", key).groups, content


@compares("nexrad-l3", reader="nexrad-level3", open_file=open_product)
def nexrad_level3(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, metadata.native, metadata.properties
    yield same("nexrad:awips-id", properties["nexrad:awips-id"], _awips_id(real.path))
    yield same("findings", metadata.findings, ())
    yield from _footprint(metadata, expected)
    yield from of_site(properties)
    if not expected:
        return
    # MetPy has the heading of one object only.
    yield same("wmo", native["wmo"][: len(expected["wmo"])], expected["wmo"])
    description = native["description"]
    values = {
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
    for name in sorted({*values, *expected} - {"wmo"}):
        value = expected.get(name)
        if name.endswith(TIMES) and value is not None and name in values:
            yield seconds(name, values[name], datetime.fromisoformat(value), within=0)
        elif isinstance(value, float):
            yield near(name, values.get(name), value, within=EXACT)
        else:
            yield same(name, values.get(name), value)
    # An accumulation has the time of its window, any other product the time of its volume.
    begin, end = (datetime.fromisoformat(expected.get(name, expected["vol_time"])) for name in WINDOW)
    yield from times(metadata, begin, end, end)
    generated = datetime.fromisoformat(properties["processing:datetime"])
    yield seconds("processing:datetime", generated, datetime.fromisoformat(expected["prod_time"]), within=0)


def _awips_id(path: str) -> str:
    """Return the identifier in the file's name: CCCC_TTAAII_PPPSSS_..., or Level3_SSS_PPP_..."""
    parts = Path(path).name.split("_")
    return parts[2] + parts[1] if parts[0] == "Level3" else parts[2]


def _footprint(metadata: HeaderMetadata, expected: Mapping[str, Any]) -> Iterator[Compared]:
    box, longitude, latitude = bounding_box(metadata.geometry), *KTLX
    if expected:
        longitude, latitude = expected["lon"], expected["lat"]
    metres = expected.get("max_range_km", 0) * 1000
    yield same("geometry.type", metadata.geometry["type"], "Polygon" if metres else "Point")
    yield degrees("bbox", box, disc(longitude, latitude, metres))


def _parameters(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return MetPy's product-dependent parameters for the products of the real objects."""
    code, values = description["product_code"], dict(enumerate(description["parameters"], 1))
    scale = METPY_SCALES.get(code, 1)
    parameters: dict[str, Any] = {}
    if code in {94, 19, 99, 134, 161, 163, 181, 186}:
        parameters["el_angle"] = values[3] * 0.1
    if code in {99, 161, 163}:
        parameters |= {"min": values[4] * scale, "max": values[5] * scale}
    elif code not in {58, 80}:
        parameters["max"] = values[4] * scale
    for name, number, product in (("avg_time", 5, 32), ("rainfall_begin", 5, 80), ("rainfall_end", 7, 80)):
        if code == product:
            day, minutes = values[number], values[number + 1]
            parameters[name] = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day - 1, minutes=minutes)
    return parameters
