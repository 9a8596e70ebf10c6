"""Verifying a bundle: the signature, every sum, and that there is no file more or less.

A bundle may come from strangers: nothing is followed out of the folder, no file is read whose size is wrong, and the
manifest is not believed before its signature holds. Nothing is written.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from kfm_dagster.errors import RefusedError
from kfm_dagster.exports.bundle.content import (
    FOLDERS,
    LAYOUT,
    MANIFEST,
    SIGNATURE,
    SUMS,
    BundleFaultError,
    Manifest,
    SummedFile,
)
from kfm_dagster.exports.bundle.signature import Signed, fingerprint_of, verify_detached

if TYPE_CHECKING:
    from pysequoia import Cert

_SMALL = 1 << 20
"""Bytes at most of manifest and signature, which are read whole; ours have 2 KB and less."""
_SHOWN = 5
"""Faults that are named at most, so that a line stays one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedRelease:
    """A bundle as it was signed: by whom and when, and what its manifest says."""

    signed: Signed
    manifest: Manifest

    @property
    def size(self) -> int:
        """Bytes of the files that the manifest sums."""
        return sum(file.size for file in self.manifest.files)


def verify_release(folder: Path, certificates: Sequence[Cert]) -> VerifiedRelease:
    """Check a bundle against the certificates that are trusted. Raises RefusedError naming the files at fault.

    Sizes and sums are compared only where the signature holds.
    """
    there, faults = _standing(folder)
    found = None
    try:
        # Without either of them nothing vouches for the other files; that it is missing is a fault already.
        if {MANIFEST, SIGNATURE} <= there:
            found = _signed(folder, certificates)
            # `SHA256SUMS` follows from the manifest, whose signature vouches for it, too.
            sums = found.manifest.sums()
            of_sums = SummedFile(path=SUMS, size=len(sums), sha256=hashlib.sha256(sums).hexdigest())
            expected = (*found.manifest.files, of_sums)
            present = (file for file in expected if file.path in there)
            faults += [fault for file in present for fault in _differences(folder, file)]
    except BundleFaultError as fault:
        faults.append(str(fault))
    if faults or found is None:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise RefusedError(
            "the release bundle is not as it was signed",
            observed=", ".join(faults[:_SHOWN]) + more,
            expected=f"every file as it was signed by {' or '.join(map(fingerprint_of, certificates))}",
            next_step="get the bundle again, or name the right certificate with --certificate",
        )
    return found


def _standing(folder: Path) -> tuple[frozenset[str], list[str]]:
    """Return the layout's files that are there as files, and what else is wrong with what is there."""
    there: set[str] = set()
    wrong: dict[str, str] = {}
    for path, entry in _entries(folder):
        if path in LAYOUT and entry.is_file(follow_symlinks=False):
            there.add(path)
        elif path in LAYOUT:
            wrong[path] = f"{path} is no regular file"
        elif path not in FOLDERS:
            wrong[path] = f"{path!a} does not belong there"
        elif not entry.is_dir(follow_symlinks=False):
            wrong[path] = f"{path} is no folder"
    for path in LAYOUT:
        if path not in there:
            wrong.setdefault(path, f"{path} is missing")
    return frozenset(there), [wrong[path] for path in sorted(wrong)]


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                yield entry.name, entry
                if entry.name in FOLDERS and entry.is_dir(follow_symlinks=False):
                    with os.scandir(entry.path) as inner:
                        yield from ((f"{entry.name}/{below.name}", below) for below in inner)
    except OSError as error:
        raise RefusedError(
            "the release bundle cannot be read", observed=f"{error.filename}: {error.strerror}"
        ) from None


def _signed(folder: Path, certificates: Sequence[Cert]) -> VerifiedRelease:
    content, signature = _small(folder, MANIFEST), _small(folder, SIGNATURE)
    try:
        signed = verify_detached(content, signature, certificates)
    except BundleFaultError as error:
        raise BundleFaultError(f"{SIGNATURE} does not hold for {MANIFEST}: {error}") from None
    try:
        manifest = Manifest.parse(content)
    except BundleFaultError as error:
        raise BundleFaultError(f"{MANIFEST} is none of a bundle: {error}") from None
    if manifest.signed_by != signed.fingerprint:
        raise BundleFaultError(f"{SIGNATURE} is of {signed.fingerprint}, and {MANIFEST} names {manifest.signed_by}")
    return VerifiedRelease(signed=signed, manifest=manifest)


def _differences(folder: Path, file: SummedFile) -> Iterator[str]:
    """Yield what is wrong with one file."""
    try:
        with _opened(folder, file.path) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != file.size:
                yield f"{file.path} has {size} bytes instead of {file.size}"
            elif hashlib.file_digest(opened, "sha256").hexdigest() != file.sha256:
                yield f"{file.path} has another SHA-256"
    except BundleFaultError as fault:
        yield str(fault)


def _small(folder: Path, path: str) -> bytes:
    with _opened(folder, path) as opened:
        content = opened.read(_SMALL + 1)
    if len(content) > _SMALL:
        raise BundleFaultError(f"{path} has more than {_SMALL} bytes")
    return content


def _opened(folder: Path, path: str) -> BufferedReader:
    """Open a regular file: no link is followed and no pipe waited for, should it have become one since."""
    try:
        handle = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BundleFaultError(f"{path} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BundleFaultError(f"{path} is no regular file")
    return os.fdopen(handle, "rb")
