"""Content of a release from card, reports and audit, and `report_manifest.yaml`.

The manifest has only recorded facts and reads no clock, so the same data give the same bytes. Does not belong here:
writing and verifying the files (`folder.py`), drawing (`figures.py`), and signing (`signing.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError

from kfm_dagster.configs import Strict
from kfm_dagster.errors import RefusedError
from kfm_dagster.exports.validation import dimensional_closure, validate_report
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.audit import AuditKind, as_jsonl, verify_chain
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE, Card
from kfm_dagster.stages.store import StageStore

EVER = datetime(2000, 1, 1, tzinfo=UTC)
"""A time before all records."""
PUBLISHABLE_P_DIM = 1.0
"""Every quantity closes dimensionally (pipeline card, chapter 7: a bundle is published with p_dim = 1.0)."""


BUNDLE = "PTN_EXPORT"
"""Folder of the bundle; this and the names below are from the pipeline card, chapter 7, section XIII."""
MACHINE = f"configs/{STATE_MACHINE}"
PLAN = f"configs/{REPLAY_PLAN}"
DIMENSIONS = "reports/check_dim_report.json"
VALIDATION = "reports/validate_report.json"
AUDIT = "audit.jsonl"
TRANSITIONS_FIGURE = "figs/state_transitions.svg"
TIMELINE_FIGURE = "figs/retry_replay_timeline.pdf"
MANIFEST = "report_manifest.yaml"
SIGNATURE = "SIGNATURE.asc"
SUMS = "SHA256SUMS"
"""Not in the card: for users who only have `sha256sum`."""

SUMMED = (MACHINE, PLAN, DIMENSIONS, VALIDATION, AUDIT, TRANSITIONS_FIGURE, TIMELINE_FIGURE)
"""The files whose sums are in the manifest, in this order."""
LAYOUT = (*SUMMED, MANIFEST, SIGNATURE, SUMS)
"""All files of a bundle."""
FOLDERS = ("configs", "reports", "figs")


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTransition:
    """A recorded transition of a stage's state; `from_state` is None for a stage's first."""

    at: datetime
    stage: str
    run_id: str
    from_state: str | None
    to_state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A retry, replay or compensation of a stage; `number` is that of the attempt, from 1."""

    at: datetime
    stage: str
    kind: AuditKind
    number: int | None = None
    ended: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """The parts of a release: the same parts in the same order give the same files.

    Times have a zone. The card's files have the content that was in force. `audit_lines` are JSON objects, one per
    line, with line ends. The reports must be JSON values, without NaN and infinity.
    """

    code: CodeFingerprint
    card: Card
    dim_report: Mapping[str, Any]
    validate_report: Mapping[str, Any]
    audit_lines: Sequence[bytes]
    transitions: Sequence[StageTransition]
    attempts: Sequence[Attempt]


def span(times: Iterable[datetime]) -> tuple[datetime, datetime] | None:
    """Return the first and the last of some times; None without times."""
    ordered = sorted(times)
    return (ordered[0], ordered[-1]) if ordered else None


OPENING = b"# kfm export: manifest of a release bundle, version 1\n"
"""First line; the next export recognises a bundle by it."""


class BundleFaultError(Exception):
    """A part of a bundle does not have the form that an export signs; the text is the reason."""


class SummedFile(Strict):
    """A file: path in the bundle, size in bytes, SHA-256 in hex."""

    path: str
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Recorded(Strict):
    """Counts of records by kind, and the first and last time (RFC 3339) if there are any."""

    transitions: int
    retries: int
    replays: int
    audit_events: int
    first: str | None
    last: str | None


