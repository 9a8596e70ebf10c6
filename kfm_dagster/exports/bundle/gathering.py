"""Gathering a release: the card as it is obeyed, the reports, and the audit from its first line on.

Belongs here: where each part comes from. Does not belong here: how a bundle is written (`writing.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.exports.bundle.content import Attempt, AttemptKind, Release, StageTransition
from kfm_dagster.exports.validation import dimensional_closure, validate_report
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.stages.audit import AuditKind, as_jsonl, verify_chain
from kfm_dagster.stages.store import StageStore

EVER = datetime(2000, 1, 1, tzinfo=UTC)
"""Before anything was recorded."""
PUBLISHABLE_P_DIM = 1.0
"""Every quantity closes dimensionally (pipeline card, chapter 7: a bundle is published with p_dim = 1.0)."""


class NotPublishableError(KfmError):
    """What was recorded must not be published."""

    exit_code = ExitCode.REFUSED


def gather_release(pipeline: Pipeline) -> Release:
    """Return everything that was recorded here.

    Raises AuditChainError before an audit that was changed is signed, and NotPublishableError for a quantity that does
    not close, whatever the card lets a gate pass, and where none was looked at.
    """
    closure = dimensional_closure(pipeline, since=EVER)
    if closure["p_dim"] is None:
        raise NotPublishableError(
            observed="no quantity was looked at, so there is no p_dim",
            expected=f"p_dim {PUBLISHABLE_P_DIM:g}",
            next_step="ingest something first (kfm demo)",
        )
    if closure["p_dim"] < PUBLISHABLE_P_DIM:
        open_ones = [q for report in closure["datasets"] for q in report["quantities"] if q["closed"] < q["values"]]
        raise NotPublishableError(
            observed=f"p_dim {closure['p_dim']:g}: {', '.join(sorted({q['quantity'] for q in open_ones}))}",
            expected=f"p_dim {PUBLISHABLE_P_DIM:g}",
            next_step="correct the contract's units and replay the units (kfm validate, kfm replay run)",
        )
    report = validate_report(pipeline, since=EVER)
    audit = StageStore(pipeline.database, clock=pipeline.clock).audit
    # As of the report: beside a deployment that works, the audit grows while it is read.
    lines = list(takewhile(lambda line: line["seq"] <= report["audit"]["lines"], audit.lines()))
    verify_chain(lines, head=report["audit"]["head"])
    return Release(
        code=pipeline.code,
        card=pipeline.card,
        dim_report=closure,
        validate_report=report,
        audit_lines=(line.rstrip(b"\n") for line in as_jsonl(lines)),
        transitions=[_transition(line) for line in lines if line["kind"] == AuditKind.TRANSITION],
        attempts=list(_attempts(lines)),
    )


def _transition(line: Mapping[str, Any]) -> StageTransition:
    origin, _, to = line["event"].partition(">")
    at = datetime.fromisoformat(line["at"])
    return StageTransition(at=at, stage=line["stage"], run_id=line["run_id"], from_state=origin, to_state=to)


def _attempts(lines: list[dict[str, Any]]) -> Iterator[Attempt]:
    """Yield retries and replays, each with the time at which its attempt ended."""
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
                kind=AttemptKind(line["kind"]),
                number=line["attempt"],
                ended=ends.get((line["run_id"], line["stage"], line["attempt"])),
            )
