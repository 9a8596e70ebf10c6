"""Small NEXRAD Level II volumes in the true format.

Bytes are as in ICD 2620010 (Archive II/User) and ICD 2620002 (RDA/RPG): volume header, metadata record, radial records,
end marker. The gates hold a seeded pattern, or echoes for a picture.
"""

from __future__ import annotations

import bz2
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache

from kfm_dagster.demo.samples.patterns import echoes
from kfm_dagster.readers.nexrad_radar import TDWR, Site, kind_of, sites

BUCKET = "unidata-nexrad-level2"
VCP = 212
ELEVATIONS = (0.483, 0.483, 0.879, 0.879, 1.318, 1.318, 1.802, 2.417, 3.12, 3.999, 5.098, 6.416)
"""Target elevations of the cuts of a VCP 212 volume, degrees. A cut is a turn of the antenna at one elevation."""
TDWR_VCP = 90
TDWR_ELEVATIONS = (0.599, 0.3, 1.0, 2.5, 5.1, 8.2, 11.6, 15.6, 20.6, 28.3, 42.7, 60.0)
"""Target elevations of a TDWR's volume, degrees; the first cut is the long range scan, of reflectivity alone, as
in a real volume of TDAL (Unidata MetPy, tests/io/test_nexrad.py)."""
GATES = 40
"""Gates per radial. A real radial has up to 1,840, but the reader uses the number of gates only in the lowest cut,
for the radar's range. So only the lowest cut's reflectivity has all of its gates."""
RADIALS = 3
"""Radials of a cut."""
MOMENTS = ("REF", "VEL", "SW", "ZDR", "PHI", "RHO")
"""Moments of all cuts together."""
FREQUENCY_MHZ = 2850
_FRAME_BYTES = 2432
_CUTS_OF_A_RECORD = 4
_BASE = (("REF", 8), ("VEL", 8), ("SW", 8))
_SURVEILLANCE, _DOPPLER, _BATCH = (
    (("REF", 8), ("ZDR", 8), ("PHI", 16), ("RHO", 8)),
    _BASE,
    (*_BASE, ("ZDR", 8), ("PHI", 16), ("RHO", 8)),
)
_CUTS = (_SURVEILLANCE, _DOPPLER) * 3 + (_BATCH,) * 6
"""Moments and bits of each cut: the three lowest elevations have two cuts each, for surveillance, then for Doppler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scan:
    """Scan parameters of a radar type, lengths in metres.

    `lowest` and `others` are number, begin and length of the gates in the lowest cut and in the other cuts.
    """

    version: str
    vcp: int
    elevations: tuple[float, ...]
    cuts: tuple[tuple[tuple[str, int], ...], ...]
    lowest: tuple[int, int, int]
    others: tuple[int, int, int]


_WSR_88D = _Scan(
    version="06",
    vcp=VCP,
    elevations=ELEVATIONS,
    cuts=_CUTS,
    lowest=(1832, 2125, 250),
    others=(GATES, 2125, 250),
)
_TDWR = _Scan(
    version="08",
    vcp=TDWR_VCP,
    elevations=TDWR_ELEVATIONS,
    cuts=(_BASE[:1], *(_BASE,) * (len(TDWR_ELEVATIONS) - 1)),
    lowest=(1390, 150, 300),
    others=(GATES, 75, 150),
)
_CUT = timedelta(seconds=20)
_RADIAL = timedelta(milliseconds=40)
_SWEEP = 720
"""Radials of the lowest cut of a drawn volume: all directions."""
_RADIALS_OF_A_RECORD = 120
DURATION = _CUT * (len(_CUTS) - 1) + _RADIAL * (RADIALS - 1)
"""Time from the first radial of a volume to its last."""
_FEEDHORN_M = 20


def make_nexrad_level2(*, site: str, start: datetime, volume_number: int = 1, drawn: bool = False) -> tuple[str, bytes]:
    """Return key and content of a volume; the same arguments give the same bytes.

    `start` is aware; header and first radial have this time in milliseconds, the key has it in seconds. If `drawn`, the
    lowest cut is a whole sweep with echoes, for a picture.
    Raises KeyError for a site that is in no table of WSR-88Ds or TDWRs.
    """
    start = start.astimezone(UTC)
    location, scan = sites()[site], _scan(site)
    day, milliseconds = _clock(start)
    magic, number = f"AR2V00{scan.version}.".encode(), b"%03d" % volume_number
    header = struct.pack(">9s3sII4s", magic, number, day, milliseconds, site.encode())
    cuts = [
        b"".join(_radial(location, start + _CUT * cut + _RADIAL * index, cut, index) for index in range(RADIALS))
        for cut in range(len(_CUTS))
    ]
    packed = [
        bz2.compress(b"".join(cuts[first : first + _CUTS_OF_A_RECORD]))
        for first in range(0, len(cuts), _CUTS_OF_A_RECORD)
    ]
    if drawn:
        packed = [*_sweep(location, start), bz2.compress(b"".join(cuts[1:_CUTS_OF_A_RECORD])), *packed[1:]]
    *records, last = [_metadata_record(start.date(), scan), *packed]
    content = b"".join([header, *(_record(record) for record in records), _record(last, last=True)])
    return f"{start:%Y/%m/%d}/{site}/{site}{start:%Y%m%d_%H%M%S}_V{scan.version}", content


def nexrad_level2_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` volumes, evenly over a UTC day and all sites.

    With a `count` of 25,000, each of the 210 sites has a volume every 12 minutes; with 60,000, every 5 minutes, as in
    reality. Sites of a TDWR come last. Raises ValueError if a site would need more than one volume per second.
    """
    names = [*sites()]
    if count > len(names) * 86_400:
        raise ValueError(f"{count} volumes a day are more than one per second and site")
    midnight = datetime.combine(day, time(), UTC)
    for index in range(count):
        turn, site_number = divmod(index, len(names))
        start = midnight + timedelta(milliseconds=index * 86_400_000 // count)
        key, content = make_nexrad_level2(site=names[site_number], start=start, volume_number=turn % 999 + 1)
        yield BUCKET, key, content


def _scan(icao: str) -> _Scan:
    return _TDWR if kind_of(icao) is TDWR else _WSR_88D


def _record(data: bytes, *, last: bool = False) -> bytes:
    """Return an LDM record (ICD 2620010, 7.3.4); the size before the last record is negative."""
    return struct.pack(">i", -len(data) if last else len(data)) + data


@lru_cache(maxsize=8)
def _metadata_record(day: date, scan: _Scan) -> bytes:
    """Compress the 134 frames of ICD 2620010, 7.3.5.

    The messages in them have bodies of zeros, except messages 5 and 2, which come last, and the transmitter's frequency
    in message 18 (table XV).
    """
    number, _ = _clock(datetime.combine(day, time(), UTC))
    cuts = b"".join(struct.pack(">H44x", round(angle * 65536 / 360)) for angle in scan.elevations)
    count = len(scan.elevations)
    pattern = struct.pack(">5HBB10x", 11 + 23 * count, 2, scan.vcp, count, 1, 2, 2) + cuts
    # RDA status (table IV): operate, on-line, remote control; the pattern; build 19.0; operational.
    status = struct.pack(">12H96x", 16, 2, 4, 2, 1044, 0, 28, scan.vcp, 0, 1900, 4, 2)
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
    """Return a message in its frame."""
    return _message(kind, body, day, milliseconds, segment=segment, segments=segments).ljust(_FRAME_BYTES, b"\0")


def _message(kind: int, body: bytes, day: int, milliseconds: int, *, segment: int = 1, segments: int = 1) -> bytes:
    """Return channel terminal manager, message header (ICD 2620002, table II) and body."""
    halfwords = (len(body) + 16) // 2
    return struct.pack(">12xHBBHHIHH", halfwords, 8, kind, 1, day, milliseconds, segments, segment) + body


def _sweep(site: Site, start: datetime) -> list[bytes]:
    """Return the records of a lowest cut with all directions; it ends when the next begins."""
    radials = [_radial(site, start + _CUT * index / _SWEEP, 0, index, count=_SWEEP) for index in range(_SWEEP)]
    return [
        bz2.compress(b"".join(radials[first : first + _RADIALS_OF_A_RECORD]))
        for first in range(0, _SWEEP, _RADIALS_OF_A_RECORD)
    ]


def _radial(site: Site, moment_of: datetime, cut: int, index: int, *, count: int = RADIALS) -> bytes:
    """Return message 31 (ICD 2620002, table XVII); the cut has `count` radials."""
    day, milliseconds = _clock(moment_of)
    scan = _scan(site.icao)
    gates = scan.others if cut else scan.lowest
    moments = list(_moments(site.icao, scan.cuts[cut], gates))
    if count == _SWEEP:
        number, first, spacing = gates
        head = moments[0][:-number]
        moments[0] = head + echoes(_SWEEP, number, first_km=first / 1000, gate_km=spacing / 1000)[index]
    blocks = [*_constants(site, scan.vcp), *moments]
    pointers, offset = [], 72
    for block in blocks:
        pointers.append(offset)
        offset += len(block)
    # Radial status: 3 begins a volume, 0 an elevation; 4 ends a volume, 2 an elevation; 1 is in between.
    begins, ends = (3 if cut == 0 else 0), (4 if cut == len(_CUTS) - 1 else 2)
    status = begins if index == 0 else ends if index == count - 1 else 1
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
        scan.elevations[cut],
        0,
        25,
        len(blocks),
        *pointers,
        *[0] * (10 - len(pointers)),
    )
    return _message(31, header + b"".join(blocks), day, milliseconds)


