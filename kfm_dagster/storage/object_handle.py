"""An object of a bucket, read by range from an object store, or from a folder in its place.

Belongs here: the two handles, the heads that they return, and the codes of their failures. Does not belong here: which
objects may be opened (`objects.py`) and the meaning of the bytes (`readers/`).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from opentelemetry import trace

from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.errors import KfmError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.storage.s3 import LARGEST_SIZE, NO_TIME, Fetched, OddAnswerError, Store

if TYPE_CHECKING:
    from obstore import GetOptions

SINGLE_PART_BYTES = 8 * 1024 * 1024
"""Largest upload with a single part (AWS CLI `multipart_threshold`), whose ETag is the MD5 of the bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectHead:
    """Head of an object: size in bytes, ETag without quotes, media type, last write (UTC)."""

    size: int
    etag: str | None
    content_type: str | None
    last_modified: datetime


_HEAD = (Failpoint.OBJECT_HEAD_BEFORE, Failpoint.OBJECT_HEAD_AFTER)
_READ = (Failpoint.OBJECT_READ_BEFORE, Failpoint.OBJECT_READ_AFTER)


class ObjectReadError(KfmError):
    """An object cannot be read."""

    def __init__(self, code: IntegrityIssue, uri: str, why: str, *, next_step: str | None = None) -> None:
        self.code = code
        super().__init__(f"{uri} cannot be read", observed=why, next_step=next_step)


class UndeclaredObjectError(ObjectReadError):
    """An object that no pattern of the contract names; nothing was requested."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(IntegrityIssue.ACCESS_DENIED, uri, why)


class RemoteObject:
    """An object in an object store; once the ETag is known, all reads are of that version."""

    def __init__(
        self, store: Store, *, uri: str, key: str, size: int | None, etag: str | None, first: bytes = b""
    ) -> None:
        """Create the handle without a request. `first` are the object's first bytes, if known."""
        self._store = store
        self._key = key
        self.uri = uri
        self._size = size
        self._etag = None if etag is None else f'"{etag}"'
        self.first = first
        self.last_modified: datetime | None = None

    @property
    def size(self) -> int:
        """Size in bytes: the known size, else by a request."""
        return self.head().size if self._size is None else self._size

    def head(self) -> ObjectHead:
        """Size, ETag, media type: a HEAD request."""
        try:
            with request(self.uri, *_HEAD):
                return self._understood(self._store.get(self._key, options={"head": True}))
        except _EmptyRangeError:
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, "the store answers 416") from None

    def probe(self, length: int) -> tuple[ObjectHead, bytes]:
        """Head and first bytes by a ranged GET; an empty object also needs a HEAD."""
        try:
            with request(self.uri, *_HEAD):
                answer = self._store.get(self._key, options={"range": (0, length)})
                head = self._understood(answer)
                self.first = bytes(answer.bytes())
        except _EmptyRangeError:
            head = self.head()
            if head.size > 0:
                raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, "the store answers 416") from None
            return head, b""
        return head, self.first

    def read(self, start: int, length: int) -> bytes:
        """Read by a ranged GET, except for known first bytes, which need no request."""
        stop = min(start + length, self.size)
        if start >= stop:
            return b""
        known = self.first[start:stop]
        if len(known) == stop - start:
            return known
        try:
            with request(self.uri, *_READ):
                options: GetOptions = {"range": (start + len(known), stop), "if_match": self._etag}
                return known + bytes(self._store.get(self._key, options=options).bytes())
        except _EmptyRangeError:
            # Transient, because the next attempt begins with integrity-check, which gets the new size.
            why = "the object became shorter while it was read"
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, self.uri, why) from None

    def _understood(self, answer: obstore.GetResult | Fetched) -> ObjectHead:
        meta = answer.meta
        if meta["size"] > LARGEST_SIZE:
            raise OddAnswerError("no valid size")
        self._size = meta["size"]
        etag, content_type = meta["e_tag"], answer.attributes.get("Content-Type")
        # A weak ETag does not identify bytes (RFC 9110, section 8.8.1), so no request may depend on it.
        self._etag = None if etag is None or etag.startswith("W/") else etag
        self.last_modified = meta["last_modified"] if meta["last_modified"] > NO_TIME else None
        return ObjectHead(
            size=meta["size"],
            etag=None if etag is None else etag.removeprefix("W/").strip('"'),
            content_type=content_type,
            last_modified=meta["last_modified"],
        )


class _EmptyRangeError(Exception):
    """HTTP 416: the object ends before the range begins."""


