"""Items that a run has just read back from the catalog, for the followers that come after it in the same process.

Every write is verified by reading it again; those bytes are what the place has, so followers need no request of their
own for them. Belongs here: what is kept and for how long. Does not belong here: reading (`publisher.py`), which Item
stands (`index.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

KEPT_BYTES = 32 * 1024 * 1024
"""Of files: a run of 5,000 units has 10 to 100 MB. What does not fit is read again."""


class ReadBackItems:
    """Files by path and content hash, the newest up to `kept_bytes`. Several threads may use it."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most = kept_bytes
        self._bytes = 0
        self._files: dict[tuple[str, str], bytes] = {}
        self._lock = Lock()

    def keep(self, path: str, content_sha256: str, content: bytes) -> None:
        """Keep a file that was read a moment ago, and that says an Item of this content."""
        with self._lock:
            self._bytes += len(content) - len(self._files.pop((path, content_sha256), b""))
            self._files[path, content_sha256] = content
            while self._bytes > self._most:
                self._bytes -= len(self._files.pop(next(iter(self._files))))

    def found(self, wanted: Mapping[str, str]) -> dict[str, bytes]:
        """Return the files of those paths that were kept with the content hash that is wanted."""
        with self._lock:
            return {path: self._files[path, digest] for path, digest in wanted.items() if (path, digest) in self._files}
