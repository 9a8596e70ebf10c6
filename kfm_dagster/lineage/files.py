"""Lineage files: staged out of readers' sight, then published whole under their final name, in a folder or a bucket.

Belongs here: durability and atomicity of one file. Does not belong here: which files there should be (`store.py`).
A file is staged durably before the database names it, and published after; both steps can be repeated.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import obstore
from obstore.exceptions import BaseError, NotFoundError

from kfm_dagster.seams import Seam, reach
from kfm_dagster.storage.objects import open_store

STAGING = ".staging"
"""Folder of staged files; readers' patterns (`openlineage/**`, `prov/**`) do not reach it."""

STORE_ERRORS = (OSError, BaseError)
"""What a folder or a bucket raises when it does not take or give a file."""


class LineageFiles(Protocol):
    """The lineage root. Names are those of staged files, hrefs are relative to the root. Raises STORE_ERRORS."""

    def stage(self, name: str, content: bytes) -> None:
        """Write a file where no reader looks; durable on return."""
        ...

    def publish(self, name: str, href: str) -> bool:
        """Move a staged file to its href, atomically; durable on return. False when neither place has it."""
        ...

    def read(self, href: str) -> bytes:
        """Return a published file."""
        ...

    def staged(self) -> Iterator[tuple[str, float]]:
        """Yield name and age in seconds of every staged file."""
        ...

    def discard(self, name: str) -> None:
        """Remove a staged file, if it is there."""
        ...


def open_files(location: str) -> LineageFiles:
    """Open a folder, made when first written to, or `s3://bucket/prefix`. Raises ConfigurationError."""
    return BucketFiles(open_store(location)) if "://" in location else FolderFiles(Path(location).absolute())


class FolderFiles:
    """Lineage in a folder. Files and folders are synced, because the database that names them is."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def stage(self, name: str, content: bytes) -> None:
        """Write beside, sync, rename: another writer of the same name never sees or leaves half a file."""
        reach(Seam.LINEAGE_STAGE_BEFORE)
        folder = self._root / STAGING
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{name}.{secrets.token_hex(4)}.partial"
        with partial.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)
        self._sync(PurePosixPath(STAGING))
        reach(Seam.LINEAGE_STAGE_AFTER)

    def publish(self, name: str, href: str) -> bool:
        """Rename, and sync the folders on the way."""
        reach(Seam.LINEAGE_PUBLISH_BEFORE)
        final = self._root / href
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self._root / STAGING / name).replace(final)
        except FileNotFoundError:
            if not final.exists():
                return False
        self._sync(PurePosixPath(href).parent)
        reach(Seam.LINEAGE_PUBLISH_AFTER)
        return True

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return (self._root / href).read_bytes()

    def staged(self) -> Iterator[tuple[str, float]]:
        """Yield name and age, unfinished files among them."""
        now = time.time()
        with suppress(FileNotFoundError):
            for entry in (self._root / STAGING).iterdir():
                with suppress(FileNotFoundError):  # published meanwhile
                    yield entry.name, now - entry.stat().st_mtime

    def discard(self, name: str) -> None:
        """Remove a staged file, if it is there."""
        (self._root / STAGING / name).unlink(missing_ok=True)

    def _sync(self, folder: PurePosixPath) -> None:
        for path in (folder, *folder.parents):
            descriptor = os.open(self._root / path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class BucketFiles:
    """Lineage in a bucket, where a PUT or COPY is atomic and durable by itself."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def stage(self, name: str, content: bytes) -> None:
        """PUT under the staging prefix."""
        reach(Seam.LINEAGE_STAGE_BEFORE)
        obstore.put(self._store, f"{STAGING}/{name}", content)
        reach(Seam.LINEAGE_STAGE_AFTER)

    def publish(self, name: str, href: str) -> bool:
        """COPY, then DELETE; repeated after a crash between the two, the copy is the same bytes."""
        reach(Seam.LINEAGE_PUBLISH_BEFORE)
        try:
            obstore.copy(self._store, f"{STAGING}/{name}", href)
        except (FileNotFoundError, NotFoundError):
            return self._exists(href)
        self.discard(name)
        reach(Seam.LINEAGE_PUBLISH_AFTER)
        return True

    def read(self, href: str) -> bytes:
        """Return a published file."""
        return bytes(obstore.get(self._store, href).bytes())

    def staged(self) -> Iterator[tuple[str, float]]:
        """List the staging prefix."""
        now = datetime.now(UTC)
        for page in obstore.list(self._store, prefix=STAGING):
            for meta in page:
                yield PurePosixPath(meta["path"]).name, (now - meta["last_modified"]).total_seconds()

    def discard(self, name: str) -> None:
        """Remove a staged file, if it is there."""
        with suppress(FileNotFoundError, NotFoundError):
            obstore.delete(self._store, f"{STAGING}/{name}")

    def _exists(self, href: str) -> bool:
        try:
            obstore.head(self._store, href)
        except (FileNotFoundError, NotFoundError):
            return False
        return True
