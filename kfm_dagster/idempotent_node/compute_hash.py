"""The content hash: a digest over a node's inputs, parameters and code.

Belongs here: the published algorithm (idempotent-node pattern, "Deterministic Content Hashing") and the fingerprint of
the code. Does not belong here: the hash that run-state compares within a run (`run_state/record.py`).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kfm_dagster.errors import ConfigurationError

CODE_SUFFIXES = frozenset({".py", ".sql", ".yaml", ".json"})
"""Suffixes of the files that determine a node's work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestEntry:
    """An input: URI, size in bytes, and its version as an ETag, a checksum, or both."""

    uri: str
    size: int | None = None
    etag: str | None = None
    checksum: str | None = None

    def canonical(self) -> dict[str, Any]:
        """Return the members that are set, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeFingerprint:
    """Version of the code: commit or digest of the files, SHA-256 of the lockfile, image digest."""

    code_sha: str
    lockfile_hash: str
    image_digest: str | None = None

    def canonical(self) -> dict[str, str]:
        """Return the member `code` of the hashed document."""
        image = {} if self.image_digest is None else {"image": self.image_digest}
        return {"sha": self.code_sha, "lockfile": self.lockfile_hash, **image}


def compute_content_hash(
    inputs: Iterable[Mapping[str, Any]],
    params: Mapping[str, Any],
    code_sha: str,
    lockfile_hash: str,
    *,
    image_digest: str | None = None,
) -> str:
    """Return a SHA-256 over unordered inputs `{uri, size, etag|checksum}`, parameters and code.

    Raises ValueError for NaN and infinity, which JSON lacks.
    """
    # Entries with the same URI are sorted by their text, because their order must not matter.
    norm_inputs = sorted(map(dict, inputs), key=lambda entry: (entry["uri"], json.dumps(entry, sort_keys=True)))
    code = CodeFingerprint(code_sha=code_sha, lockfile_hash=lockfile_hash, image_digest=image_digest).canonical()
    blob = json.dumps({"inputs": norm_inputs, "params": dict(params), "code": code}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(blob.encode()).hexdigest()


@cache
def code_fingerprint(*folders: Path, lockfile: Path, image_digest: str | None = None) -> CodeFingerprint:
    """Fingerprint the code below folders of a checkout or an installation, once per process.

    In a Git checkout without changes below the folders, the fingerprint is the commit; otherwise (installed or changed
    code) it is the digest of the files. Raises ConfigurationError when the lockfile is missing.
    """
    if not lockfile.is_file():
        raise ConfigurationError(
            "the code's lockfile is missing", observed=lockfile, expected="the file that pins every dependency"
        )
    return CodeFingerprint(
        code_sha=_commit(folders) or files_digest(*folders),
        lockfile_hash=hashlib.sha256(lockfile.read_bytes()).hexdigest(),
        image_digest=image_digest,
    )


def files_digest(*folders: Path) -> str:
    """Return `files:` and the SHA-256 over the names and contents of the folders' code files."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in CODE_SUFFIXES and path.is_file()):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{folder.name}/{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return f"files:{digest.hexdigest()}"


def _commit(folders: Sequence[Path]) -> str | None:
    """Return the commit of the folders' files; None for changed files, or without a commit."""
    paths = [str(folder) for folder in folders]
    if not _git(folders[0], "ls-files", "--", *paths):
        return None  # outside of a repository, or ignored by it (a virtual environment)
    if _git(folders[0], "status", "--porcelain", "--", *paths) != "":
        return None
    return _git(folders[0], "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(  # noqa: S603, our own arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607, whichever git made the checkout
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
