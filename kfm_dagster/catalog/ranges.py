"""An object of a store as a file that is read by ranges."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from typing_extensions import Buffer


class Ranges(io.RawIOBase):
    """A file of known size whose bytes [start, end) are fetched when they are read."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True: it can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: it can be read from any position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, without a request."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, in one request."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        content = self._fetch(self._at, self._at + length)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)
