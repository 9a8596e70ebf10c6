"""NEXRAD volumes for the readers' tests: bytes packed by hand."""

from __future__ import annotations

import bz2
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

from pyproj import Geod

from kfm_dagster.readers.base import ByteSource, HeaderMetadata
from kfm_dagster_tests.readers.reading import code_of, header_of

START = datetime(2024, 5, 6, 21, 14, 3, 250_000, UTC)
SITE = "KICT"


def groups(at: datetime = START, site: str = SITE) -> dict[str, str]:
    return {"site": site, "date": f"{at:%Y%m%d}", "time": f"{at:%H%M%S}"}


def read(content: bytes | ByteSource, key: Mapping[str, str] | None = None) -> HeaderMetadata:
    return header_of("nexrad-level2", content, groups=key or groups())


def reach_m(metadata: HeaderMetadata) -> float:
    """Return the metres from a radar to the edge of its footprint."""
    properties = metadata.properties
    edge = metadata.geometry["coordinates"][0][0]
    return Geod(ellps="WGS84").inv(properties["nexrad:longitude"], properties["nexrad:latitude"], *edge)[2]


refusal = partial(code_of, read)


def header(at: datetime = START, *, magic: bytes = b"AR2V0006.", icao: bytes = SITE.encode()) -> bytes:
    return struct.pack(">9s3sII4s", magic, b"001", *clock(at), icao)


def clock(at: datetime) -> tuple[int, int]:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days + 1, since.seconds * 1000 + since.microseconds // 1000


def message_1(at: datetime, *, vcp: int = 21) -> bytes:
    """Pack a frame with a radial of ICD 2620002, table III: reflectivity and velocity, no spectrum width."""
    day, milliseconds = clock(at)
    body = struct.pack(">IH30xHHHHH", milliseconds, day, 100, 560, 0, 2, vcp)
    return (struct.pack(">12xHBBHHIHH", 1208, 0, 1, 1, day, milliseconds, 1, 1) + body).ljust(2432, b"\0")


def ldm(data: bytes, *, last: bool = False, level: int = 9) -> bytes:
    packed = bz2.compress(data, level)
    return struct.pack(">i", -len(packed) if last else len(packed)) + packed


def record_ends(volume: bytes, offset: int = 24) -> Iterator[int]:
    """Yield the offset at which each LDM record from `offset` on ends, including the last."""
    while offset < len(volume):
        offset += 4 + abs(int.from_bytes(volume[offset : offset + 4], "big", signed=True))
        yield offset


def unpack(volume: bytes) -> bytes:
    """Return the volume with its LDM records unpacked."""
    starts = [24, *record_ends(volume)]
    return volume[:24] + b"".join(bz2.decompress(volume[start + 4 : end]) for start, end in pairwise(starts))