class Manifest(Strict):
    """The manifest's document."""

    version: Literal[1] = 1
    versions: dict[str, str]
    """Versions of this package, of the two configurations, and of the library that drew the figures."""
    code: dict[str, str]
    """Version of the code: commit or digest of the files, lockfile, image."""
    recorded: Recorded
    signed_by: Annotated[str, Field(pattern=r"^([0-9A-F]{40}|[0-9A-F]{64})$")]
    """Fingerprint of the signer's certificate."""
    files: list[SummedFile]

    @property
    def size(self) -> int:
        """Bytes of the summed files."""
        return sum(file.size for file in self.files)

    def sums(self) -> bytes:
        """Return `SHA256SUMS`: every file and the manifest, for `sha256sum -c`.

        The signature is not included: it differs each time and is verified by itself.
        """
        sums = {file.path: file.sha256 for file in self.files}
        sums[MANIFEST] = hashlib.sha256(self.as_yaml()).hexdigest()
        return "".join(f"{digest}  {path}\n" for path, digest in sums.items()).encode()

    def as_yaml(self) -> bytes:
        """Return the file's bytes."""
        return OPENING + yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True, width=120).encode()

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Parse a manifest. Raises BundleFaultError for content that `as_yaml` would not write.

        So no path leads out of the bundle, no path is repeated, and all YAML readers read the same values.
        """
        try:
            document: Any = yaml.safe_load(content)
        except (yaml.YAMLError, UnicodeDecodeError):
            raise BundleFaultError("not YAML") from None
        try:
            manifest = cls.model_validate(document, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise BundleFaultError(f"{where}: {first['msg']}") from None
        _refuse_other_files([file.path for file in manifest.files])
        if manifest.as_yaml() != content:
            raise BundleFaultError("not in the form that an export writes")
        return manifest


def _refuse_other_files(paths: Sequence[str]) -> None:
    if tuple(paths) == SUMMED:
        return
    odd = [path for number, path in enumerate(paths) if path not in SUMMED or path in paths[:number]]
    missing = [path for path in SUMMED if path not in paths]
    raise BundleFaultError(
        f"it names {odd[0][:100]!a}" if odd else f"it names no {missing[0]}" if missing else "files in another order"
    )


def gather_release(pipeline: Pipeline) -> Release:
    """Return the release of all records.

    Raises KfmError for a changed audit. Raises RefusedError if no quantity was checked, or if a quantity does not
    close, even if the card's gate lets the quantity pass.
    """
    closure = dimensional_closure(pipeline, since=EVER)
    if closure["p_dim"] is None:
        raise RefusedError(
            "the records must not be published",
            observed="no quantity was checked, so p_dim is unknown",
            expected=f"p_dim {PUBLISHABLE_P_DIM:g}",
            next_step="ingest something first (kfm demo)",
        )
    if closure["p_dim"] < PUBLISHABLE_P_DIM:
        open_ones = [q for report in closure["datasets"] for q in report["quantities"] if q["closed"] < q["values"]]
        raise RefusedError(
            "the records must not be published",
            observed=f"p_dim {closure['p_dim']:g}: {', '.join(sorted({q['quantity'] for q in open_ones}))}",
            expected=f"p_dim {PUBLISHABLE_P_DIM:g}",
            next_step="correct the contract's units and replay the units (kfm report, kfm replay run)",
        )
    report = validate_report(pipeline, since=EVER)
    audit = StageStore(pipeline.database, clock=pipeline.clock).audit
    # Only the lines that the report counted: in a working deployment, the audit grows while it is read.
    lines = list(takewhile(lambda line: line["seq"] <= report["audit"]["lines"], audit.lines()))
    verify_chain(lines, head=report["audit"]["head"])
    return Release(
        code=pipeline.code,
        card=pipeline.card,
        dim_report=closure,
        validate_report=report,
        audit_lines=list(as_jsonl(lines)),
        transitions=[_transition(line) for line in lines if line["kind"] == AuditKind.TRANSITION],
        attempts=list(_attempts(lines)),
    )


def _transition(line: Mapping[str, Any]) -> StageTransition:
    origin, _, to = line["event"].partition(">")
    at = datetime.fromisoformat(line["at"])
    return StageTransition(at=at, stage=line["stage"], run_id=line["run_id"], from_state=origin, to_state=to)


def _attempts(lines: list[dict[str, Any]]) -> Iterator[Attempt]:
    """Yield retries and replays, each with the end of its attempt."""
    ends = {
        (line["run_id"], line["stage"], line["attempt"]): datetime.fromisoformat(line["at"])
        for line in lines
        if line["kind"] == AuditKind.TRANSITION and line["event"].startswith("running>")
    }
    for line in lines:
        if line["kind"] in {AuditKind.RETRY, AuditKind.REPLAY}:
            yield Attempt(
                at=datetime.fromisoformat(line["at"]),
                stage=line["stage"],
                kind=AuditKind(line["kind"]),
                number=line["attempt"],
                ended=ends.get((line["run_id"], line["stage"], line["attempt"])),
            )
