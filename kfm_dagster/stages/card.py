"""The pipeline card: `state_machine.yaml`, `replay_plan.yaml`, `alerts.yaml` of `configs/`.

A wrong file is refused with file, line and reason, before anything runs. Belongs here: the models of the first two
files, and the check that the three files agree. Does not belong here: the effect of the card on stages (`machine.py`),
the rules of gates (`gates/`), or the model of `alerts.yaml` (`alerts/plan.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kfm_dagster.alerts.plan import ALERTS, AlertPlan
from kfm_dagster.configs import CardError, Duration, Line, Strict, own_folder, parse, refusal, text_in
from kfm_dagster.contracts.model import Backoff
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.stages.gates.verdict import Gate, Gates, Stop
from kfm_dagster.telemetry.clock.reading import ClockRule

WORDS = ("deps_succeeded", "has_checkpoint", "do_compensate")
"""Facts that a condition may name, besides gates and stops."""
_SERIES = (tuple(gate.value for gate in Gate), tuple(stop.value for stop in Stop))
_TOKEN = re.compile(r"&&|\|\||[!()]|(?:any|all)(?=\s*\()|\w+(?:\s*\.\.\s*\w+)?|\S")
_PYTHON = {"&&": "and", "||": "or", "!": "not", "(": "(", ")": ")", "any": "any", "all": "all"}
_Test = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a transition, parsed. `names` are all gates, stops and words in it.

        expression = term ("||" term)*        term = factor ("&&" factor)*        factor = "!" factor | atom
        atom = "(" expression ")" | ("any" | "all") "(" range ")" | range        range = NAME (".." NAME)?

    A range of gates holds when every gate in it passed, a range of stops (S1 to S5, causes for failing the stage) when
    any stop in it is triggered; `any(...)` and `all(...)` override this. `ast` parses the condition as Python, in which
    each range is a string. Examples: `deps_succeeded && G1..G3`, `G1..G8 && !S1..S5`.
    """

    text: str
    names: frozenset[str]
    holds: _Test
    """Evaluates the condition, given the passed gates, the triggered stops and the true words."""

    @property
    def gates(self) -> frozenset[Gate]:
        """The gates in the condition."""
        return frozenset(gate for gate in Gate if gate.value in self.names)

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition. Raises ValueError for an invalid text."""
        names: set[str] = set()
        python = " ".join(_PYTHON.get(token) or repr(token) for token in _TOKEN.findall(text))
        try:
            holds = _test(ast.parse(python, mode="eval").body, names)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"{text[:60]!r} does not consist of names, &&, ||, ! and matching parentheses") from None
        return cls(text, frozenset(names), holds)


def _test(node: ast.expr, names: set[str]) -> _Test:
    match node:
        case ast.BoolOp(op=operator, values=parts):
            tests = [_test(part, names) for part in parts]
            joined = any if isinstance(operator, ast.Or) else all
            return lambda facts: joined(test(facts) for test in tests)
        case ast.UnaryOp(operand=part):
            inner = _test(part, names)
            return lambda facts: not inner(facts)
        case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(text))]):
            series, quantifier = _range(text), any if word == "any" else all
        case ast.Constant(value=str(text)):
            series = _range(text)
            quantifier = any if series[0] in _SERIES[1] else all
        case _:
            raise SyntaxError
    names.update(series)
    return lambda facts: quantifier(name in facts for name in series)


def _range(text: str) -> Sequence[str]:
    first, dots, last = (part.strip() for part in text.partition(".."))
    known = (*_SERIES[0], *_SERIES[1], *WORDS)
    if not dots and first in known:
        return [first]
    for series in _SERIES:
        if dots and first in series and last in series[series.index(first) :]:
            return series[series.index(first) : series.index(last) + 1]
    raise ValueError(f"{text} is not a range of gates or stops; the names are {', '.join(known)}")


STATE_MACHINE = "state_machine.yaml"
REPLAY_PLAN = "replay_plan.yaml"


@unique
class StageState(StrEnum):
    """The state of a stage: an operator of a dataset in a run."""

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
"""All transitions (PCS-01; the database refuses any other), and the names that their conditions may use."""


@unique
class ErrorClass(StrEnum):
    """The class of a stage's failure as a whole (pipeline card, chapter 7, section IV)."""

    E_INPUT = "E_INPUT"
    """The input or the configuration is wrong (contract, type or window); a person has to act."""
    E_DIM = "E_DIM"
    """A quantity does not close dimensionally; trying again cannot help."""
    E_GATE = "E_GATE"
    """A quality gate failed."""
    E_SYNC = "E_SYNC"
    """The clock is not locked, or its offset is over the threshold."""
    E_UQ = "E_UQ"
    """A covariance is not positive definite, or residuals exceed it."""
    E_INTERNAL = "E_INTERNAL"
    """Any other error, such as a dependency that does not answer; the next attempt may pass."""


