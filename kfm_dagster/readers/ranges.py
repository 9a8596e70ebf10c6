"""Byte sources: bytes in memory, a block cache over another source, and files over the cache for libraries that seek.

Belongs here: how bytes are requested and how many. Does not belong here: what the bytes mean.

Blocks are 64 KiB: real GOES ABI files keep their metadata in 2 to 5 of them, so a header costs that many requests.
"""

from __future__ import annotations

import io

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ByteSource, ReadError

BLOCK_BYTES = 64 * 1024
MAX_BLOCKS = 64
"""Distinct blocks that one header read may touch (4 MiB): a hostile file cannot make us download it."""
MAX_FILE_READS = 50_000
"""Reads that a library may make of one file; a real header takes about 100, a cycle in a corrupt one takes them all."""


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
    """A ByteSource that requests whole blocks of another one and keeps them; adjacent ones in one request.

    One cache serves one reader in one thread. Raises ReadError(RESOURCE_LIMIT) when more than `max_blocks` distinct
    blocks are needed, and ReadError(TRUNCATED_OBJECT) when the source returns fewer bytes than its size promises.
    """

    def __init__(self, source: ByteSource, *, block_bytes: int = BLOCK_BYTES, max_blocks: int = MAX_BLOCKS) -> None:
        self._source = source
        self._size = source.size
        self._block_bytes = block_bytes
        self._max_blocks = max_blocks
        self._blocks: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._size

    @property
    def blocks_read(self) -> int:
        """How many distinct blocks were fetched."""
        return len(self._blocks)

    def held(self, start: int, length: int) -> bytes | None:
        """Bytes [start, start + length), cut at the end of the object; None when that would take a request."""
        first = start // self._block_bytes
        offset = start - first * self._block_bytes
        if offset + length <= self._block_bytes and (block := self._blocks.get(first)) is not None:
            return block[offset : offset + length]
        indices = self._indices(start, length)
        if not all(index in self._blocks for index in indices):
            return None
        return b"".join(self._blocks[index] for index in indices)[offset : offset + length]

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end of the object."""
        found = self.held(start, length)
        if found is None:
            self._fetch([index for index in self._indices(start, length) if index not in self._blocks])
            found = self.held(start, length)
        return found or b""

    def _indices(self, start: int, length: int) -> range:
        stop = min(start + length, self._size)
        if not 0 <= start < stop:
            return range(0)
        indices = range(start // self._block_bytes, (stop - 1) // self._block_bytes + 1)
        if len(indices) > self._max_blocks:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"a header read of {length} bytes is too large")
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
        start, wanted = run[0] * self._block_bytes, len(run) * self._block_bytes
        data = self._source.read(start, wanted)
        if len(data) < min(wanted, self._size - start):
            raise ReadError(
                MetadataIssue.TRUNCATED_OBJECT, f"{len(data)} bytes at offset {start} of {self._size}, {wanted} asked"
            )
        for number, index in enumerate(run):
            self._blocks[index] = data[number * self._block_bytes : (number + 1) * self._block_bytes]


class SeekableFile(io.RawIOBase):
    """A read-only file over a ByteSource, for libraries that want one.

    Raises ReadError(RESOURCE_LIMIT) after MAX_FILE_READS reads.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source
        self._position = 0
        self._reads = 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; as `io.RawIOBase.seek`."""
        base = 0
        if whence != io.SEEK_SET:
            base = self._position if whence == io.SEEK_CUR else self._source.size
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        """Fill the buffer; returns the bytes read."""
        self._reads += 1
        if self._reads > MAX_FILE_READS:
            raise ReadError(MetadataIssue.RESOURCE_LIMIT, f"the headers took more than {MAX_FILE_READS} reads")
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self._bytes(len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _bytes(self, length: int) -> bytes:
        return self._source.read(self._position, length)


class NotHeldError(Exception):
    """A read needs blocks that the cache does not hold."""


class HeldFile(SeekableFile):
    """A file over the blocks that a cache already holds; it never makes a request.

    A read of anything else raises NotHeldError and is remembered in `wanted`. A library with a global lock (libhdf5)
    reads through this, and the caller fetches `wanted` after the library has returned and the lock is free: otherwise
    one thread's request would stop the headers of all others.
    """

    def __init__(self, cache: BlockCache) -> None:
        super().__init__(cache)
        self._cache = cache
        self.wanted: tuple[int, int] | None = None

    def _bytes(self, length: int) -> bytes:
        data = self._cache.held(self._position, length)
        if data is None:
            self.wanted = (self._position, length)
            raise NotHeldError
        return data
