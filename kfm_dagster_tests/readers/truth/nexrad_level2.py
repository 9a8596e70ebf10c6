"""NEXRAD Level II: what Py-ART and xradar read of whole volumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from pyproj import Geod

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.nexrad_radar import RANGE_M
from kfm_dagster_tests.readers.nexrad_bytes import PYART_MOMENTS, key_groups
from kfm_dagster_tests.readers.truth.comparison import (
    CONTRACTS,
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    same,
    seconds,
)


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened:
    """Open a volume whose name is no key."""
    return path, key_groups(path, CONTRACTS), content


@compares("nexrad-l2", reader="nexrad-level2", open_file=open_file)
def nexrad_level2(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    for name in ("extension", "icao_header", "lat", "lon", "alt_m", "uncompressed_magic", "nsweeps"):
        yield same(name, native[name], expected[name])
    # The reference names the moments of the first radial.
    yield same("first_ray_moments", native["first_ray_moments"], expected["moments"])
    yield same("msg_type", str(native["msg_type"]), expected["msg_type"])
    yield same("vcp_message_5", native["vcp_message_5"], expected["vcp"])
    if expected["vcp"]:
        yield same("vcp", (properties["nexrad:vcp"], native["vcp"]), (expected["vcp"], expected["vcp"]))
        # The reference lists the sweeps that were made: AVSET ends a volume before the pattern's last cuts.
        angles = [round(angle, 3) for angle in native["target_elev_deg"]]
        yield same("target_elev_deg", angles[: expected["nsweeps"]], expected["target_elev_deg"])
        yield same("nexrad:elevations", properties["nexrad:elevations"], sorted(set(expected["target_elev_deg"])))
    for name in ("volume_header_time", "first_ray_time", "last_ray_time"):
        yield seconds(name, native[name], datetime.fromisoformat(expected[name]), within=0)
    first = min(datetime.fromisoformat(expected[name]) for name in ("volume_header_time", "first_ray_time"))
    yield seconds("start", found.start, first, within=0)
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
