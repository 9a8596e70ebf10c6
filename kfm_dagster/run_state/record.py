"""The run-state record, keyed (dataset_id, run_id), and the hash of a node's inputs.

Each write checks the record by its JSON Schema, and is counted (OpenTelemetry API, without cost until an SDK is
configured). The counter shows the rate of one process; `RunStateStore.counts` has the number of all records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum, unique
from functools import cache
from importlib import resources
from typing import Any

import jsonschema_rs
from opentelemetry import metrics

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import KfmError


@dataclass(frozen=True, kw_only=True, slots=True)
class InputReference:
    """An input: its URI and its content's version; `query` and `window` of a call to a service."""

    uri: str
    checksum: str | None = None
    etag: str | None = None
    last_modified: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    window: tuple[str, str] | None = None

    def canonical(self) -> dict[str, Any]:
        """Return the members that are set, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}


def canonical_json(value: Any) -> bytes:
    """Encode with sorted keys and no spaces. Raises ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def inputs_hash(inputs: Iterable[InputReference], parameters: Mapping[str, Any]) -> str:
    """Return the hash of a node's inputs and parameters by the run-state pattern, section 4.

        inputs_hash = "sha256:" + SHA-256(canonical JSON of {"inputs": [...], "parameters": {...}})

    Parameters are JSON values. Inputs are sorted by URI, so their order does not matter; the keys of each object are
    sorted as texts. Text is UTF-8, numbers are as in JSON. Any change of a member changes the hash.
    """
    encoded = sorted(
        (reference.canonical() for reference in inputs), key=lambda item: (item["uri"], canonical_json(item))
    )
    return "sha256:" + hashlib.sha256(canonical_json({"inputs": encoded, "parameters": parameters})).hexdigest()


ROLLED_BACK_BY = "rolled_back_by"
"""Key in the validation summary of a node whose output was withdrawn; the value is the failed node or the replay."""


class RunStateError(KfmError):
    """A run-state record does not fit its schema."""


@unique
class Outcome(StrEnum):
    """Outcome of a node in a run."""

    SUCCESS = "success"
    """Every input unit passed. A later call in the run with the same inputs skips the node."""
    FAILED = "failed"
    """The node raised, or no unit passed."""
    PARTIAL = "partial"
    """Some units passed and some did not."""
    SKIPPED = "skipped"
    """The node reused an earlier run's output of the same content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSummary:
    """Checks over a node's units; checks = passed + failed. `extra` has more counts and facts."""

    checks: int
    passed: int
    failed: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Success when nothing failed, failed when nothing passed, else partial."""
        if self.failed == 0:
            return Outcome.SUCCESS
        return Outcome.FAILED if self.passed == 0 else Outcome.PARTIAL

    def as_json(self) -> dict[str, Any]:
        """Return the three counts and the extras."""
        return {**self.extra, "checks": self.checks, "passed": self.passed, "failed": self.failed}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """A run-state record; `artifact_*` locate the node's output."""

    dataset_id: str
    run_id: str
    lakefs_branch: str
    inputs_hash: str
    validation_summary: Mapping[str, Any]
    outcome: Outcome
    recorded_at: datetime
    artifact_uri: str | None = None
    artifact_sha256: str | None = None

    @property
    def rolled_back_by(self) -> str | None:
        """The failed node or the replay that withdrew this output; None while it is valid."""
        return self.validation_summary.get(ROLLED_BACK_BY)

    def revoked(self, *, by: str, at: datetime) -> RunState:
        """Return the record as withdrawn: its outcome is failed, and no stage may reuse the output."""
        summary = {**self.validation_summary, ROLLED_BACK_BY: by}
        return replace(
            self,
            outcome=Outcome.FAILED,
            validation_summary=summary,
            recorded_at=at,
            artifact_uri=None,
            artifact_sha256=None,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the published form. Raises RunStateError if it does not fit the schema."""
        document = {**asdict(self), "outcome": self.outcome.value, "recorded_at": rfc3339(self.recorded_at)}
        _check(document)
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RunState:
        """Read the published form. Raises RunStateError if it does not fit the schema."""
        _check(document)
        values = {
            "outcome": Outcome(document["outcome"]),
            "recorded_at": datetime.fromisoformat(document["recorded_at"]),
        }
        return cls(**{**document, **values})


def run_state_schema() -> dict[str, Any]:
    """Return the published JSON Schema."""
    text = (resources.files("kfm_dagster.run_state") / "run-state.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _check(document: Mapping[str, Any]) -> None:
    for error in _validator().iter_errors(document):
        where = ".".join(str(part) for part in error.instance_path) or "the record"
        raise RunStateError(
            observed=f"{where}: {error.message}", expected="kfm_dagster/run_state/run-state.schema.json"
        )


@cache
def _validator() -> Any:
    return jsonschema_rs.validator_for(run_state_schema())


COUNTER = "kfm.run_state.writes"


def count_write(outcome: Outcome) -> None:
    """Count a written record."""
    _counter().add(1, {"outcome": outcome.value})


@cache
def _counter() -> metrics.Counter:
    # Created once, because OpenTelemetry connects it to an SDK that is configured later.
    return metrics.get_meter("kfm_dagster").create_counter(
        COUNTER, unit="{record}", description="Run-state records written, by outcome."
    )
