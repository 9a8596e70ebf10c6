"""The pipeline card: `configs/state_machine.yaml` and `configs/replay_plan.yaml`, read, checked and obeyed.

A wrong file is refused with file, line and reason, before anything runs. Belongs here: the models and the reading.
Does not belong here: what a stage does with them (`machine.py`), or how a gate judges (`gates/`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from kfm_dagster.contracts.model import Backoff
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.stages.conditions import WORDS, Condition
from kfm_dagster.stages.gates.verdict import Gate, Stop

STATE_MACHINE = "state_machine.yaml"
REPLAY_PLAN = "replay_plan.yaml"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class CardError(ConfigurationError):
    """The pipeline card is wrong."""


@unique
class StageState(StrEnum):
    """How far a stage is: one operator of one dataset in one run."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


POSSIBLE: Mapping[tuple[StageState, StageState], frozenset[str]] = {
    (StageState.PENDING, StageState.RUNNING): frozenset({"deps_succeeded", *Gate}),
    (StageState.RUNNING, StageState.SUCCEEDED): frozenset({*Gate, *Stop}),
    (StageState.RUNNING, StageState.FAILED): frozenset({*Gate, *Stop}),
    (StageState.FAILED, StageState.ROLLED_BACK): frozenset({"has_checkpoint", "do_compensate"}),
}
"""The only transitions there are (PCS-01; the database refuses every other), and what each may depend on."""


@unique
class ErrorClass(StrEnum):
    """Why a stage failed as a whole (pipeline card, chapter 7, section IV)."""

    E_INPUT = "E_INPUT"
    """Contract, type or window: the input or the configuration is wrong; a person has to act."""
    E_DIM = "E_DIM"
    """A quantity does not close dimensionally; trying again cannot help."""
    E_GATE = "E_GATE"
    """A quality gate failed."""
    E_SYNC = "E_SYNC"
    """The clock is not locked, or its offset is over the threshold."""
    E_UQ = "E_UQ"
    """A covariance is not positive definite."""
    E_INTERNAL = "E_INTERNAL"
    """Anything else, a dependency that does not answer among it; may pass on the next attempt."""


@unique
class OnFailure(StrEnum):
    """What a gate that fails does."""

    FAIL_UNITS = "fail_units"
    """The units at fault leave the chain, the others go on; a fault of the whole batch stops it."""
    STOP = "stop"
    """The stage fails."""
    RESTRICT = "restrict"
    """The degraded path: the stage goes on, and its output is [Restricted]."""


def _duration(value: object) -> object:
    """Read `10m`, `1.5h`; anything else is pydantic's to refuse."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    if isinstance(value, timedelta):
        return value
    raise ValueError("a number and one of ms, s, m, h, d, such as 10m")


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration, json_schema_input_type=Annotated[str, Field(pattern=f"^{_DURATION.pattern}$")]),
    Field(ge=timedelta(0)),
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Transition(_Strict):
    """One transition and its condition."""

    origin: StageState = Field(alias="from")
    to: StageState
    when: str

    @property
    def condition(self) -> Condition:
        """The condition, read."""
        return Condition.parse(self.when)

    @model_validator(mode="after")
    def _possible(self) -> Transition:
        allowed = POSSIBLE.get((self.origin, self.to))
        if allowed is None:
            ways = ", ".join(f"{origin} > {to}" for origin, to in POSSIBLE)
            raise ValueError(f"{self.origin} > {self.to} is no transition; there are {ways}")
        if unknown := sorted(self.condition.names - allowed):
            known = ", ".join(word for word in WORDS if word in allowed) or "gates and stops"
            raise ValueError(f"{self.origin} > {self.to} cannot depend on {', '.join(unknown)}, but on {known}")
        return self


class RetryPolicy(_Strict):
    """When a stage that failed as a whole is tried again. Deadline: no attempt begins later after the first one."""

    max_retries: int = Field(ge=0, le=20)
    backoff: Literal["const", "exp", "jitter", "exp+jitter"]
    base: Duration = timedelta(seconds=1)
    maximum: Duration = timedelta(minutes=1)
    deadline: Duration
    retry_on: list[ErrorClass] = [ErrorClass.E_INTERNAL, ErrorClass.E_SYNC]

    @field_validator("retry_on")
    @classmethod
    def _not_blindly(cls, value: list[ErrorClass]) -> list[ErrorClass]:
        if ErrorClass.E_DIM in value:
            raise ValueError("E_DIM is never retried blindly: correct the units and trigger the stage again")
        return value

    @property
    def delays(self) -> Backoff:
        """The backoff, in the terms of a dataset's."""
        return Backoff(
            kind=self.backoff,
            base_seconds=self.base.total_seconds(),
            maximum_seconds=self.maximum.total_seconds(),
        )


class GateRule(_Strict):
    """What a gate that fails does."""

    on_failure: OnFailure


class CitationGate(GateRule):
    """G2. The card asks for an anchor coverage of 0.9 at least."""

    min_anchor_coverage: float = Field(ge=0.9, le=1)


class PathGate(GateRule):
    """G3. The card asks for 2 points at least."""

    min_points: int = Field(ge=2)


class DimensionGate(GateRule):
    """G4. Publication needs p_dim = 1.0."""

    min_p_dim: float = Field(gt=0, le=1)


class CoverageGate(GateRule):
    """G6. Share of the expected products that must be there."""

    min_coverage: float = Field(ge=0, le=1)


