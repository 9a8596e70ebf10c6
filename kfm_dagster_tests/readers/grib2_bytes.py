"""GRIB2 objects for the tests: where their messages are, and an index of them."""

from __future__ import annotations

import struct
from datetime import datetime


def messages_of(content: bytes) -> list[int]:
    """Offsets of the messages of a GRIB2 object."""
    offsets, at = [], 0
    while at >= 0:
        offsets.append(at)
        at = content.find(b"GRIB", at + struct.unpack_from(">Q", content, at + 8)[0])
    return offsets


def ends_of(content: bytes) -> list[int]:
    """Where the messages of a GRIB2 object end, but for the last."""
    return [at + struct.unpack_from(">Q", content, at + 8)[0] for at in messages_of(content)[:-1]]


def index_of(content: bytes, *, run: datetime, step: str) -> bytes:
    """An index as wgrib2 writes it, of names that no table has."""
    lines = (
        f"{number}:{at}:d={run:%Y%m%d%H}:FIELD:surface:{step}:\n"
        for number, at in enumerate(messages_of(content), start=1)
    )
    return "".join(lines).encode()
