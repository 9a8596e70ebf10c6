"""`configs/retention.yaml`: the retention time of each kind of bulky data.

Belongs here: the model of the file, and the least age of each kind. Does not belong here: which data may be deleted
(`sql/queries/retention.sql`, `defs/run_storage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field

from kfm_dagster.configs import Duration, Strict, parse, text_in

RETENTION = "retention.yaml"


@unique
class RetentionKind(StrEnum):
    """A kind of data with a retention time, in the order of removal."""

    DAGSTER_RUNS = "dagster_runs"
    """Finished runs of Dagster, their events and their steps' output."""
    LANDING = "landing"
    """Raw messages, in their batches of receipt."""
    ARTIFACTS = "artifacts"
    """Outputs of stages."""
    EVIDENCE_SAMPLES = "evidence_samples"
    """Evidence of quarantined units whose cases are closed: bytes of the object, the message."""


def _at_least(days: int, why: str) -> Callable[[timedelta], timedelta]:
    def check(value: timedelta) -> timedelta:
        if value < timedelta(days=days):
            raise ValueError(f"{days}d at least: {why}")
        return value

    return check


Runs = Annotated[Duration, AfterValidator(_at_least(1, "a run is looked at after it has ended"))]
# With a shorter age, a redelivered message would be landed in its batch while that is being removed.
Messages = Annotated[Duration, AfterValidator(_at_least(15, "SQS gives a message again for up to 14 days"))]
Outputs = Annotated[Duration, AfterValidator(_at_least(8, "kfm report looks at the outputs of 7 days"))]
Samples = Annotated[Duration, AfterValidator(_at_least(1, "a case is looked at after it is closed"))]


class KeptFor(Strict):
    """The maximum age of each kind of data; None is for ever."""

    dagster_runs: Runs | None = None
    landing: Messages | None = None
    artifacts: Outputs | None = None
    evidence_samples: Samples | None = None


class RetentionPolicy(Strict):
    """`retention.yaml`."""

    version: Literal["1.0.0"]
    keep: KeptFor = Field(description="A kind that is not named is kept for ever.")

    @classmethod
    def load(cls, folder: Path | None) -> Self:
        """Read a folder's file, or this release's. Raises CardError with file, line and reason."""
        text, source = text_in(folder, RETENTION)
        return parse(text, cls, source=source)

    @property
    def ages(self) -> Mapping[RetentionKind, timedelta]:
        """The maximum age of each kind that has a limit, in the order of removal."""
        ages = {kind: getattr(self.keep, kind.value) for kind in RetentionKind}
        return {kind: age for kind, age in ages.items() if age is not None}
