"""Small NEXRAD and TDWR Level III products in the true format.

Belongs here: bytes as Unidata's bucket has them: WMO heading, AWIPS identifier, and a message of ICD 2620001 (RPG to
Class 1 User) with its description and blocks. Does not belong here: realistic weather; values are seeded noise.
"""

from __future__ import annotations

import bz2
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from kfm_dagster.readers.nexrad_radar import TDWR, Site, kind_of, sites

BUCKET = "unidata-nexrad-level3"
VCP = 212
TDWR_VCP = 80
GENERATED_AFTER = timedelta(seconds=45)
"""Time from the volume scan's start to the product."""
RADIALS = 36
GATES = 40
"""Gates of 0.25 to 1 km. A real radial has up to 1,840, but the reader's result does not depend on their number."""
_FEET = 0.3048
_DIVIDER = -1
_DESCRIPTION_END = 120
_DESCRIPTION = struct.Struct(">hiihhhhhhHiHihhhh16h7HBB3I")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """A product: code, WMO heading without its last digit, blocks, values of its description."""

    code: int
    heading: str
    make: Callable[[random.Random, str], dict[str, bytes]]
    elevation: int = 0
    """Elevation of the first cut, in tenths of a degree; 0 for a product of the whole volume."""
    parameters: tuple[int, ...] = ()
    """Parameters from number 4 on."""
    thresholds: tuple[int, ...] = ()
    accumulates: bool = False
    """Whether the product is a storm total (table V); parameters 5 to 8 then have start and end, as date and minute."""
    is_bzip2: bool = False


def make_nexrad_level3(*, site: str, product: str, start: datetime, volume_number: int = 1) -> tuple[str, bytes]:
    """Return key and content of a product of PRODUCTS; the same arguments give the same bytes.

    `site` is an ICAO identifier, `start` the volume scan's aware start, to the second. Raises KeyError when site or
    product is in no table.
    """
    start = start.astimezone(UTC).replace(microsecond=0)
    location = sites()[site]
    kind, identifier = PRODUCTS[product], site[1:]
    blocks = kind.make(random.Random(f"{site}{product}{start}"), identifier)
    message = _message(kind, location, start, volume_number, blocks)
    heading = f"{kind.heading}{volume_number % 9 + 1} {site} {start + GENERATED_AFTER:%d%H%M}\r\r\n"
    content = f"{heading}{product}{identifier}\r\r\n".encode() + message
    return f"{identifier}_{product}_{start:%Y_%m_%d_%H_%M_%S}", content


