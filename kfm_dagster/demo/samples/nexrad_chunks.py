"""Small NEXRAD Level II chunks in the true format and under true keys.

A volume (`nexrad_level2.py`) is cut at its LDM records, as the feed cuts volumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import pairwise

from kfm_dagster.demo.samples.nexrad_level2 import make_nexrad_level2, nexrad_level2_samples

BUCKET = "unidata-nexrad-level2-chunks"
CHUNKS = 4
"""Chunks of a sample volume: the metadata and three records of radials. Real volumes have 30 to 80."""
_HEADER_BYTES = 24


def make_nexrad_chunks(*, site: str, start: datetime, volume_number: int = 1) -> list[tuple[str, bytes]]:
    """Return key and content of a volume's chunks, which together are the archive's object.

    start: aware. Raises KeyError for a site that is in no table of WSR-88Ds or TDWRs.
    """
    _, volume = make_nexrad_level2(site=site, start=start, volume_number=volume_number)
    return list(_cut(volume, prefix=f"{site}/{volume_number}/{start.astimezone(UTC):%Y%m%d-%H%M%S}"))


def nexrad_chunk_samples(day: date, count: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield bucket, key and content of `count` chunks of the volumes of a UTC day.

    The last volume has no end unless `count` is a multiple of CHUNKS. Raises ValueError like `nexrad_level2_samples`.
    """
    for index, (_, key, volume) in enumerate(nexrad_level2_samples(day, -(-count // CHUNKS))):
        name = key.rpartition("/")[2]
        prefix = f"{name[:4]}/{int(volume[9:12])}/{name[4:12]}-{name[13:19]}"
        for chunk_key, content in list(_cut(volume, prefix=prefix))[: count - index * CHUNKS]:
            yield BUCKET, chunk_key, content


def _cut(volume: bytes, *, prefix: str) -> Iterator[tuple[str, bytes]]:
    bounds = [0, *_record_ends(volume)]
    for number, (start, end) in enumerate(pairwise(bounds), start=1):
        kind = "S" if number == 1 else "E" if end == len(volume) else "I"
        yield f"{prefix}-{number:03d}-{kind}", volume[start:end]


def _record_ends(volume: bytes) -> Iterator[int]:
    """Yield the end of each LDM record, by its size (ICD 2620010, 7.3.4)."""
    offset = _HEADER_BYTES
    while offset < len(volume):
        offset += 4 + abs(int.from_bytes(volume[offset : offset + 4], "big", signed=True))
        yield offset