class Transition(Strict):
    """A transition and its condition."""

    origin: StageState = Field(alias="from")
    to: StageState
    when: str

    @property
    def condition(self) -> Condition:
        """The parsed condition."""
        return Condition.parse(self.when)

    @model_validator(mode="after")
    def _possible(self) -> Transition:
        allowed = POSSIBLE.get((self.origin, self.to))
        if allowed is None:
            ways = ", ".join(f"{origin} > {to}" for origin, to in POSSIBLE)
            raise ValueError(f"{self.origin} > {self.to} is not a transition; the transitions are {ways}")
        if unknown := sorted(self.condition.names - allowed):
            known = ", ".join(word for word in WORDS if word in allowed) or "gates and stops"
            raise ValueError(f"{self.origin} > {self.to} cannot depend on {', '.join(unknown)}, only on {known}")
        return self


class RetryPolicy(Strict):
    """Retries of a stage that failed as a whole, until `deadline` after its first attempt."""

    max_retries: int = Field(ge=0, le=20)
    backoff: Literal["const", "exp", "jitter", "exp+jitter"]
    base: Duration = timedelta(seconds=1)
    maximum: Duration = timedelta(minutes=1)
    deadline: Duration
    retry_on: list[ErrorClass] = Field([ErrorClass.E_INTERNAL, ErrorClass.E_SYNC])

    @field_validator("retry_on")
    @classmethod
    def _not_blindly(cls, value: list[ErrorClass]) -> list[ErrorClass]:
        if ErrorClass.E_DIM in value:
            raise ValueError("no E_DIM, which is never retried blindly: correct units of measurement, then start again")
        return value

    @property
    def delays(self) -> Backoff:
        """The backoff, in the form of a dataset contract."""
        return Backoff(
            kind=self.backoff,
            base_seconds=self.base.total_seconds(),
            maximum_seconds=self.maximum.total_seconds(),
        )


class DedupeEvidence(Strict):
    """Evidence for a declaration of exactly-once: a campaign of kills without loss or duplicate.

    `campaign` is the campaign's command, `commit` the commit of the code; the campaign printed the other figures.
    """

    campaign: Line = Field(max_length=400)
    commit: str = Field(pattern=r"^[0-9a-f]{40}$")
    units: int = Field(ge=1)
    kills: int = Field(ge=1)
    lost: Literal[0]
    duplicates: Literal[0]


StageName = Annotated[str, Field(pattern=r"^[a-z][a-z_]*$")]

_KEY_PARTS = ("run_id", "stage", "partition", "window")


class StateMachine(Strict):
    """`state_machine.yaml`."""

    version: Literal["1.0.0"]
    states: list[StageState]
    transitions: list[Transition]
    retry_policy: RetryPolicy
    human_review: list[ErrorClass] = Field(
        [ErrorClass.E_DIM, ErrorClass.E_UQ],
        description="No retry can cure these errors, so units at fault go to a person.",
    )
    idempotency_key: str
    checkpoints: list[StageName] = Field([])
    gates: Gates
    clock: ClockRule
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"
    evidence: DedupeEvidence | None = None

    def condition(self, origin: StageState, to: StageState) -> Condition | None:
        """Return the condition of a transition, or None if the card lacks it."""
        return next((t.condition for t in self.transitions if (t.origin, t.to) == (origin, to)), None)

    @property
    def key_parts(self) -> Sequence[str]:
        """The parts of an idempotency key, in order."""
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
        ways = [(transition.origin, transition.to) for transition in value]
        if twice := [f"{origin} > {to}" for origin, to in ways if ways.count((origin, to)) > 1]:
            raise ValueError(f"each transition once, but {twice[0]} is declared twice")
        needed = [way for way in POSSIBLE if way[1] is not StageState.ROLLED_BACK and way not in ways]
        if needed:
            origin, to = needed[0]
            raise ValueError(f"every transition except to {StageState.ROLLED_BACK}; {origin} > {to} is missing")
        return value

    @model_validator(mode="after")
    def _declared_with_evidence(self) -> StateMachine:
        if self.delivery == "exactly_once" and self.evidence is None:
            raise ValueError("delivery: exactly_once needs evidence: campaign, commit, units, kills, lost, duplicates")
        return self

    @model_validator(mode="after")
    def _compensable_or_not(self) -> StateMachine:
        if both := sorted(set(self.human_review) & set(self.retry_policy.retry_on)):
            raise ValueError(
                f"{both[0]} is in human_review and in retry_policy.retry_on, but only one of the two can apply"
            )
        return self

    @field_validator("idempotency_key")
    @classmethod
    def _of_known_parts(cls, value: str) -> str:
        parts = value.split("+")
        if "run_id" not in parts or len(set(parts)) != len(parts) or set(parts) - set(_KEY_PARTS):
            raise ValueError(f"run_id and any of {', '.join(_KEY_PARTS[1:])}, each once, joined by +")
        return value


