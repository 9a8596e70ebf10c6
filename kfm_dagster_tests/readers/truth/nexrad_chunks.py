"""NEXRAD Level II chunks: what xradar reads of the whole volume, held against every chunk and all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import READERS, HeaderMetadata, ReadRequest
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.truth.comparison import Compared, RealObject, compares, degrees, same, seconds
from kfm_dagster_tests.readers.truth.nexrad_level2 import disc


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
        angles = sorted({round(angle, 3) for angle in native["target_elev_deg"]})
        yield same("target_elev_deg", angles, sorted(set(whole["sweep_fixed_angle"])))
        # The reference's text begins with it: the archive's version, a full stop, and the volume's number.
        magic = answers["volume_header"].split()[0]
        yield same("extension", native["extension"], magic.rpartition(".")[2])
        yield same("icao_header", native["icao_header"], answers["site"])
    else:
        yield same("position", (native["lat"], native["lon"]), (whole["latitude"], whole["longitude"]))
        yield same("alt_m", (native["alt_m"], properties["nexrad:height-m"]), (whole["altitude"], whole["altitude"]))
        yield same("nexrad:cuts", properties["nexrad:cuts"] in range(1, whole["nsweeps"] + 1), True)
    if is_last:
        yield same("nexrad:cuts", properties["nexrad:cuts"], whole["nsweeps"])
        yield seconds("end", found.end, datetime.fromisoformat(whole["time_coverage_end"]))
        yield from _together(real, whole)


def _together(real: RealObject, whole: Mapping[str, Any]) -> Iterator[Compared]:
    """Yield what the archive's reader says of all chunks put together, which are then a volume of the archive."""
    assert real.beside is not None
    content = b"".join(file.read_bytes() for file in sorted(real.beside.parent.iterdir()))
    request = ReadRequest(key=real.key, groups=real.groups, source=BytesSource(content), sidecar=lambda _: None)
    found = READERS["nexrad-level2"](request)
    yield same("together: nsweeps", found.native["nsweeps"], whole["nsweeps"])
    angles = sorted(set(whole["sweep_fixed_angle"]))
    yield same("together: nexrad:elevations", found.properties["nexrad:elevations"], angles)
    yield seconds("together: start", found.start, datetime.fromisoformat(_microseconds(whole["min_time"])))
    yield seconds("together: end", found.end, datetime.fromisoformat(_microseconds(whole["max_time"])))
    yield degrees("together: bbox", bounding_box(found.geometry), disc(whole["longitude"], whole["latitude"]))
    yield same("together: findings", found.findings, ())


def _microseconds(text: str) -> str:
    """Return a time of nanoseconds, which has no zone, to the microsecond and in UTC."""
    return f"{text[:26]}+00:00"