def nexrad_level3_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` distinct products, evenly over a UTC day.

    Sites and their products take turns. Raises ValueError when a site would need more than one product per second.
    """
    names = [*sites()]
    if count > len(names) * 86_400:
        raise ValueError(f"{count} products a day are more than one per second and site")
    midnight = datetime.combine(day, time(), UTC)
    for index in range(count):
        turn, site_number = divmod(index, len(names))
        products = [
            name for name, kind in PRODUCTS.items() if (kind_of(names[site_number]) is TDWR) == (kind.code >= 180)
        ]
        start = midnight + timedelta(seconds=index * 86_400 // count)
        key, content = make_nexrad_level3(
            site=names[site_number], product=products[turn % len(products)], start=start, volume_number=turn % 80 + 1
        )
        yield BUCKET, key, content


def _message(kind: _Kind, site: Site, start: datetime, volume_number: int, blocks: dict[str, bytes]) -> bytes:
    """Return a message: header (figure 3-3), description (figure 3-6), and blocks in order."""
    lines = blocks.get("tabular")
    sizes = [len(blocks.get(name, b"")) for name in ("symbology", "graphic")]
    if lines is not None:
        sizes.append(_DESCRIPTION_END + 8 + len(lines))
    offsets, end = [], _DESCRIPTION_END
    for size in sizes:
        offsets.append(end // 2 if size else 0)
        end += size
    offsets += [0] * (3 - len(offsets))
    count = 2 + sum(size > 0 for size in sizes)
    head = _head(kind, site, start, volume_number, offsets, length=end, count=count)
    body = blocks.get("symbology", b"") + blocks.get("graphic", b"")
    if lines is not None:
        body += _block(3, head + lines)
    if not kind.is_bzip2:
        return head + body
    packed = bz2.compress(body)
    length = _DESCRIPTION_END + len(packed)
    head = _head(kind, site, start, volume_number, offsets, length=length, count=count, unpacked=len(body))
    return head + packed


def _head(
    kind: _Kind,
    site: Site,
    start: datetime,
    volume_number: int,
    offsets: Sequence[int],
    *,
    length: int,
    count: int,
    unpacked: int | None = None,
) -> bytes:
    generated = start + GENERATED_AFTER
    parameters = [*kind.parameters, *[0] * (7 - len(kind.parameters))]
    if kind.accumulates:
        day, seconds = _clock(start)
        parameters[1:5] = day, 0, day, seconds // 60
    if unpacked is not None:
        parameters[4:] = 1, unpacked >> 16, unpacked & 0xFFFF
    is_tdwr = kind.code >= 180
    return struct.pack(">hHiihhh", kind.code, *_clock(generated), length, _radar_id(site), 0, count) + (
        _DESCRIPTION.pack(
            *(_DIVIDER, round(site.latitude * 1000), round(site.longitude * 1000), round(site.height_m / _FEET)),
            *(kind.code, 2, TDWR_VCP if is_tdwr else VCP, 1, volume_number),
            *(*_clock(start), *_clock(generated)),
            *(0, 0, 1 if kind.elevation else 0, kind.elevation),
            *(*kind.thresholds, *[0] * (16 - len(kind.thresholds))),
            *(parameter & 0xFFFF for parameter in parameters),
            *(0, 0, *offsets),
        )
    )


def _radar_id(site: Site) -> int:
    names = [*sites()]
    return names.index(site.icao) + 1


def _block(number: int, body: bytes) -> bytes:
    return struct.pack(">hhI", _DIVIDER, number, 8 + len(body)) + body


def _symbology(packets: bytes) -> bytes:
    return _block(1, struct.pack(">HhI", 1, _DIVIDER, len(packets)) + packets)


def _page(*packets: bytes) -> bytes:
    """Return the graphic block of a single page."""
    body = b"".join(packets)
    return _block(2, struct.pack(">HHH", 1, 1, len(body)) + body)


def _text(text: str) -> bytes:
    """Return packet 8 (figure 3-8b): text with a colour level at a pixel."""
    encoded = text.encode().ljust(len(text) + len(text) % 2)
    return struct.pack(">hhhhh", 8, 6 + len(encoded), 4, 0, 1) + encoded


def _lines(*lines: str) -> bytes:
    """Return the page of a tabular block (figure 3-6, sheet 10); each line follows its length."""
    body = b"".join(struct.pack(">h", 80) + line.encode().ljust(80) for line in lines)
    return struct.pack(">hh", _DIVIDER, 1) + body + struct.pack(">h", _DIVIDER)


def _digital(noise: random.Random, _: str) -> dict[str, bytes]:
    """Return packet 16 (figure 3-11c), a digital radial data array with a byte per gate."""
    radials = b"".join(
        struct.pack(">hhh", GATES, round(index * 3600 / RADIALS), round(3600 / RADIALS))
        + bytes(noise.choice(b"\0\0\0\2\x42\x60") for _ in range(GATES))
        for index in range(RADIALS)
    )
    return {"symbology": _symbology(struct.pack(">hhhhhhh", 16, 0, GATES, 0, 0, 1000, RADIALS) + radials)}


def _rain(noise: random.Random, identifier: str) -> dict[str, bytes]:
    """Return packet AF1F (figure 3-10), which has runs of a level, and a text page."""
    radials = b""
    for index in range(RADIALS):
        runs = bytes(10 << 4 | noise.randrange(16) for _ in range(GATES // 10))
        radials += struct.pack(">hhh", len(runs) // 2, round(index * 3600 / RADIALS), round(3600 / RADIALS)) + runs
    image = struct.pack(">Hhhhhhh", 0xAF1F, 0, GATES, 0, 0, 1000, RADIALS) + radials
    return {"symbology": _symbology(image), "tabular": _lines(f"STORM TOTAL PRECIPITATION {identifier}")}


def _storms(noise: random.Random, identifier: str) -> dict[str, bytes]:
    """Return a storm's packet 15 (figure 3-14), a graphic page and a tabular page."""
    storm = struct.pack(">hhhh2s", 15, 6, noise.randrange(-460, 460), noise.randrange(-460, 460), b"A0")
    return {
        "symbology": _symbology(storm),
        "graphic": _page(_text(f"STM ID {identifier}")),
        "tabular": _lines(f"RADAR ID {identifier}", "STORM A0"),
    }


def _winds(noise: random.Random, _: str) -> dict[str, bytes]:
    """Return packet 4 (figure 3-12), which is a wind barb, and a page of text."""
    barb = struct.pack(">hhhhhhh", 4, 10, 1, 100, 100, noise.randrange(360), noise.randrange(90))
    return {"symbology": _symbology(barb), "tabular": _lines("VAD ALGORITHM OUTPUT")}


PRODUCTS = {
    "N0B": _Kind(
        code=153,
        heading="SDUS5",
        make=_digital,
        elevation=5,
        thresholds=(-320, 5, 254),
        parameters=(48,),
        is_bzip2=True,
    ),
    "NST": _Kind(code=58, heading="SDUS3", make=_storms, parameters=(1,)),
    "NTP": _Kind(
        code=80,
        heading="SDUS5",
        make=_rain,
        thresholds=(0x9002 - 0x10000, *range(0x1003, 0x1012)),
        parameters=(29, 0, 0, 0, 0, 80, 460),
        accumulates=True,
    ),
    "NVW": _Kind(code=48, heading="SDUS3", make=_winds, parameters=(78, 250, 4000)),
    "TZ0": _Kind(
        code=180,
        heading="SDUS5",
        make=_digital,
        elevation=3,
        thresholds=(-320, 5, 254),
        parameters=(48,),
        is_bzip2=True,
    ),
}
"""Products by AWIPS identifier: super-resolution reflectivity, storms, storm total, winds; a TDWR's reflectivity."""


def _clock(moment: datetime) -> tuple[int, int]:
    """Return days since 1970-01-01, which is day 1, and seconds past midnight."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days + 1, since.seconds
