"""Reader of gzipped GRIB2 objects, such as those of MRMS: `grib2.py` reads their content.

An object of up to MAX_PACKED_BYTES is read whole and unpacked to its end. `integrity_check` has requested FIRST_BYTES,
so only an object above FIRST_BYTES takes another request. gzip's own end, checksum and length prove that the object is
whole, and each message must have its stated length. No index is requested. Of an object above MAX_PACKED_BYTES only the
beginning is read (COMPLETENESS_UNCHECKED).

Belongs here: `read_grib2_gzip`, and the bytes to read of an object. Does not belong here: unpacking (`unpacked.py`).
"""

from __future__ import annotations

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadRequest
from kfm_dagster.readers.grib2 import Findings, Inventory, describe, walk
from kfm_dagster.readers.grib2_sections import GribMessage, HeaderWindow
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.readers.unpacked import Gunzip, Unpacked, gunzipped

FIRST_BYTES = 256 * 1024
"""Length of the first request for an object: many of MRMS's objects are smaller (hail, lightning, rotation: 0.02 to
0.15 MB). The first bytes of a batch of 5,000 units take up to 1.2 GiB; at most 1 GiB is kept between stages
(`storage/read_ahead.py`)."""
MAX_PACKED_BYTES = 8 * 1024 * 1024
"""Maximum size of an object that is read whole; the largest of MRMS have 1.6 MB (echo tops over CONUS)."""
MAX_UNPACKED_BYTES = 16 * 1024 * 1024
"""Maximum unpacked size, all in memory: twice MAX_PACKED_BYTES. A field is already a PNG (data representation template
5.41), so gzip saves little: real objects unpack to 1.02 to 1.6 times their size."""
BEGINNING_BYTES = 64 * 1024
"""Bytes that are unpacked from the beginning of a larger object."""


def read_grib2_gzip(request: ReadRequest) -> HeaderMetadata:
    """Read the header of a gzipped GRIB2 object. Conforms to `Reader`; raises ReadError."""
    source = request.source

    def followed(window: HeaderWindow, first: GribMessage, *_: object) -> Inventory:
        # gzip's end proves that the object is whole, so fields beyond the walk need no finding.
        return walk(window, first)

    if source.size <= MAX_PACKED_BYTES:
        return describe(request, gunzipped(source, limit=MAX_UNPACKED_BYTES), take_inventory=followed)

    def unchecked(_window: HeaderWindow, _first: GribMessage, _lead: object, findings: Findings) -> Inventory:
        text = f"the end was not read: {source.size} gzipped bytes, the limit is {MAX_PACKED_BYTES}"
        findings.append((MetadataIssue.COMPLETENESS_UNCHECKED, text))
        return Inventory(messages=None)

    return describe(request, _Beginning(source), take_inventory=unchecked)


class _Beginning(BytesSource):
    """The first BEGINNING_BYTES of a gzipped object's content, whose size is unknown."""

    def __init__(self, source: ByteSource) -> None:
        pieces = iter([source.read(0, FIRST_BYTES)])
        content = Unpacked(pieces, Gunzip(), step=BEGINNING_BYTES, limit=2 * BEGINNING_BYTES)
        super().__init__(content.read(0, BEGINNING_BYTES))

    @property
    def size(self) -> int:
        """More bytes than any message can state."""
        return 1 << 64
