"""Verification of a bundle: the signature, every sum, and no missing or additional file.

A bundle may be hostile: no link is followed out of the folder, files of a wrong size are not read, and the manifest is
not trusted before its signature is verified. Nothing is written.
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
from kfm_dagster.exports.bundle.signing import Signed, fingerprint_of, verify_detached

if TYPE_CHECKING:
    from pysequoia import Cert

_SMALL = 1 << 20
"""Most bytes of manifest and signature, which are read whole; ours have at most 2 KB."""
_SHOWN = 5
"""Most faults in an error, which stays one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedRelease:
    """A verified bundle: its signer and time, and its manifest."""

    signed: Signed
    manifest: Manifest

    @property
    def size(self) -> int:
        """Bytes of the files that the manifest sums."""
        return sum(file.size for file in self.manifest.files)


def verify_release(folder: Path, certificates: Sequence[Cert]) -> VerifiedRelease:
    """Verify a bundle by trusted certificates. Raises RefusedError naming the files at fault.

    Sizes and sums are compared only if the signature is valid.
    """
    present_paths, faults = _standing(folder)
    release = None
    try:
        # Without either of them the other files cannot be verified; the missing file is a fault already.
        if {MANIFEST, SIGNATURE} <= present_paths:
            release = _signed(folder, certificates)
            # `SHA256SUMS` follows from the manifest, whose signature vouches for it, too.
            sums = release.manifest.sums()
            of_sums = SummedFile(path=SUMS, size=len(sums), sha256=hashlib.sha256(sums).hexdigest())
            expected = (*release.manifest.files, of_sums)
            present = (file for file in expected if file.path in present_paths)
            faults += [fault for file in present for fault in _differences(folder, file)]
    except BundleFaultError as fault:
        faults.append(str(fault))
    if faults or release is None:
        more = f", and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise RefusedError(
            "the release bundle is not as it was signed",
            observed=", ".join(faults[:_SHOWN]) + more,
            expected=f"every file as it was signed by {' or '.join(map(fingerprint_of, certificates))}",
            next_step="get the bundle again, or name the right certificate with --certificate",
        )
    return release


def _standing(folder: Path) -> tuple[frozenset[str], list[str]]:
    """Return the layout's regular files in the folder, and the faults of its entries."""
    regular: set[str] = set()
    faults: dict[str, str] = {}
    for path, entry in _entries(folder):
        if path in LAYOUT and entry.is_file(follow_symlinks=False):
            regular.add(path)
        elif path in LAYOUT:
            faults[path] = f"{path} is no regular file"
        elif path not in FOLDERS:
            faults[path] = f"{path!a} does not belong there"
        elif not entry.is_dir(follow_symlinks=False):
            faults[path] = f"{path} is no folder"
    for path in LAYOUT:
        if path not in regular:
            faults.setdefault(path, f"{path} is missing")
    return frozenset(regular), [faults[path] for path in sorted(faults)]


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
    """Yield the faults of one file."""
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
    """Open a regular file without following a link or blocking on a pipe that replaced it."""
    try:
        handle = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BundleFaultError(f"{path} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BundleFaultError(f"{path} is no regular file")
    return os.fdopen(handle, "rb")
