"""Byte sources: bytes in memory, and a block cache over another source.

Belongs here: the ranges and number of requests. Does not belong here: the meaning of the bytes.

Blocks are 64 KiB: real GOES ABI files have their metadata in 2 to 5 such blocks, so a header takes at most 5 requests.
"""

from __future__ import annotations

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import BLOCK_BYTES, ByteSource, ReadError

MAX_BLOCKS = 64
"""Maximum distinct blocks that reading a header requests (4 MiB), so a hostile file cannot force its download."""


class BytesSource:
    """An object held in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes [start, start + length), cut at the end."""
        return self._data[start : start + length]


class BlockCache:
    """Cache of another ByteSource's blocks; adjacent blocks take one request.

    A read in one of the last `tail_blocks` blocks requests all of these; the object's first block is never among them.
    A cache serves one reader in one thread. Raises ReadError(RESOURCE_LIMIT) when more than `max_blocks` distinct
    blocks are needed, and ReadError(TRUNCATED_OBJECT) when the source returns fewer bytes than its size promises.
    """

    def __init__(
        self,
        source: ByteSource,
        *,
        block_bytes: int = BLOCK_BYTES,
        max_blocks: int = MAX_BLOCKS,
        tail_blocks: int = 0,
    ) -> None:
        self._source = source
        self.size = source.size
        """Size in bytes."""
        self._block_bytes = block_bytes
        self._max_blocks = max_blocks
        self._blocks: dict[int, bytes] = {}
        end = -(-self.size // block_bytes)
        self._tail = range(max(end - tail_blocks, 1), end)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes [start, start + length), cut at the end of the object."""
        first, offset = divmod(start, self._block_bytes)
        if offset + length <= self._block_bytes and (block := self._blocks.get(first)) is not None:
            return block[offset : offset + length]
        indices = self._indices(start, length)
        missing = [index for index in indices if index not in self._blocks]
        if missing:
            self._fetch(sorted({*missing, *self._tail}) if missing[-1] in self._tail else missing)
        return b"".join(self._blocks[index] for index in indices)[offset : offset + length]

    def _indices(self, start: int, length: int) -> range:
        stop = min(start + length, self.size)
        if not 0 <= start < stop:
            return range(0)
        indices = range(start // self._block_bytes, (stop - 1) // self._block_bytes + 1)
        if len(indices) > self._max_blocks:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a read of {length} bytes is too large for a header")
        return indices

    def _fetch(self, missing: list[int]) -> None:
        if len(self._blocks) + len(missing) > self._max_blocks:
            raise ReadError(
                MetadataIssue.RESOURCE_LIMIT, f"headers need more than {self._max_blocks} blocks of the object"
            )
        run = [missing[0]]
        for index in [*missing[1:], -1]:
            if index == run[-1] + 1:
                run.append(index)
                continue
            self._fetch_run(run)
            run = [index]

    def _fetch_run(self, run: list[int]) -> None:
        start, length = run[0] * self._block_bytes, len(run) * self._block_bytes
        data = self._source.read(start, length)
        if len(data) < min(length, self.size - start):
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT,
                f"{len(data)} bytes at offset {start} of {self.size}, {length} requested",
            )
        for number, index in enumerate(run):
            self._blocks[index] = data[number * self._block_bytes : (number + 1) * self._block_bytes]
