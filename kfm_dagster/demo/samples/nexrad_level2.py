"""Small NEXRAD Level II volumes in the true format, for the demo, the tests and the benchmark.

Belongs here: bytes as ICD 2620010 (Archive II/User) and ICD 2620002 (RDA/RPG) lay them out: volume header, metadata
record, radial records, end marker. Does not belong here: weather; the gates hold a seeded pattern.
"""

from __future__ import annotations

import bz2
import random
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from kfm_dagster.readers.nexrad_sites import Site, sites

BUCKET = "unidata-nexrad-level2"
VCP = 212
ELEVATIONS = (0.483, 0.483, 0.879, 0.879, 1.318, 1.318, 1.802, 2.417, 3.12, 3.999, 5.098, 6.416)
"""Target elevations of a VCP 212 volume, degrees."""
GATES = 40
"""Gates of 250 m per radial: a real radial has up to 1,840, but the reader says the same of few."""
RADIALS = 3
"""Radials of a cut."""
MOMENTS = ("REF", "VEL", "SW", "ZDR", "PHI", "RHO")
"""Of all cuts together."""
FREQUENCY_MHZ = 2850
_FRAME_BYTES = 2432
_CUTS_OF_A_RECORD = 4
_SURVEILLANCE, _DOPPLER, _BATCH = (
    (("REF", 8), ("ZDR", 8), ("PHI", 16), ("RHO", 8)),
    (("REF", 8), ("VEL", 8), ("SW", 8)),
    (("REF", 8), ("VEL", 8), ("SW", 8), ("ZDR", 8), ("PHI", 16), ("RHO", 8)),
)
_CUTS = (_SURVEILLANCE, _DOPPLER) * 3 + (_BATCH,) * 6
"""Moments and bits of each cut: the three lowest elevations are split cuts, surveillance first and then Doppler."""
_CUT = timedelta(seconds=20)
_RADIAL = timedelta(milliseconds=40)
DURATION = _CUT * (len(_CUTS) - 1) + _RADIAL * (RADIALS - 1)
"""From the first radial of a volume to its last."""
_FEEDHORN_M = 20


def make_nexrad_level2(*, site: str, start: datetime, volume_number: int = 1) -> tuple[str, bytes]:
    """Key and content of one volume of a site of the table; the same arguments give the same bytes.

    start: aware; the header and the first radial carry it in milliseconds, the key in seconds.
    Raises KeyError when the site is not in the table.
    """
    start = start.astimezone(UTC)
    place = sites()[site]
    day, milliseconds = _clock(start)
    header = struct.pack(">9s3sII4s", b"AR2V0006.", b"%03d" % volume_number, day, milliseconds, site.encode())
    cuts = [
        b"".join(_radial(place, start + _CUT * cut + _RADIAL * index, cut, index) for index in range(RADIALS))
        for cut in range(len(_CUTS))
    ]
    packed = [
        bz2.compress(b"".join(cuts[first : first + _CUTS_OF_A_RECORD]))
        for first in range(0, len(cuts), _CUTS_OF_A_RECORD)
    ]
    *records, last = [_metadata_record(start.date()), *packed]
    content = b"".join([header, *(_record(record) for record in records), _record(last, last=True)])
    return f"{start:%Y/%m/%d}/{site}/{site}{start:%Y%m%d_%H%M%S}_V06", content


