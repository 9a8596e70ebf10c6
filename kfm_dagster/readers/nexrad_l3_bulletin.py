r"""The frame of a NEXRAD Level III message: WMO heading, AWIPS identifier, transmission.

An object of the bucket is a heading `T1T2A1A2ii CCCC YYGGgg\r\r\n` (WMO-No. 386, part II, 2.3.2), an AWIPS identifier
`NNNXXX\r\r\n` (NWSI 10-1701), and the message. Unidata's uploader (github.com/Unidata/ldm-alchemy, upload_nids.py) has
removed the transmission around these. An object from elsewhere still has it: `SOH CR CR LF number CR CR LF` before,
`CR CR LF ETX` after, and zlib frames instead of the message. The first of these frames begins with NOAAPort's
communications control block and the same heading again.

Belongs here: removing this frame within bounds. Does not belong here: the message (`nexrad_l3_message.py`).
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError

HEADING_BYTES = 64
"""Maximum bytes of a heading and of the start of transmission before it."""
FRAME_BYTES = 4000
"""Maximum unpacked bytes of a zlib frame; in a real object of 17 frames, all but the last have this size."""
MAX_FRAMES = 2048

_START = re.compile(rb"\x01\r\r\n\d{3,5} ?\r\r\n")
_HEADING = re.compile(
    rb"(?P<wmo>[A-Z]{4}\d{2} [A-Z0-9]{4} (?P<day>\d{2})(?P<hour>\d{2})(?P<minute>\d{2})(?: [A-Z]{3})?)\r\r\n"
    rb"(?P<product>[A-Z0-9]{3})(?P<site>[A-Z0-9]{3}) *\r\r\n"
)
_END = b"\r\r\n\x03"
_TEXT_END = b"\xff\xff\n\0"
"""End of a plain text: the flag of a page's end (ICD 2620001, figure 3-16), and a line's end, padded to a halfword."""
_ZLIB = b"\x78"
"""First byte of a zlib stream with a window of 32 KiB (RFC 1950, 2.2). The first byte of a message is 0, because its
code is below 256."""
_STORED = 64
"""Maximum growth of a frame that does not compress, in bytes (RFC 1951, 3.2.4: 5 bytes a block)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bulletin:
    """An object without its frame. `product` and `site` are the halves of the AWIPS identifier.

    is_closed: the transmission or the text has its end, so the object is not cut. is_text: plain text, not a message.
    """

    wmo: str
    product: str
    site: str
    message: bytes
    is_zlib: bool
    is_closed: bool
    is_text: bool

    def time_near(self, moment: datetime) -> datetime:
        """Return the heading's time (day, hour, minute of UTC), in the month nearest to `moment`.

        Raises ReadError(INVALID_TIME_RANGE) for an invalid time.
        """
        day, hour, minute = (int(self.wmo.split(" ")[2][place : place + 2]) for place in (0, 2, 4))
        first, candidates = moment.replace(day=1), []
        for month in (first - timedelta(days=1), first, first + timedelta(days=31)):
            try:
                candidates.append(datetime(month.year, month.month, day, hour, minute, tzinfo=UTC))
            except ValueError:
                continue  # the month has no such day
        if not candidates:
            raise ReadError(MetadataIssue.INVALID_TIME_RANGE, f"the heading has an invalid time: {self.wmo}")
        return min(candidates, key=lambda time: abs(time - moment))


def read_bulletin(data: bytes) -> Bulletin:
    """Return an object without its frame.

    Raises ReadError(UNREADABLE_FORMAT, TRUNCATED_OBJECT, RESOURCE_LIMIT).
    """
    start = _START.match(data)
    if start and not data.endswith(_END):
        raise ReadError(MetadataIssue.TRUNCATED_OBJECT, "the object begins as a transmission, but does not end as one")
    heading = _heading(data, start.end() if start else 0)
    message = data[heading.end() : len(data) - len(_END) if start else len(data)]
    is_zlib = message.startswith(_ZLIB)
    if is_zlib:
        plain = _inflated(message)
        inner = _HEADING.match(plain[:HEADING_BYTES]) or _heading(plain, _control_block_bytes(plain))
        if inner.groups() != heading.groups():
            raise ReadError(
                MetadataIssue.UNREADABLE_FORMAT,
                "the heading in the zlib frames is not the heading before them",
            )
        message = plain[inner.end() :]
    wmo = heading["wmo"].decode("ascii")
    # NO is a notice in plain text (WMO-No. 386, attachment II-5, table B1); radar data have SD, radar status has NX.
    is_text = wmo.startswith("NO")
    has_end = is_text and message.endswith(_TEXT_END)
    return Bulletin(
        wmo=wmo,
        product=heading["product"].decode("ascii"),
        site=heading["site"].decode("ascii"),
        message=message.removesuffix(_TEXT_END) if has_end else message,
        is_zlib=is_zlib,
        is_closed=start is not None or has_end,
        is_text=is_text,
    )


def _heading(data: bytes, start: int) -> re.Match[bytes]:
    match = _HEADING.match(data[: start + HEADING_BYTES], start)
    if match is None:
        raise ReadError(
            MetadataIssue.UNREADABLE_FORMAT,
            f"no WMO heading with an AWIPS identifier at byte {start}: {data[start : start + 32]!r}",
        )
    return match


def _inflated(data: bytes) -> bytes:
    """Inflate frame after frame; the bytes after the last frame are not compressed."""
    plain = bytearray()
    place = 0
    for _ in range(MAX_FRAMES):
        if data[place : place + 1] != _ZLIB:
            return bytes(plain + data[place:])
        frame = data[place : place + FRAME_BYTES + _STORED]
        inflate = zlib.decompressobj()
        try:
            plain += inflate.decompress(frame, FRAME_BYTES)
        except zlib.error as error:
            raise ReadError(MetadataIssue.UNREADABLE_FORMAT, f"a zlib frame is corrupt: {error}") from error
        if not inflate.eof:
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT, f"the zlib frame at byte {place} has no end within {len(frame)} bytes"
            )
        place += len(frame) - len(inflate.unused_data)
    raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"more than {MAX_FRAMES} zlib frames")


def _control_block_bytes(data: bytes) -> int:
    """Return the size of NOAAPort's control block in bytes, 0 without such a block."""
    # Bits 01, then 14 bits that count halfwords.
    word = int.from_bytes(data[:2], "big")
    return 2 * (word & 0x3FFF) if word >> 14 == 1 else 0
