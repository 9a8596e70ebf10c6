"""A sample release of four runs in a day: retries, a failed gate, a rollback and a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from kfm_dagster.exports.bundle.content import Attempt, Release, StageTransition
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
from kfm_dagster.ingest.nodes import operators
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import Card

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BEGAN = datetime(2025, 12, 3, 6, tzinfo=UTC)
OPERATORS = operators()
RUNS = [f"{number}1111111-0000-4000-8000-00000000000{number}" for number in range(4)]
NOTE = '“caught” \u2028 🌪 \\ "quoted"'
"""An operator's note with characters that JSON, YAML and line readers treat specially."""


def transitions() -> list[StageTransition]:
    """Return four runs of six stages; in the last one, stac_register is rolled back."""
    recorded: list[StageTransition] = []
    for run, run_id in enumerate(RUNS):
        for position, operator in enumerate(OPERATORS):
            at = BEGAN + timedelta(hours=run, minutes=2 * position)
            path = [None, "pending", "running", "succeeded"]
            if run == 3 and position >= 3:
                path = [None, "pending", "running", "failed", "rolled_back"] if position == 3 else [None, "pending"]
            recorded += [
                StageTransition(
                    at=at + timedelta(seconds=step, microseconds=250),
                    stage=f"nexrad-l2.{operator}",
                    run_id=run_id,
                    from_state=start,
                    to_state=end,
                )
                for step, (start, end) in enumerate(pairwise(path))
                if end is not None
            ]
    return recorded


def attempts() -> list[Attempt]:
    """Return three retries of stac_register (one unfinished) and a replay of metadata_extract."""
    at, replayed = BEGAN + timedelta(hours=3, minutes=6), BEGAN + timedelta(hours=2, minutes=30)
    begun = {number: at + timedelta(seconds=4**number) for number in (1, 2, 3)}
    retry = {"stage": "nexrad-l2.stac_register", "kind": AuditKind.RETRY}
    ended = {number: begun[number] + timedelta(seconds=3) for number in (1, 2)}
    replay = {"stage": "nexrad-l2.metadata_extract", "kind": AuditKind.REPLAY, "number": 1}
    return [
        *(Attempt(at=begun[number], number=number, ended=ended.get(number), **retry) for number in begun),
        Attempt(at=replayed, ended=replayed + timedelta(minutes=11), **replay),
    ]


def audit_lines(recorded: Sequence[StageTransition]) -> Iterator[bytes]:
    for number, transition in enumerate(recorded):
        event: dict[str, Any] = {
            "seq": number,
            "event": "transition",
            "stage": transition.stage,
            "run_id": transition.run_id,
            "from": transition.from_state,
            "to": transition.to_state,
            "at": transition.at.isoformat(),
            "note": NOTE,
        }
        yield json.dumps(event, ensure_ascii=False).encode() + b"\n"


def release(*, transitions_of: Sequence[StageTransition] | None = None) -> Release:
    recorded = transitions() if transitions_of is None else transitions_of
    return Release(
        code=CodeFingerprint(code_sha="5efb3d1" + "0" * 33, lockfile_hash="ab" * 32, image_digest=None),
        card=Card.load(CONFIGS),
        dim_report={"p_dim": 1.0, "checked": 412, "failed": [], "units": {"n_eff": "1", "d_ell": "m"}},
        validate_report={"gates": {"G5": {"passed": 23, "failed": 1}}, "stops": ["S2"], "note": NOTE, "sigma_y": 1e-11},
        audit_lines=list(audit_lines(recorded)),
        transitions=recorded,
        attempts=attempts(),
    )


def empty_release() -> Release:
    """Return the release of a deployment without runs."""
    return replace(release(transitions_of=[]), attempts=[])
