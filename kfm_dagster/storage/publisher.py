"""Publishers: write files to a folder or an object store, each file atomically.

A reader sees the old or the new file, whole. In a folder, files are written to `.staging/`, made durable once per batch
and renamed; in an object store a PUT is atomic, so files are staged in memory. Does not belong here: files' content.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from obstore.exceptions import BaseError
from typing_extensions import Buffer

from kfm_dagster.contracts.issues import StacIssue
from kfm_dagster.errors import ConfigurationError, DependencyUnavailableError
from kfm_dagster.failpoints import Failpoint, hit, with_context
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.private import private_folder
from kfm_dagster.storage.s3 import Store


class Ranges(io.RawIOBase):
    """A file of known size that fetches bytes only when they are read."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        super().__init__()
        self._fetch = fetch
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True: the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the file can be read from any position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, without a request."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill the buffer, in a single request."""
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        content = self._fetch(self._at, self._at + length)
        view[: len(content)] = content
        self._at += len(content)
        return len(content)


STAGING = ".staging"
FSYNC_LIMIT = 16
"""Maximum files that are synced individually (0.3 ms each). More files are synced by syncfs (at least 2.5 ms)."""
CONCURRENT_REQUESTS = 128
_MEDIA_TYPES = {
    "jsonld": "application/ld+json",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
"""Media types by suffix; all other files are JSON."""
RANGE_BYTES = 64 * 1024
"""Minimum size of a range request, because the following bytes are often read next."""


Level = Mapping[str, bytes | None]
"""Files by path; None for a file that must not exist."""


class PublishError(DependencyUnavailableError):
    """Published files cannot be read or written.

    `code` names the failure, `reason` describes it.
    """

    def __init__(self, code: StacIssue, reason: str) -> None:
        self.code = code
        self.reason = reason
        places = "KFM_CATALOG_URL, KFM_LINEAGE_URL or KFM_VIRTUAL_URL"
        super().__init__(observed=reason, next_step=f"check the files' folder or bucket ({places})")


class Staged(NamedTuple):
    """Files that no reader sees yet."""

    promote: Callable[[Sequence[str]], Mapping[str, PublishError]]
    """Renames or uploads files so that readers see them, each atomically, in any order; returns errors by path."""
    settle: Callable[[], None]
    """Makes the names of the promoted files durable against a power loss. Raises PublishError."""


def open_publisher(url: str, *, setting: str = "KFM_CATALOG_URL", private: bool = False) -> Publisher:
    """Open a folder or s3://bucket/prefix for publishing.

    Raises ConfigurationError, which names `setting`, for another URL. With `private`, created folders are for this user
    alone; a catalog's folders may be read by a web server.
    """
    if url.startswith("s3://"):
        return ObjectStorePublisher(open_store(url))
    if "://" in url:
        raise ConfigurationError(
            f"{setting} has an unknown scheme", observed=url, expected="a folder or s3://bucket/prefix"
        )
    return FolderPublisher(Path(url).absolute(), private=private)


def publish(publisher: Publisher, levels: Sequence[Level]) -> None:
    """Write files durably, each atomically, level after level. Raises PublishError.

    Files that must not exist are removed afterwards, from the last level to the first.
    """
    written = [{path: content for path, content in level.items() if content is not None} for level in levels]
    files = {path: content for level in written for path, content in level.items()}
    if files:
        with publisher.staging(files) as staged:
            for level in written:
                for failure in staged.promote(list(level)).values():
                    raise failure
            staged.settle()
    if absent := [path for level in reversed(levels) for path, content in level.items() if content is None]:
        publisher.remove(absent)


class FolderPublisher:
    """Files of a folder, which several processes may write at the same time."""

    def __init__(self, root: Path, *, private: bool = False) -> None:
        self._root = root
        self._make = private_folder if private else partial(Path.mkdir, parents=True, exist_ok=True)

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Return the content of each path that has a file; an unreadable file counts as absent."""
        contents: dict[str, bytes] = {}
        for path in paths:
            with suppress(OSError), (self._root / path).open("rb") as file:
                contents[path] = file.read()
        return contents

    def open(self, path: str, *, size: int) -> BinaryIO:  # noqa: ARG002, an object store needs it
        """Open a file, to read parts of it."""
        with _in_folder():
            return (self._root / path).open("rb")

    @contextmanager
    def staging(self, files: Mapping[str, bytes]) -> Iterator[Staged]:
        """Stage files durably in a folder of this batch; discard unpromoted files at the end."""
        with _in_folder():
            folder, lock = self._staging_folder()
        try:
            staged = {path: folder / str(number) for number, path in enumerate(files)}
            with _in_folder():
                hit(Failpoint.CATALOG_STAGE_BEFORE)
                self._write(staged, files)
                hit(Failpoint.CATALOG_STAGE_AFTER)
            folders: set[Path] = set()
            yield Staged(partial(self._promote, staged, folders), partial(self._settle, folders))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files in a folder; no names if the folder is missing."""
        return [entry.name for entry in self._entries(folder) if entry.is_file()]

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders in a folder; no names if that folder is missing."""
        return [entry.name for entry in self._entries(folder) if entry.is_dir()]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        with _in_folder(), suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            return list(entries)
        return []

    def remove(self, paths: Sequence[str]) -> None:
        """Unlink existing files, then emptied folders, durably against a power loss."""
        folders = {parent for path in paths for parent in (self._root / path).parents if parent != self._root}
        folders = {folder for folder in folders if folder.is_relative_to(self._root)}
        with _in_folder():
            for path in paths:
                hit(Failpoint.CATALOG_REMOVE_BEFORE)
                (self._root / path).unlink(missing_ok=True)
                hit(Failpoint.CATALOG_REMOVE_AFTER)
            for folder in sorted(folders, reverse=True):  # deeper folders first
                with suppress(OSError):
                    folder.rmdir()
            for folder in (*folders, self._root):
                if folder.exists():
                    synced(folder, os.fsync)

    def _write(self, staged: Mapping[str, Path], files: Mapping[str, bytes]) -> None:
        syncfs = _syncfs() if len(staged) > FSYNC_LIMIT else None
        for path, target in staged.items():
            with target.open("xb") as file:
                file.write(files[path])
                if syncfs is None:
                    file.flush()
                    os.fsync(file.fileno())
        if syncfs is not None:
            synced(next(iter(staged.values())).parent, syncfs)

    def _promote(
        self, staged: Mapping[str, Path], folders: set[Path], paths: Sequence[str]
    ) -> Mapping[str, PublishError]:
        """Rename files into place, and add their folders to `folders`."""
        failures: dict[str, PublishError] = {}
        for path in paths:
            target = self._root / path
            try:
                with _in_folder():
                    if target.parent not in folders:
                        self._make(target.parent)
                        folders.add(target.parent)
                    hit(Failpoint.CATALOG_PROMOTE_BEFORE)
                    staged[path].rename(target)
                    hit(Failpoint.CATALOG_PROMOTE_AFTER)
            except PublishError as error:
                failures[path] = error
        return failures

    def _settle(self, folders: set[Path]) -> None:
        """Sync the folders of the promoted files and their parents, which may be new as well."""
        parents = {parent for folder in folders for parent in folder.parents if parent.is_relative_to(self._root)}
        with _in_folder():
            hit(Failpoint.CATALOG_SETTLE_BEFORE)
            for folder in sorted(folders | parents, reverse=True):
                synced(folder, os.fsync)
            hit(Failpoint.CATALOG_SETTLE_AFTER)

    def _staging_folder(self) -> tuple[Path, int]:
        """Create a locked folder; first remove the unlocked folders of killed processes."""
        parent = self._root / STAGING
        self._make(parent)
        for leftover in parent.iterdir():
            with suppress(OSError):
                lock = os.open(leftover, os.O_RDONLY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(leftover, ignore_errors=True)
                finally:
                    os.close(lock)
        while True:
            folder = Path(tempfile.mkdtemp(dir=parent))
            # Until the folder is locked, another process may remove it as a leftover.
            with suppress(FileNotFoundError):
                lock = os.open(folder, os.O_RDONLY)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if folder.exists():
                    return folder, lock
                os.close(lock)


class ObjectStorePublisher:
    """Files as objects of a bucket."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Return the content of existing objects by path. Raises PublishError(STORAGE_UNAVAILABLE)."""
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            contents = zip(paths, pool.map(self._get, paths), strict=True)
            return {path: content for path, content in contents if content is not None}

    def open(self, path: str, *, size: int) -> BinaryIO:
        """Open an object; its first read makes the first request."""
        return cast("BinaryIO", io.BufferedReader(Ranges(partial(self._get_range, path), size), RANGE_BYTES))

    @contextmanager
    def staging(self, files: Mapping[str, bytes]) -> Iterator[Staged]:
        """Keep files in memory until they are promoted."""
        # An answered PUT is durable, so settling has no work.
        yield Staged(partial(self._promote, files), lambda: None)

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the objects directly below a prefix."""
        return [entry["path"].rpartition("/")[2] for entry in self._listed(folder)["objects"]]

    def folders(self, folder: str) -> Sequence[str]:
        """Return the distinct names of the prefixes directly below a prefix."""
        return [prefix.rstrip("/").rpartition("/")[2] for prefix in self._listed(folder)["common_prefixes"]]

    def _listed(self, folder: str) -> Any:
        with _in_store():
            return self._store.list_with_delimiter(folder)

    def remove(self, paths: Sequence[str]) -> None:
        """Delete objects; a bucket has no folders."""
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            list(pool.map(with_context(self._delete), paths))

    def _delete(self, path: str) -> None:
        with _in_store(), suppress(FileNotFoundError):
            hit(Failpoint.CATALOG_REMOVE_BEFORE)
            self._store.delete(path)
            hit(Failpoint.CATALOG_REMOVE_AFTER)

    def _promote(self, files: Mapping[str, bytes], paths: Sequence[str]) -> Mapping[str, PublishError]:
        """PUT files, several at a time."""
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            results = zip(paths, pool.map(with_context(partial(self._put, files)), paths), strict=True)
            return {path: failure for path, failure in results if failure is not None}

    def _put(self, files: Mapping[str, bytes], path: str) -> PublishError | None:
        try:
            with _in_store():
                hit(Failpoint.CATALOG_PROMOTE_BEFORE)
                kind = _MEDIA_TYPES.get(path.rpartition(".")[2], "application/json")
                self._store.put(path, files[path], attributes={"Content-Type": kind})
                hit(Failpoint.CATALOG_PROMOTE_AFTER)
        except PublishError as error:
            return error
        return None

    def _get_range(self, path: str, start: int, end: int) -> bytes:
        with _in_store():
            return bytes(self._store.get(path, options={"range": (start, end)}).bytes())

    def _get(self, path: str) -> bytes | None:
        with _in_store(), suppress(FileNotFoundError):
            return bytes(self._store.get(path).bytes())
        return None


Publisher = FolderPublisher | ObjectStorePublisher
"""Storage of files; paths are relative to its root. Methods raise PublishError, except `read` of a folder."""


@contextmanager
def _in_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Without the error's path, which is absolute and differs between runs.
        raise PublishError(StacIssue.IO_ERROR, error.strerror or type(error).__name__) from error


@contextmanager
def _in_store() -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError) as error:
        raise PublishError(StacIssue.STORAGE_UNAVAILABLE, error_text(error, 200)) from error


def synced(folder: Path, sync: Callable[[int], int | None]) -> None:
    """Make a folder durable: `os.fsync` syncs the names in it, `syncfs` its whole file system."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if sync(handle):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(handle)


@cache
def _syncfs() -> Callable[[int], int] | None:
    """Return syncfs(2) of Linux, which Python does not wrap; None elsewhere."""
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
