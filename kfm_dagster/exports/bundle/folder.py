"""The bundle's folder: written whole, renamed into place, verified by signature and sums.

A bundle may be hostile: no link is followed out of the folder, files of a wrong size are not read, and the manifest is
not trusted before its signature is verified. Verifying writes nothing. Does not belong here: the content of the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ConfigurationError, RefusedError
from kfm_dagster.exports.atomic_files import ForeignFileError, begins_with, write_document
from kfm_dagster.exports.bundle import content
from kfm_dagster.exports.bundle.content import BundleFaultError, Manifest, Recorded, Release, SummedFile, span
from kfm_dagster.exports.bundle.figures import library_version, state_transitions_svg, timeline_pdf
from kfm_dagster.exports.bundle.signing import BundleSigner, Signed, fingerprint_of, sign_detached, verify_detached
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE
from kfm_dagster.storage.publisher import synced

if TYPE_CHECKING:
    from pysequoia import Cert


_CERTIFICATE = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"
_SMALL = 1 << 20
"""Maximum bytes of manifest and of signature, because both are read whole; ours have at most 2 KB."""
_SHOWN = 5
"""Maximum faults in the single line of an error."""


def verify_release(folder: Path, certificates: Sequence[Cert]) -> tuple[Signed, Manifest]:
    """Return a bundle's signer and time, and its manifest, verified by trusted certificates.

    Raises RefusedError naming the files at fault. Sizes and sums are compared only if the signature is valid.
    """
    present_paths, faults = _present(folder)
    release = None
    try:
        # Without manifest or signature, the other files cannot be verified; the missing file is a fault already.
        if {content.MANIFEST, content.SIGNATURE} <= present_paths:
            release = _, manifest = _signed(folder, certificates)
            # The manifest determines `SHA256SUMS`, so the manifest's signature vouches for these sums, too.
            sums = manifest.sums()
            of_sums = SummedFile(path=content.SUMS, size=len(sums), sha256=hashlib.sha256(sums).hexdigest())
            expected = (*manifest.files, of_sums)
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


def _present(folder: Path) -> tuple[frozenset[str], list[str]]:
    """Return the layout's regular files in the folder, and the faults of its entries."""
    regular: set[str] = set()
    faults: dict[str, str] = {}
    try:
        for path, entry in _entries(folder):
            if path in content.LAYOUT and entry.is_file(follow_symlinks=False):
                regular.add(path)
            elif path in content.LAYOUT:
                faults[path] = f"{path} is not a regular file"
            elif path not in content.FOLDERS:
                faults[path] = f"{path!a} does not belong there"
            elif not entry.is_dir(follow_symlinks=False):
                faults[path] = f"{path} is not a folder"
    except OSError as error:
        raise RefusedError(
            "the release bundle cannot be read", observed=f"{error.filename}: {error.strerror}"
        ) from None
    for path in content.LAYOUT:
        if path not in regular:
            faults.setdefault(path, f"{path} is missing")
    return frozenset(regular), [faults[path] for path in sorted(faults)]