class Verify(Strict):
    """The parts of a replay's outputs to compare with the original's."""

    hash: bool
    primary_keys: bool


class Replay(Strict):
    """The rules for replaying a run."""

    enabled: bool
    order: Literal["reverse_topology"]
    require_checkpoint: bool
    compensate_before_replay: bool
    verify: Verify


class ReplayAlerts(Strict):
    """The channels of `alerts.yaml` that report a divergence."""

    on_divergence: list[str]


ReasonCode = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,59}$")]


class ReplayPlan(Strict):
    """`replay_plan.yaml`; `reasons` maps the codes of additional replay reasons to meanings."""

    version: Literal["1.0.0"]
    replay: Replay
    alerts: ReplayAlerts
    reasons: dict[ReasonCode, Annotated[Line, Field(max_length=200)]] = Field({})

    @field_validator("reasons")
    @classmethod
    def _no_codes_of_the_ledger(cls, value: dict[str, str]) -> dict[str, str]:
        if taken := sorted(set(value) & set(ReplayReason)):
            raise ValueError(f"codes that the ledger defines already: {', '.join(taken)}")
        return value


class Card(BaseModel):
    """The three files, and the bytes of the two files that a release bundle includes."""

    model_config = ConfigDict(frozen=True)

    machine: StateMachine
    replay_plan: ReplayPlan
    alerts: AlertPlan
    files: dict[str, bytes]
    folder: Path

    @classmethod
    def load(cls, folder: Path | None = None) -> Card:
        """Read the files of a folder, or of this release. Raises CardError with file, line, reason."""
        root = own_folder() if folder is None else folder
        if not (root / STATE_MACHINE).is_file():
            raise CardError(
                "KFM_CONFIGS_DIR has no pipeline card",
                observed=f"no file {root / STATE_MACHINE}",
                next_step="copy configs/ of this release, or unset the variable",
            )
        # The folder needs the other two files only if they are changed: a missing file is read from this release.
        names = (STATE_MACHINE, REPLAY_PLAN, ALERTS)
        (machine, machine_file), (plan, plan_file), (alerts, alerts_file) = (text_in(root, name) for name in names)
        card = cls(
            machine=parse(machine, StateMachine, source=machine_file),
            replay_plan=parse(plan, ReplayPlan, source=plan_file),
            alerts=AlertPlan.parse(alerts, source=alerts_file),
            files={STATE_MACHINE: machine.encode(), REPLAY_PLAN: plan.encode()},
            folder=root,
        )
        _refuse_unknown_channels(card, source=plan_file)
        return card

    def refuse_unknown_stages(self, known: Sequence[str]) -> None:
        """Refuse checkpoints of unknown stages. Raises CardError with file, line and reason."""
        for position, name in enumerate(self.machine.checkpoints):
            if name not in known:
                raise refusal(
                    self.files[STATE_MACHINE].decode(),
                    ("checkpoints", position),
                    source=str(self.folder / STATE_MACHINE),
                    observed=repr(name),
                    expected=f"one of the stages: {', '.join(known)}",
                )


def _refuse_unknown_channels(card: Card, *, source: str) -> None:
    for position, name in enumerate(card.replay_plan.alerts.on_divergence):
        if name not in card.alerts.channels:
            raise refusal(
                card.files[REPLAY_PLAN].decode(),
                ("alerts", "on_divergence", position),
                source=source,
                observed=repr(name),
                expected=f"a channel of {ALERTS}: {', '.join(card.alerts.channels)}",
            )