@contextmanager
def request(uri: str, before: Failpoint, after: Failpoint) -> Iterator[None]:
    """Run the block of a request between failpoints; its errors become ObjectReadError.

    The text of a client's error is dropped, because it contains URLs, which may be signed. Any other exception of the
    client, caused by an odd answer, becomes an ObjectReadError, too, so that only this object fails, not the
    batch (SEC-09).
    """
    try:
        hit(before)
        with _span(before):
            yield
        hit(after)
    except KfmError:
        raise
    except OddAnswerError as odd:
        raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, uri, str(odd), next_step=odd.next_step) from None
    except (FileNotFoundError, NotFoundError):
        raise ObjectReadError(IntegrityIssue.MISSING_OBJECT, uri, "there is no such object") from None
    except (PermissionError, PermissionDeniedError, UnauthenticatedError):
        raise ObjectReadError(IntegrityIssue.ACCESS_DENIED, uri, "the store refuses access") from None
    except PreconditionError:
        # Transient, because the next attempt begins with integrity-check, which gets the new version.
        raise ObjectReadError(
            IntegrityIssue.STORAGE_UNAVAILABLE, uri, "the object was written again while it was read"
        ) from None
    except Exception as error:
        if not isinstance(error, (BaseError, OSError)):
            why = f"the store's answer is not understood ({type(error).__name__})"
            raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, uri, why) from None
        status = re.search(r"status code: (\d{3})", str(error))
        if status and status[1] == "416":
            raise _EmptyRangeError from None
        why = f"the store answers {status[1]}" if status else "the store does not answer"
        raise ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, uri, why) from None


@contextmanager
def _span(failpoint: Failpoint) -> Iterator[None]:
    """Trace a request in an operator's span; for an error, only the type is recorded."""
    if not trace.get_current_span().is_recording():
        yield
        return
    with trace.get_tracer("kfm_dagster").start_as_current_span(
        "nodd_sns.object_fetch",
        attributes={"nodd.request": failpoint.value},
        record_exception=False,
        set_status_on_exception=False,
    ) as opened:
        try:
            yield
        except BaseException as error:
            opened.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


class FolderObject:
    """A file ROOT/bucket/key as an object. Files up to 8 MiB are read whole, for their ETag.

    The file is opened at the first request and stays open, so that all answers are of the same file.
    """

    def __init__(self, root: Path, *, uri: str, bucket: str, key: str) -> None:
        """Create the handle without reading the file. `root` has no symbolic link."""
        self.uri = uri
        self._bucket_root = str(root / bucket)
        self._key = key
        self._descriptor: int | None = None
        self.first = b""  # a file is read in place
        self.last_modified: datetime | None = None

    @property
    def size(self) -> int:
        """Size in bytes."""
        with request(self.uri, *_HEAD):
            return os.fstat(self._opened()).st_size

    def head(self) -> ObjectHead:
        """Size, time, and the ETag that a store would report."""
        with request(self.uri, *_HEAD):
            return self._headed(self._opened())

    def probe(self, length: int) -> tuple[ObjectHead, bytes]:
        """Head and first bytes."""
        with request(self.uri, *_HEAD):
            descriptor = self._opened()
            return self._headed(descriptor), os.pread(descriptor, length, 0)

    def read(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), cut at the end of the file."""
        with request(self.uri, *_READ):
            return os.pread(self._opened(), length, start)

    def _headed(self, descriptor: int) -> ObjectHead:
        head = _folder_head(descriptor, os.fstat(descriptor))
        self.last_modified = head.last_modified
        return head

    def _opened(self) -> int:
        """Open for reading; refuse paths outside the bucket's folder, and irregular files."""
        if self._descriptor is not None:
            return self._descriptor
        path = os.path.realpath(f"{self._bucket_root}/{self._key}")
        if not is_inside(path, self._bucket_root):
            raise UndeclaredObjectError(self.uri, "the file is outside the bucket's folder")
        try:
            # Non-blocking, because opening a pipe for reading waits for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except PermissionError:
            raise ObjectReadError(IntegrityIssue.ACCESS_DENIED, self.uri, "the file is not readable") from None
        except OSError:
            raise ObjectReadError(IntegrityIssue.MISSING_OBJECT, self.uri, "there is no such file") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ObjectReadError(IntegrityIssue.MISSING_OBJECT, self.uri, "it is not a regular file")
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        return descriptor


ObjectHandle = RemoteObject | FolderObject
"""An open object (a `ByteSource`), for a single thread. All methods raise ObjectReadError.

`first` are the known first bytes, `last_modified` is the time of the last write, None until a head or probe reports it.
"""


def is_inside(path: str, folder: str) -> bool:
    """Return whether a resolved path is in the folder.

    Callers do not resolve the folder's last part. So if a bucket's folder is itself a link, no path is inside it.
    """
    return f"{path}/".startswith(f"{folder}/")


def file_etag(path: Path) -> str | None:
    """Return a file's ETag as a store would report it (the MD5); None for files above 8 MiB."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return _folder_head(descriptor, os.fstat(descriptor)).etag
    finally:
        os.close(descriptor)


def _folder_head(descriptor: int, status: os.stat_result) -> ObjectHead:
    return ObjectHead(
        size=status.st_size,
        etag=_md5(_FileVersion(descriptor, status)) if status.st_size <= SINGLE_PART_BYTES else None,
        content_type=None,
        last_modified=datetime.fromtimestamp(status.st_mtime, UTC),
    )


class _FileVersion:
    """An open file, equal to another open file of the same version."""

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        self.descriptor = descriptor
        self._identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FileVersion) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@lru_cache(maxsize=4096)
def _md5(version: _FileVersion) -> str:
    content = os.pread(version.descriptor, SINGLE_PART_BYTES, 0)
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
