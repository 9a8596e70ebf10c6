"""Byte sources: a block-cached one for readers that seek, a seekable file over it, and one over bytes in memory.

Blocks are 64 KiB: real GOES ABI files keep their metadata in 2 to 5 of them, so a header costs that many requests.
"""

from __future__ import annotations

import io

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError

BLOCK_BYTES = 64 * 1024
MAX_BLOCKS = 64
"""Distinct blocks that one header read may touch (4 MiB): a hostile file cannot make us download it."""


class BytesSource:
    """An object held in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end."""
        return self._data[start : start + length]


class BlockCache:
    """A ByteSource that requests whole blocks of another one and keeps them.

    Raises ReadError(RESOURCE_LIMIT) when a read needs more than `max_blocks` distinct blocks.
    """

    def __init__(self, source: ByteSource, *, block_bytes: int = BLOCK_BYTES, max_blocks: int = MAX_BLOCKS) -> None:
        self._source = source
        self._block_bytes = block_bytes
        self._max_blocks = max_blocks
        self._blocks: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._source.size

    @property
    def blocks_read(self) -> int:
        """How many requests were made."""
        return len(self._blocks)

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end."""
        stop = min(start + length, self.size)
        if start >= stop:
            return b""
        first, last = start // self._block_bytes, (stop - 1) // self._block_bytes
        if last - first + 1 > self._max_blocks:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a header read of {length} bytes is too large")
        joined = b"".join(self._block(index) for index in range(first, last + 1))
        offset = start - first * self._block_bytes
        return joined[offset : offset + stop - start]

    def _block(self, index: int) -> bytes:
        found = self._blocks.get(index)
        if found is None:
            if len(self._blocks) >= self._max_blocks:
                raise ReadError(
                    MetadataIssue.RESOURCE_LIMIT, f"headers need more than {self._max_blocks} blocks of the object"
                )
            found = self._source.read(index * self._block_bytes, self._block_bytes)
            self._blocks[index] = found
        return found


class SeekableFile(io.RawIOBase):
    """A read-only file over a ByteSource, for libraries that want one (h5py)."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; as `io.RawIOBase.seek`."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill the buffer; returns the bytes read."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._source.read(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