def _entries(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the entries of a bundle and of its folders, by path. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name, entry
            if entry.name in content.FOLDERS and entry.is_dir(follow_symlinks=False):
                with os.scandir(entry.path) as inner:
                    yield from ((f"{entry.name}/{below.name}", below) for below in inner)


def _signed(folder: Path, certificates: Sequence[Cert]) -> tuple[Signed, Manifest]:
    manifest_text, signature = _small(folder, content.MANIFEST), _small(folder, content.SIGNATURE)
    try:
        signed = verify_detached(manifest_text, signature, certificates)
    except BundleFaultError as error:
        raise BundleFaultError(f"{content.SIGNATURE} is not valid for {content.MANIFEST}: {error}") from None
    try:
        manifest = Manifest.parse(manifest_text)
    except BundleFaultError as error:
        raise BundleFaultError(f"{content.MANIFEST} is not a bundle's manifest: {error}") from None
    if manifest.signed_by != signed.fingerprint:
        raise BundleFaultError(
            f"{content.SIGNATURE} is of {signed.fingerprint}, but {content.MANIFEST} names {manifest.signed_by}"
        )
    return signed, manifest


def _differences(folder: Path, file: SummedFile) -> Iterator[str]:
    """Yield a file's faults."""
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
        text = opened.read(_SMALL + 1)
    if len(text) > _SMALL:
        raise BundleFaultError(f"{path} has more than {_SMALL} bytes")
    return text


def _opened(folder: Path, path: str) -> BufferedReader:
    """Open a regular file without following a link or blocking on a pipe that replaced it."""
    try:
        handle = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BundleFaultError(f"{path} cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BundleFaultError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def write_release(release: Release, folder: Path, signer: BundleSigner) -> Path:
    """Write a bundle in place of an earlier one; return its certificate, `FOLDER.cert.asc`.

    At any time the place has no bundle, or a whole bundle: the earlier or the new. Raises ForeignFileError before
    writing over anything but an export, ConfigurationError for a key whose signature gpg could not verify and for a
    folder that is not writable.
    """
    folder = folder.absolute()
    try:
        refuse_foreign(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _beside(folder) as part:
            _fill(part, release, signer)
            verify_release(part, [signer.certificate])
            certificate = folder.with_name(f"{folder.name}.cert.asc")
            write_document(certificate, str(signer.certificate), opening=_CERTIFICATE)
            _put(part, folder)
    except OSError as error:
        raise ConfigurationError(
            "the export cannot be written",
            observed=f"{folder}: {error.strerror or error}",
            next_step="name another folder with --out",
        ) from error
    return certificate


def _fill(part: Path, release: Release, signer: BundleSigner) -> None:
    for name in content.FOLDERS:
        (part / name).mkdir()
    parts: Mapping[str, Iterable[bytes]] = {
        content.MACHINE: [release.card.files[STATE_MACHINE]],
        content.PLAN: [release.card.files[REPLAY_PLAN]],
        content.DIMENSIONS: [_json(release.dim_report)],
        content.VALIDATION: [_json(release.validate_report)],
        content.AUDIT: release.audit_lines,
        content.TRANSITIONS_FIGURE: [state_transitions_svg(release.card.machine, release.transitions)],
        content.TIMELINE_FIGURE: [timeline_pdf(release.transitions, release.attempts)],
    }
    files = [_write(part, path, parts[path]) for path in content.SUMMED]
    manifest = _manifest(release, files, signer)
    _write(part, content.MANIFEST, [manifest.as_yaml()])
    _write(part, content.SUMS, [manifest.sums()])
    try:
        _write(part, content.SIGNATURE, [sign_detached(manifest.as_yaml(), signer.secret)])
    except BundleFaultError as error:
        raise ConfigurationError(
            "the key makes no signature that gpg verifies",
            observed=f"{signer.fingerprint}: {error}",
            expected="an OpenPGP version 4 key (gpg --quick-generate-key)",
            next_step="name another key with --key or KFM_SIGNING_KEY",
        ) from None
    for name in (*content.FOLDERS, "."):
        synced(part / name, os.fsync)


def _manifest(release: Release, files: list[SummedFile], signer: BundleSigner) -> Manifest:
    times = [transition.at for transition in release.transitions]
    times += [time for entry in release.attempts for time in (entry.at, entry.ended) if time is not None]
    period = span(times)
    kinds = [attempt.kind for attempt in release.attempts]
    return Manifest(
        versions={
            "kfm_dagster": __version__,
            "state_machine": release.card.machine.version,
            "replay_plan": release.card.replay_plan.version,
            **library_version(),
        },
        code=release.code.canonical(),
        recorded=Recorded(
            transitions=len(release.transitions),
            retries=kinds.count(AuditKind.RETRY),
            replays=kinds.count(AuditKind.REPLAY),
            audit_events=len(release.audit_lines),
            first=rfc3339(period[0]) if period else None,
            last=rfc3339(period[1]) if period else None,
        ),
        signed_by=signer.fingerprint,
        files=files,
    )


def _write(part: Path, path: str, chunks: Iterable[bytes]) -> SummedFile:
    digest, size = hashlib.sha256(), 0
    with (part / path).open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return SummedFile(path=path, size=size, sha256=digest.hexdigest())


def _json(report: Mapping[str, Any]) -> bytes:
    return (json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Create a temporary folder beside `folder`; it is removed unless it was renamed."""
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _put(part: Path, folder: Path) -> None:
    """Rename the new folder into its place.

    A rename cannot replace a folder with files, so an earlier bundle is renamed first, and renamed back if the new
    folder cannot take its place.
    """
    if not folder.exists():
        part.rename(folder)
    else:
        old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old)
    synced(folder.parent, os.fsync)


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace anything but an earlier bundle, whole or damaged, or an empty folder."""
    if not folder.is_symlink() and not folder.exists():
        return
    if folder.is_dir() and not folder.is_symlink():
        foreign = sorted(path for path, _ in _entries(folder) if path not in {*content.LAYOUT, *content.FOLDERS})
        if not foreign and (not any(folder.iterdir()) or begins_with(folder / content.MANIFEST, content.OPENING)):
            return
        observed = str(folder / foreign[0]) if foreign else f"{folder}, without {content.MANIFEST} of an export"
    else:
        observed = f"{folder}, not a folder"
    raise ForeignFileError(
        observed=observed,
        expected="an earlier bundle, or nothing",
        next_step="move it away, or name another folder with --out",
    )
