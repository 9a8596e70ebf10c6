"""Lineage files: published whole under their final name, in a folder or a bucket.

Belongs here: durability and atomicity of one file. Does not belong here: which files there should be, and when one is
retried (`batches.py`). A file's bytes are in the database until it is published, so publishing can be repeated.
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from obstore.exceptions import BaseError

from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.private import private_folder

STAGING = ".staging"
"""Folder of unfinished files, outside readers' patterns (`openlineage/**`, `prov/**`)."""

LEFTOVER_SECONDS = 24 * 3600.0
"""Age of an unfinished file of a dead process; writing one takes well under a second."""

STORE_ERRORS = (OSError, BaseError)
"""Errors of a folder or a bucket that cannot write or read a file."""


class FolderFiles:
    """Lineage in a folder. Files are synced, because the database that names them is synced."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def publish(self, href: str, content: bytes) -> None:
        """Write a partial file, sync, rename: no reader or other writer ever sees half a file."""
        partial = self._staging() / f"{secrets.token_hex(16)}.partial"
        try:
            hit(Failpoint.LINEAGE_STAGE_BEFORE)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            hit(Failpoint.LINEAGE_STAGE_AFTER)
            final = self._root / href
            private_folder(final.parent)
            hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
            partial.replace(final)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._sync(PurePosixPath(href).parent)
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return (self._root / href).read_bytes()

    def _staging(self) -> Path:
        """Return the folder of unfinished files, after removing the files of dead processes."""
        folder = self._root / STAGING
        private_folder(folder)
        for leftover in folder.glob("*.partial"):
            with suppress(FileNotFoundError):  # another process finished or removed it
                if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                    leftover.unlink()
        return folder

    def _sync(self, folder: PurePosixPath) -> None:
        for path in (folder, *folder.parents):
            descriptor = os.open(self._root / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class BucketFiles:
    """Lineage in a bucket, where a PUT is atomic and durable by itself."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def publish(self, href: str, content: bytes) -> None:
        """PUT the file."""
        hit(Failpoint.LINEAGE_PUBLISH_BEFORE)
        self._store.put(href, content)
        hit(Failpoint.LINEAGE_PUBLISH_AFTER)

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return bytes(self._store.get(href).bytes())


LineageFiles = FolderFiles | BucketFiles
"""The lineage root; hrefs are relative to it. Raises STORE_ERRORS. The same bytes may be published again."""


def open_files(location: str) -> LineageFiles:
    """Open a folder (created on first write) or `s3://bucket/prefix`. Raises ConfigurationError."""
    return BucketFiles(open_store(location)) if "://" in location else FolderFiles(Path(location).absolute())
