"""Errors of our stores: refusals that a person must correct, and outages that pass.

Belongs here: the translation of obstore's errors, and the check that a store accepts files. Does not belong here: the
providers' objects (`object_handle.py`), whose faults fail their unit.
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
"""Empty object that proves that a bucket can be written; created once and never overwritten."""

_MEND = "correct {setting}, the bucket or its permissions"
NO_ROOM = os.strerror(errno.ENOSPC)
"""The system's text for a full disk, which the texts of obstore's errors contain."""
MISSING, REFUSED = "there is no such bucket", "the store refuses access"


def refusal(error: BaseException) -> str | None:
    """Return why a store refuses; None for a missing key, and for errors that may pass."""
    if isinstance(error, (PermissionError, PermissionDeniedError, UnauthenticatedError)):
        return REFUSED
    if isinstance(error, RedirectRefusedError):
        return str(error)
    return MISSING if NO_BUCKET in str(error) else None


def unavailable(error: Exception, *, what: str, setting: str) -> DependencyUnavailableError:
    """Return the error for a failed store, without obstore's text and its signed URLs."""
    if (why := refusal(error)) is not None:
        mend = error.next_step if isinstance(error, RedirectRefusedError) else _MEND.format(setting=setting)
        return StoreAccessError(f"{what} cannot be used", observed=why, next_step=mend)
    if NO_ROOM in str(error):
        return DependencyUnavailableError(
            f"the disk of {what} is full", observed=NO_ROOM, next_step=f"free disk space, or correct {setting}"
        )
    return DependencyUnavailableError(f"{what} does not answer", observed=reason(error), next_step=f"check {setting}")


@contextmanager
def answering(what: str, setting: str) -> Iterator[None]:
    """Translate the errors of a store; the environment variable `setting` names the store.

    Raises StoreAccessError if the store refuses, and DependencyUnavailableError if it is full or does not answer. All
    other OSErrors, and errors about an existing or a missing key, propagate unchanged.
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
    """Refuse a folder or s3://bucket/prefix that accepts no file. Raises as `answering` does.

    A folder is not created, and no file is left in it. A bucket keeps an empty object, except with `leave_nothing`.
    """
    target = f"{what} {location}"
    with answering(target, setting):
        if "://" not in location:
            _try_folder(Path(location), target, setting)
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
            # A HEAD cannot distinguish a missing bucket from a missing key; after the put, either is a fault.
            raise StoreAccessError(
                f"{target} cannot be used",
                observed="written objects cannot be read",
                next_step=_MEND.format(setting=setting),
            ) from None


def _try_folder(folder: Path, what: str, setting: str) -> None:
    try:
        # Checking permissions is not enough, because a file system may be full, or read-only.
        existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise StoreAccessError(
            f"{what} cannot be used",
            observed=error.strerror,
            next_step=f"correct {setting} or the folder's permissions",
        ) from None
