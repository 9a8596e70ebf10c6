"""The chaos plan: the fault at each failpoint, with times and frequency, as one YAML or JSON file.

Unknown keys are refused. Belongs here: the model and its loader. Does not belong here: the effect of a fault
(`injector.py`), or counting (`counters.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from fault_injection.failures import can_fail
from kfm_dagster.configs import Strict, parse, read_text
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.failpoints import Failpoint

API_VERSION = "kfm.nodd.chaos/v1"
MAX_DELAY_MS = 60_000
"""A longer wait has the effect of a `kill`: a heartbeat's pause and a sensor's tick take at most a minute, too."""
MAX_SKEW_SECONDS = 7 * 24 * 3600

LabelName = Literal["dataset", "operator", "partition", "run", "units"]


class _Rule(Strict):
    """When a rule fires: at its n-th occasion, by chance, or at every occasion; all processes share the count."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)] = Field(
        description="Unique in the plan; names the rule in logs and in the state folder."
    )
    nth: PositiveInt | None = Field(None, description="Fire at this occasion and no other; the first is 1.")
    probability: float | None = Field(None, gt=0, le=1, description="Fire at an occasion with this probability.")
    at_most: PositiveInt | None = Field(None, description="Fire no more often than this, over all processes.")

    @model_validator(mode="after")
    def _one_way_to_count(self) -> _Rule:
        if self.nth is not None and (self.probability is not None or self.at_most is not None):
            raise ValueError("nth alone, or probability and at_most: the n-th occasion occurs only once")
        return self


class _AtSeam(_Rule):
    """A rule whose occasions are the reached failpoints that match."""

    failpoint: str = Field(min_length=1, description="Glob over the failpoints' names (kfm_dagster/failpoints.py).")
    where: dict[LabelName, str] = Field({}, description="Globs that the labels of the occasion must match, too.")

    @model_validator(mode="after")
    def _matches_a_failpoint(self) -> _AtSeam:
        if not self.failpoints():
            raise ValueError("a glob that matches at least one failpoint at which this fault can happen")
        return self

    def failpoints(self) -> list[Failpoint]:
        """Return the failpoints that the glob matches."""
        return [failpoint for failpoint in Failpoint if fnmatchcase(failpoint, self.failpoint)]


class Kill(_AtSeam):
    """The process that reaches the failpoint kills itself with SIGKILL."""

    fault: Literal["kill"]

    @model_validator(mode="after")
    def _ends(self) -> Kill:
        if self.nth is None and self.at_most is None:
            raise ValueError("nth or at_most: a deployment that is killed again and again never finishes")
        return self


class Error(_AtSeam):
    """The call at the failpoint fails like its dependency; at a failpoint after a call, the call's answer is lost."""

    fault: Literal["error"]

    def failpoints(self) -> list[Failpoint]:
        """Return the failpoints that the glob matches and that have a dependency."""
        return [failpoint for failpoint in super().failpoints() if can_fail(failpoint)]


class Delay(_AtSeam):
    """The thread that reaches the failpoint waits."""

    fault: Literal["delay"]
    milliseconds: int = Field(ge=1, le=MAX_DELAY_MS, description="How long.")


class Skew(_Rule):
    """The pipeline's clock is wrong in a process; its occasions are the processes that load the plan."""

    fault: Literal["skew"]
    seconds: int = Field(ge=-MAX_SKEW_SECONDS, le=MAX_SKEW_SECONDS, description="Positive: the clock is fast.")


Rule = Kill | Error | Delay | Skew


class Plan(Strict):
    """A chaos plan. The same seed gives the same decisions for the same occasions."""

    apiVersion: Literal["kfm.nodd.chaos/v1"]  # noqa: N815, the key of the file
    seed: int = Field(0, description="Seed of the random decisions of every rule with a probability.")
    rules: list[Annotated[Rule, Field(discriminator="fault")]] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique_names(self) -> Plan:
        if twice := _repeated(rule.name for rule in self.rules):
            raise ValueError(f"rules with different names; {twice} is there twice")
        return self


def load_plan(path: Path) -> Plan:
    """Read a plan from a YAML or JSON file. Raises ConfigurationError with a line on the fault."""
    return parse_plan(read_text(path, error=ConfigurationError), source=path.name)


def parse_plan(text: str, *, source: str) -> Plan:
    """Build a plan from YAML or JSON text. Raises ConfigurationError naming the source and the first wrong key."""
    schema = "docs/spec/chaos-plan.schema.json"
    return parse(text, Plan, source=source, error=ConfigurationError, schema=schema)


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