@lru_cache(maxsize=512)
def _constants(site: Site, vcp: int) -> tuple[bytes, bytes, bytes]:
    """Return volume, elevation and radial constants (ICD 2620002, tables XVII-E, F and H)."""
    height = round(site.height_m) - _FEEDHORN_M
    return (
        struct.pack(
            ">4sHBBffhHfffffH2x",
            *(b"RVOL", 44, 1, 0, site.latitude, site.longitude, height, _FEEDHORN_M),
            *(-44.0, 250.0, 250.0, 0.3, 60.0, vcp),
        ),
        struct.pack(">4sHhf", b"RELV", 12, -11, -44.0),
        struct.pack(">4sHhffh2x", b"RRAD", 20, 4660, -80.0, -80.0, 2700),
    )


@lru_cache(maxsize=512)
def _moments(icao: str, moments: tuple[tuple[str, int], ...], gates: tuple[int, int, int]) -> tuple[bytes, ...]:
    """Return moment blocks (ICD 2620002, table XVII-B) with echoes in the first GATES gates."""
    blocks = []
    for name, bits in moments:
        noise = random.Random(f"{icao}{name}")
        echoes = bytes(noise.choice(b"\0\0\0\2\x42\x60") for _ in range(GATES * bits // 8))
        count, first, spacing = gates if name == "REF" else (GATES, *gates[1:])
        label = name.ljust(3).encode()
        head = struct.pack(">c3sIHhhhhBBff", b"D", label, 0, count, first, spacing, 100, 16, 0, bits, 2.0, 66.0)
        blocks.append(head + echoes.ljust(count * bits // 8, b"\0"))
    return tuple(blocks)


def _clock(moment: datetime) -> tuple[int, int]:
    """Return days since 1970-01-01, which is day 1, and milliseconds past midnight."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days + 1, since.seconds * 1000 + since.microseconds // 1000
