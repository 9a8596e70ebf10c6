"""Writing a bundle: in a temporary folder, summed, signed, verified, then renamed.

Belongs here: bytes and folders. Does not belong here: the content of the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kfm_dagster import __version__
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.atomic_files import ForeignFileError, begins_with, sync_folder, write_document
from kfm_dagster.exports.bundle import content
from kfm_dagster.exports.bundle.content import (
    OPENING,
    AttemptKind,
    BundleFaultError,
    Manifest,
    Recorded,
    Release,
    SummedFile,
    span,
)
from kfm_dagster.exports.bundle.figures import library_version, state_transitions_svg, timeline_pdf
from kfm_dagster.exports.bundle.signing import BundleSigner, sign_detached
from kfm_dagster.exports.bundle.verification import verify_release
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE

_CERTIFICATE = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n"


def write_release(release: Release, folder: Path, signer: BundleSigner) -> Path:
    """Write a bundle in place of an earlier one; return its certificate, `FOLDER.cert.asc`.

    At any time the place has no bundle, the earlier one, or this one, whole. Raises ForeignFileError before writing
    over anything but an export, ConfigurationError for a configuration that is not a state machine, a key whose
    signature gpg could not verify, and a folder that is not writable.
    """
    folder = folder.absolute()
    try:
        _refuse_foreign(folder)
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
        sync_folder(part / name)


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
            retries=kinds.count(AttemptKind.RETRY),
            replays=kinds.count(AttemptKind.REPLAY),
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

    A rename cannot replace a folder with files, so an earlier bundle is renamed first, and renamed back if the new one
    cannot take its place.
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
    sync_folder(folder.parent)


def _refuse_foreign(folder: Path) -> None:
    """Refuse to replace anything but an earlier bundle, whole or damaged, or an empty folder."""
    if not folder.is_symlink() and not folder.exists():
        return
    if folder.is_dir() and not folder.is_symlink():
        foreign = sorted(path for path in _below(folder) if path not in {*content.LAYOUT, *content.FOLDERS})
        if not foreign and (not any(folder.iterdir()) or begins_with(folder / content.MANIFEST, OPENING)):
            return
        observed = str(folder / foreign[0]) if foreign else f"{folder}, with no {content.MANIFEST} of an export"
    else:
        observed = f"{folder}, no folder"
    raise ForeignFileError(
        observed=observed,
        expected="an earlier bundle, or nothing",
        next_step="move it away, or name another folder with --out",
    )


def _below(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        yield path.name
        if path.name in content.FOLDERS and path.is_dir() and not path.is_symlink():
            yield from (f"{path.name}/{inner.name}" for inner in path.iterdir())
