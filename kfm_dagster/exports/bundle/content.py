"""What a release holds, and where in its folder each part stands.

Belongs here: the parts and their names. Does not belong here: where they are gathered from (`cli/`), or how they are
written (`writing.py`), summed (`manifest.py`), drawn (`figures.py`) and signed (`signature.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, unique
from typing import Any

from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.stages.card import REPLAY_PLAN, STATE_MACHINE, Card

BUNDLE = "PTN_EXPORT"
"""Name of the bundle's folder (pipeline card, chapter 7, section XIII); so are the names below."""
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
"""Not the card's: for those who have `sha256sum` and nothing else."""

SUMMED = (MACHINE, PLAN, DIMENSIONS, VALIDATION, AUDIT, TRANSITIONS_FIGURE, TIMELINE_FIGURE)
"""The files that the manifest sums, in its order."""
LAYOUT = (*SUMMED, MANIFEST, SIGNATURE, SUMS)
"""Every file of a bundle; there is no other."""
FOLDERS = ("configs", "reports", "figs")


@unique
class AttemptKind(StrEnum):
    """Why a stage was done once more."""

    RETRY = "retry"
    """It had failed or was refused, and the retry policy allowed another attempt."""
    REPLAY = "replay"
    """A replay was asked for, whatever had become of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTransition:
    """A recorded transition of a stage's state; `from_state` is None where the stage came into being."""

    at: datetime
    stage: str
    run_id: str
    from_state: str | None
    to_state: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """A recorded retry or replay of a stage: its number from 1, when it began, and when it ended, if it did."""

    at: datetime
    stage: str
    kind: AttemptKind
    number: int
    ended: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What is to be handed on. Times are aware; the same parts in the same order give the same files.

    The card's files are released as they were obeyed. `audit_lines` are JSON objects of one line each,
    without its end, and are read once, as a stream. The reports must be JSON values, without NaN and infinity.
    """

    code: CodeFingerprint
    card: Card
    dim_report: Mapping[str, Any]
    validate_report: Mapping[str, Any]
    audit_lines: Iterable[bytes]
    transitions: Sequence[StageTransition]
    attempts: Sequence[Attempt]


def span(times: Iterable[datetime]) -> tuple[datetime, datetime] | None:
    """Return the first and the last of some times; None where there are none."""
    ordered = sorted(times)
    return (ordered[0], ordered[-1]) if ordered else None