class Gates(_Strict):
    """The rules of all gates."""

    G1: GateRule
    G2: CitationGate
    G3: PathGate
    G4: DimensionGate
    G5: GateRule
    G6: CoverageGate
    G7: GateRule
    G8: GateRule

    def on_failure(self, gate: Gate) -> OnFailure:
        """Return what a gate that fails does."""
        rule: GateRule = getattr(self, gate.value)
        return rule.on_failure


class ClockRule(_Strict):
    """When writing is allowed: the clock calibrated within tau_calib before, and off by no more than max_offset."""

    tau_calib: Duration
    max_offset: Duration
    unlocked: Literal["reject", "restrict"]


_KEY_PARTS = ("run_id", "stage", "partition", "window")


class StateMachine(_Strict):
    """`state_machine.yaml`."""

    version: Literal["1.0.0"]
    states: list[StageState]
    transitions: list[Transition]
    retry_policy: RetryPolicy
    idempotency_key: str
    checkpoints: list[str] = []
    gates: Gates
    clock: ClockRule

    def condition(self, origin: StageState, to: StageState) -> Condition | None:
        """Return the condition of a transition, or None where the card does not have it."""
        return next((t.condition for t in self.transitions if (t.origin, t.to) == (origin, to)), None)

    @property
    def key_parts(self) -> Sequence[str]:
        """What an idempotency key is made of, in order."""
        return self.idempotency_key.split("+")

    @field_validator("states")
    @classmethod
    def _every_state(cls, value: list[StageState]) -> list[StageState]:
        if sorted(value) != sorted(StageState):
            raise ValueError(f"the states are {', '.join(StageState)}, each once")
        return value

    @field_validator("transitions")
    @classmethod
    def _each_once(cls, value: list[Transition]) -> list[Transition]:
        ways = [(one.origin, one.to) for one in value]
        if twice := [f"{origin} > {to}" for origin, to in ways if ways.count((origin, to)) > 1]:
            raise ValueError(f"{twice[0]} is there twice")
        needed = [way for way in POSSIBLE if way[1] is not StageState.ROLLED_BACK and way not in ways]
        if needed:
            raise ValueError(f"{needed[0][0]} > {needed[0][1]} is missing: no stage could ever end")
        return value

    @field_validator("idempotency_key")
    @classmethod
    def _of_known_parts(cls, value: str) -> str:
        parts = value.split("+")
        if "run_id" not in parts or len(set(parts)) != len(parts) or set(parts) - set(_KEY_PARTS):
            raise ValueError(f"run_id and any of {', '.join(_KEY_PARTS[1:])}, each once, joined by +")
        return value


class Verify(_Strict):
    """What of a replay's outputs is compared with the original's."""

    hash: bool
    primary_keys: bool


class Replay(_Strict):
    """How a run is replayed."""

    enabled: bool
    order: Literal["reverse_topology"]
    require_checkpoint: bool
    compensate_before_replay: bool
    verify: Verify


class ReplayAlerts(_Strict):
    """What happens on a divergence; names of alert actions."""

    on_divergence: list[str]


class ReplayPlan(_Strict):
    """`replay_plan.yaml`."""

    version: Literal["1.0.0"]
    replay: Replay
    alerts: ReplayAlerts


class Card(BaseModel):
    """Both files, and their bytes as they were read."""

    model_config = ConfigDict(frozen=True)

    machine: StateMachine
    replay_plan: ReplayPlan
    files: dict[str, bytes]

    @classmethod
    def load(cls, folder: Path | None = None) -> Card:
        """Read a folder's files, or those of this release. Raises CardError with file, line and reason."""
        root = _own_folder() if folder is None else folder
        if not root.is_dir():
            raise CardError(
                "KFM_CONFIGS_DIR is no folder", observed=str(root), next_step="create it or unset the variable"
            )
        files = {name: _read(root / name) for name in (STATE_MACHINE, REPLAY_PLAN)}
        return cls(
            machine=parse(files[STATE_MACHINE].decode(), StateMachine, source=STATE_MACHINE),
            replay_plan=parse(files[REPLAY_PLAN].decode(), ReplayPlan, source=REPLAY_PLAN),
            files=files,
        )


Model = TypeVar("Model", bound=BaseModel)


def parse(text: str, model: type[Model], *, source: str) -> Model:
    """Build a model from YAML text. Raises CardError naming the source and the line of the first wrong key."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source} line {mark.line + 1}"
        raise CardError(
            f"{where} is not valid YAML", observed=getattr(error, "problem", None), next_step="correct the file"
        ) from None
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        where = ".".join(str(part) for part in first["loc"] if part != "[key]") or "the document"
        raise CardError(
            f"{source} line {_line(root, first['loc'])}: {where} is wrong{more}",
            observed=repr(first["input"])[:120],
            expected=first["msg"].removeprefix("Value error, "),
            next_step="correct the file",
        ) from None


def _line(node: yaml.Node | None, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of what a path leads to, or of the last part of it that is there."""
    line = 1 if node is None else node.start_mark.line + 1
    for part in path:
        found: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, found = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            found = node.value[part]
            line = found.start_mark.line + 1
        if found is None:
            break
        node = found
    return line


def _own_folder() -> Path:
    """Return the folder `configs/`: inside the wheel when installed, beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    bundled = package / "_bundled" / "configs"
    return bundled if bundled.is_dir() else package.parent / "configs"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CardError(
            "a file of the pipeline card cannot be read",
            observed=f"{path.name}: {error.strerror}",
            expected=f"{STATE_MACHINE} and {REPLAY_PLAN} in one folder",
            next_step="copy configs/ of this release, or unset KFM_CONFIGS_DIR",
        ) from None
