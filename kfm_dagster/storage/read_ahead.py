"""Read-ahead: first bytes of objects that a stage fetched, for the next stage of the run.

The bytes are in an unnamed file, so that thousands of objects use page cache instead of process memory. Does not belong
here: which bytes are read (`ingest/nodes.py`), requests (`object_handle.py`).
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from contextlib import suppress
from functools import cached_property
from typing import IO

LIMIT_BYTES = 1024**3
"""Limit of a batch; bytes beyond it are requested again. The largest batch, 5,000 NEXRAD volumes, takes 640 MiB."""

_Span = tuple[int, int]


class ReadAhead:
    """First bytes by version of an object. Thread-safe; a missing entry costs a request."""

    def __init__(self, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._spans: dict[tuple[str, str], _Span] = {}
        self._lock = threading.Lock()

    def keep(self, uri: str, etag: str | None, content: bytes) -> None:
        """Store an object's first bytes; without an ETag, which identifies a version, do nothing."""
        if etag is None or not content:
            return
        with self._lock, suppress(OSError):  # a full disk
            if self._used + len(content) <= self._limit:
                os.pwrite(self._file.fileno(), content, self._used)
                self._spans[uri, etag] = (self._used, len(content))
                self._used += len(content)

    def take(self, uri: str, etag: str | None) -> bytes:
        """Return and remove the bytes of that version of the object; empty if there are none."""
        with self._lock:
            span = self._spans.pop((uri, etag), None) if etag is not None else None
            return b"" if span is None else os.pread(self._file.fileno(), span[1], span[0])

    @cached_property
    def _file(self) -> IO[bytes]:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, closed with this object, however its stage ends
        weakref.finalize(self, file.close)
        return file
