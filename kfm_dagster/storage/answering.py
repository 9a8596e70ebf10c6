"""What a store of ours answers, in words: a refusal that a person has to mend, or an outage that passes by itself.

Belongs here: how errors of obstore are named, for every room that keeps files in a store, and whether one can be
written to at all. Does not belong here: the providers' objects (`object_handle.py`), whose faults are their unit's.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

from kfm_dagster.errors import DependencyUnavailableError, StoreAccessError
from kfm_dagster.storage.objects import open_store
from kfm_dagster.storage.s3 import NO_BUCKET, RedirectRefusedError, S3Bucket, reason

PROBE = ".kfm-preflight"
"""Empty object that shows that a bucket takes what is written: made once, and never written again."""

_MEND = "correct {setting}, the bucket or its permissions"
NO_ROOM = os.strerror(errno.ENOSPC)
"""What a folder's file system says, in obstore's text, too."""
MISSING, REFUSED = "there is no such bucket", "the store refuses access"


def refusal(error: BaseException) -> str | None:
    """Return why a store refuses, or None for an error that may pass by itself, and for a key that is not there."""
    if isinstance(error, (PermissionError, PermissionDeniedError, UnauthenticatedError)):
        return REFUSED
    if isinstance(error, RedirectRefusedError):
        return str(error)
    return MISSING if NO_BUCKET in str(error) else None


def unavailable(error: Exception, *, what: str, setting: str) -> DependencyUnavailableError:
    """Return the error that says what a store of ours does not do; obstore's own text may hold URLs that are signed."""
    if (why := refusal(error)) is not None:
        mend = error.next_step if isinstance(error, RedirectRefusedError) else _MEND.format(setting=setting)
        return StoreAccessError(f"{what} cannot be used", observed=why, next_step=mend)
    if NO_ROOM in str(error):
        return DependencyUnavailableError(
            f"the disk of {what} is full", observed=NO_ROOM, next_step=f"free some room, or correct {setting}"
        )
    return DependencyUnavailableError(f"{what} does not answer", observed=reason(error), next_step=f"check {setting}")


@contextmanager
def answering(what: str, setting: str) -> Iterator[None]:
    """Name what a store of ours does not do. `setting` is the variable that chooses the store.

    Raises StoreAccessError where it refuses, and DependencyUnavailableError where it does not answer. That a key is
    there already, or is not, is the caller's to know.
    """
    try:
        yield
    except AlreadyExistsError:
        raise
    except (OSError, NotFoundError) as error:
        if refusal(error) is None and NO_ROOM not in str(error):
            raise
        raise unavailable(error, what=what, setting=setting) from error
    except BaseError as error:
        raise unavailable(error, what=what, setting=setting) from error


def refuse_unwritable(location: str, *, what: str, setting: str, leave_nothing: bool = False) -> None:
    """Raise StoreAccessError or DependencyUnavailableError where a folder or s3://bucket/prefix takes no file.

    A folder is not made, and nothing is left in it; a bucket keeps one empty object, unless it is to `leave_nothing`.
    """
    named = f"{what} {location}"
    with answering(named, setting):
        if "://" not in location:
            _try_folder(Path(location), named, setting)
            return
        store = open_store(location)
        if leave_nothing and isinstance(store, S3Bucket):
            store.try_put(PROBE)
            return
        with suppress(AlreadyExistsError):
            store.put(PROBE, b"", mode="create")
        try:
            store.get(PROBE, options={"head": True})
        except (FileNotFoundError, NotFoundError):
            # A HEAD has no text that tells a bucket from a key, and the key has just been written.
            raise StoreAccessError(
                f"{named} cannot be used",
                observed="what is written cannot be read",
                next_step=_MEND.format(setting=setting),
            ) from None


def _try_folder(folder: Path, what: str, setting: str) -> None:
    try:
        # Permissions alone do not tell: a file system may be full, or read-only.
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise StoreAccessError(
            f"{what} cannot be used",
            observed=error.strerror,
            next_step=f"correct {setting} or the folder's permissions",
        ) from None