def nexrad_level2_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Bucket, key and content of `count` distinct volumes, evenly over a UTC day, the sites taking turns.

    20,000 give each of the 160 sites a volume every 12 minutes, 45,000 one every 5, as in reality.
    Raises ValueError when a site would need more than one volume per second.
    """
    names = list(sites())
    if count > len(names) * 86_400:
        raise ValueError(f"{count} volumes a day are more than one per second and site")
    midnight = datetime.combine(day, time(), UTC)
    for index in range(count):
        turn, place = divmod(index, len(names))
        start = midnight + timedelta(milliseconds=index * 86_400_000 // count)
        key, content = make_nexrad_level2(site=names[place], start=start, volume_number=turn % 999 + 1)
        yield BUCKET, key, content


def _record(data: bytes, *, last: bool = False) -> bytes:
    """LDM record (ICD 2620010, 7.3.4): the size before it is negative for the last one."""
    return struct.pack(">i", -len(data) if last else len(data)) + data


@lru_cache(maxsize=8)
def _metadata_record(day: date) -> bytes:
    """Compress the 134 frames of ICD 2620010, 7.3.5.

    All hold zeros but messages 5 and 2, which come last, and the transmitter's frequency in message 18 (table XV).
    """
    number, _ = _clock(datetime.combine(day, time(), UTC))
    cuts = b"".join(struct.pack(">H44x", round(angle * 65536 / 360)) for angle in ELEVATIONS)
    pattern = struct.pack(">5HBB10x", 11 + 23 * len(ELEVATIONS), 2, VCP, len(ELEVATIONS), 1, 2, 2) + cuts
    # RDA status (table IV): operate, on-line, remote control; the pattern; build 19.0; operational.
    status = struct.pack(">12H96x", 16, 2, 4, 2, 1044, 0, 28, VCP, 0, 1900, 4, 2)
    # Without message 13 (clutter bypass map), as in volumes since 2021.
    layout = ((0, 15, 5), (126, 18, 4))
    frames = {
        first + segment: _frame(kind, bytes(2400), number, 0, segment=segment + 1, segments=segments)
        for first, kind, segments in layout
        for segment in range(segments)
    }
    frames |= {
        131: _frame(3, bytes(960), number, 0),
        126: _frame(18, struct.pack(">1092xi1304x", FREQUENCY_MHZ), number, 0, segments=4),
        132: _frame(5, pattern, number, 0),
        133: _frame(2, status, number, 0),
    }
    return bz2.compress(b"".join(frames.get(index, bytes(_FRAME_BYTES)) for index in range(134)))


def _frame(kind: int, body: bytes, day: int, milliseconds: int, *, segment: int = 1, segments: int = 1) -> bytes:
    """One message in its frame."""
    return _message(kind, body, day, milliseconds, segment=segment, segments=segments).ljust(_FRAME_BYTES, b"\0")


def _message(kind: int, body: bytes, day: int, milliseconds: int, *, segment: int = 1, segments: int = 1) -> bytes:
    """12 bytes of channel terminal manager, the message header (ICD 2620002, table II), the body."""
    halfwords = (len(body) + 16) // 2
    return struct.pack(">12xHBBHHIHH", halfwords, 8, kind, 1, day, milliseconds, segments, segment) + body


def _radial(site: Site, moment_of: datetime, cut: int, index: int) -> bytes:
    """Message 31 (ICD 2620002, table XVII)."""
    day, milliseconds = _clock(moment_of)
    blocks = [*_constants(site), *_moments(site.icao, _CUTS[cut])]
    pointers, offset = [], 72
    for block in blocks:
        pointers.append(offset)
        offset += len(block)
    # 3 and 0 begin a volume and an elevation, 4 and 2 end them, 1 lies between (radial status).
    begins, ends = (3 if cut == 0 else 0), (4 if cut == len(_CUTS) - 1 else 2)
    status = begins if index == 0 else ends if index == RADIALS - 1 else 1
    header = struct.pack(
        ">4sIHHfBxHBBBBfBbH10I",
        site.icao.encode(),
        milliseconds,
        day,
        index + 1,
        index * 0.5,  # azimuth, degrees
        0,
        offset,
        1,
        status,
        cut + 1,
        1,
        ELEVATIONS[cut],
        0,
        25,
        len(blocks),
        *pointers,
        *[0] * (10 - len(pointers)),
    )
    return _message(31, header + b"".join(blocks), day, milliseconds)


@lru_cache(maxsize=512)
def _constants(site: Site) -> tuple[bytes, bytes, bytes]:
    """Volume, elevation and radial constants (ICD 2620002, tables XVII-E, F and H)."""
    height = round(site.height_m) - _FEEDHORN_M
    return (
        struct.pack(
            ">4sHBBffhHfffffH2x",
            *(b"RVOL", 44, 1, 0, site.latitude, site.longitude, height, _FEEDHORN_M),
            *(-44.0, 250.0, 250.0, 0.3, 60.0, VCP),
        ),
        struct.pack(">4sHhf", b"RELV", 12, -11, -44.0),
        struct.pack(">4sHhffh2x", b"RRAD", 20, 4660, -80.0, -80.0, 2700),
    )


@lru_cache(maxsize=512)
def _moments(icao: str, moments: tuple[tuple[str, int], ...]) -> tuple[bytes, ...]:
    """Moment blocks (ICD 2620002, table XVII-B): gates from 2.125 km on, 250 m apart, scale 2, offset 66."""
    blocks = []
    for name, bits in moments:
        noise = random.Random(f"{icao}{name}")
        gates = bytes(noise.choice(b"\0\0\0\2\x42\x60") for _ in range(GATES * bits // 8))
        label = name.ljust(3).encode()
        head = struct.pack(">c3sIHhhhhBBff", b"D", label, 0, GATES, 2125, 250, 100, 16, 0, bits, 2.0, 66.0)
        blocks.append(head + gates)
    return tuple(blocks)


def _clock(moment: datetime) -> tuple[int, int]:
    """Days since 1970-01-01, which is day 1, and milliseconds past midnight."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days + 1, since.seconds * 1000 + since.microseconds // 1000
