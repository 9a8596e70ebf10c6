"""`configs/alerts.yaml`: rules with thresholds, windows and escalation; channels by level.

Belongs here: the model of the file. Does not belong here: the URLs of a channel (`evaluator.py`), or how a rule is
evaluated (`sql/queries/alerts.sql`).
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum, unique
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, create_model

from kfm_dagster.configs import Duration, Strict, parse, refusal

ALERTS = "alerts.yaml"


@unique
class Level(StrEnum):
    """The severity of an alert, rising from the first member to the last."""

    INFO = "info"
    """To be read at leisure, in a list."""
    WARNING = "warning"
    """To be handled in working hours."""
    CRITICAL = "critical"
    """To be handled immediately, by the person on call."""


@unique
class AlertRule(StrEnum):
    """A rule: its name, its meaning to the receiver, and the command that shows the evidence.

    In `look`, RUN is the run of the newest event.
    """

    meaning: str
    look: str

    def __new__(cls, name: str, meaning: str = "", look: str = "kfm report --days 1; kfm runs show RUN") -> Self:
        """Make a member whose value is the rule's name."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.meaning, member.look = meaning, look
        return member

    STATE_FLAPPING = "state_flapping", "The stage fails and is rerun, again and again."
    RETRY_STORM = (
        "retry_storm",
        "Many stages are retried: a dependency may be down, and the retries add to its load.",
    )
    COVARIANCE = "covariance", "A covariance is not positive definite (G7), so its uncertainties are meaningless."
    PATH_DESYNC = "path_desync", "The arrays of a path do not belong together (G3)."
    UNLOCK = (
        "unlock",
        "The clock is not locked (E_SYNC): outputs are [Restricted] or stages do not run.",
        "kfm clock --ask",
    )
    GATE_BREACH = "gate_breach", "A gate does not pass: it stops the stage, drops units, or restricts the output."
    REPLAY_DIVERGENCE = "replay_divergence", "The replay of a run or of a unit gave another result than the original."
    WORSE_OBJECT = (
        "worse_object",
        "A version of an object was quarantined; the Item of an earlier one stays in the catalog.",
        "kfm units cases; kfm runs show RUN",
    )
    SILENT_FEED = (
        "silent_feed",
        "A product of the feed is silent: nothing of it was announced for two cadences.",
        "kfm gaps",
    )


def _some(value: timedelta) -> timedelta:
    if not value:
        raise ValueError("longer than 0")
    return value


Span = Annotated[Duration, AfterValidator(_some)]


class RuleTerms(Strict):
    """When a rule opens an alert, at which level, and when the alert is resent or rises."""

    threshold: int = Field(ge=1)
    window: Span
    level: Level
    suppress: Duration
    escalate_after: Span | None = None


class _ByMember(Strict):
    def __getitem__(self, member: StrEnum) -> Any:
        return getattr(self, member.value)


_RULES: dict[str, Any] = {rule.value: (RuleTerms, ...) for rule in AlertRule}
AlertRules = create_model("AlertRules", __base__=_ByMember, __doc__="The terms of all rules.", **_RULES)
_LEVELS: dict[str, Any] = {level.value: (list[str], ...) for level in Level}
Levels = create_model("Levels", __base__=_ByMember, __doc__="The channels of each level.", **_LEVELS)

ChannelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,59}$")]


class AlertPlan(Strict):
    """`alerts.yaml`."""

    version: Literal["1.0.0"]
    channels: list[ChannelName]
    levels: Levels
    rules: AlertRules

    @classmethod
    def parse(cls, text: str, *, source: str = ALERTS) -> AlertPlan:
        """Read the file's text. Raises CardError with file, line and reason."""
        plan = parse(text, cls, source=source)
        for level in Level:
            for position, name in enumerate(plan.levels[level]):
                if name not in plan.channels:
                    raise refusal(
                        text,
                        ("levels", level.value, position),
                        source=source,
                        observed=repr(name),
                        expected=f"one of the channels: {', '.join(plan.channels)}",
                    )
        return plan
