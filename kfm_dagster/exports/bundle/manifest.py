"""`report_manifest.yaml`: every other file with its size and SHA-256, what was recorded, by which code, and who signs.

It says nothing that was not recorded - no clock is read - so the same data give the same bytes.
Belongs here: the document and its strict reading. Does not belong here: reading the files that it sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kfm_dagster.exports.bundle.content import MANIFEST, SUMMED

OPENING = b"# kfm export: manifest of a release bundle, version 1\n"
"""First line, by which the next export knows the bundle for its own."""


class BadManifestError(Exception):
    """A manifest is not one of ours; the text says why."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SummedFile(_Strict):
    """A file: path in the bundle, size in bytes, SHA-256 in hex."""

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Recorded(_Strict):
    """What was recorded: how much of each kind, and from when to when (RFC 3339; None where nothing was)."""

    transitions: int
    retries: int
    replays: int
    audit_events: int
    first: str | None
    last: str | None


class Manifest(_Strict):
    """The document."""

    version: Literal[1] = 1
    versions: dict[str, str]
    """Of this package, of the two configurations, and of the library that drew the figures."""
    code: dict[str, str]
    """Which code it was: commit or digest of the files, lockfile, image."""
    recorded: Recorded
    signed_by: Annotated[str, Field(pattern=r"^([0-9A-F]{40}|[0-9A-F]{64})$")]
    """Fingerprint of the signer's certificate."""
    files: list[SummedFile]

    def sums(self) -> bytes:
        """Return `SHA256SUMS`: every file and the manifest, as `sha256sum -c` reads them.

        The signature is not among them: it is another one each time, and is verified by what it says.
        """
        sums = {file.path: file.sha256 for file in self.files}
        sums[MANIFEST] = hashlib.sha256(self.as_yaml()).hexdigest()
        return "".join(f"{digest}  {path}\n" for path, digest in sums.items()).encode()

    def as_yaml(self) -> bytes:
        """Return the file's bytes."""
        return OPENING + yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=120).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read a manifest. Raises BadManifestError unless it is exactly what `as_yaml` writes, over the bundle's files.

        So no path leads out of the bundle, none comes twice, and no two readers of the YAML can read different things.
        """
        try:
            document: Any = yaml.safe_load(content)
        except (yaml.YAMLError, UnicodeDecodeError):
            raise BadManifestError("not YAML") from None
        try:
            found = cls.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise BadManifestError(f"{where}: {first['msg']}") from None
        _refuse_other_files([file.path for file in found.files])
        if found.as_yaml() != content:
            raise BadManifestError("not in the form that an export writes")
        return found


def _refuse_other_files(paths: Sequence[str]) -> None:
    if tuple(paths) == SUMMED:
        return
    odd = [path for number, path in enumerate(paths) if path not in SUMMED or path in paths[:number]]
    missing = [path for path in SUMMED if path not in paths]
    raise BadManifestError(
        f"it names {odd[0][:100]!a}" if odd else f"it names no {missing[0]}" if missing else "files in another order"
    )
