"""The selection spec of a replay: its records, its mode and options, and its limits.

A YAML file and the options of a command give the same document, which a strict model checks. The same spec on the same
ledger selects the same records in the same order. Does not belong here: querying the ledger (`units.py`), and whether a
valid spec is allowed (`plan.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import date, timedelta
from enum import StrEnum, unique
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from kfm_dagster.configs import held_against, parse, read_text
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Environment

API_VERSION = "kfm.nodd.replay/v1"
SCHEMA_FILE = "docs/spec/replay-selection.schema.json"


@unique
class Mode(StrEnum):
    """The action of a replay on its selected units."""

    FAILED_ONLY = "failed-only"
    """Requeue failed units, within their contract's policy."""
    REPAIR_AND_REPLACE = "repair-and-replace"
    """Requeue also succeeded and quarantined units, under an approval."""
    BACKFILL = "backfill"
    """List the buckets of whole days, and ingest the objects that the ledger does not have."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Text = Annotated[str, Field(min_length=1, max_length=200)]
Code = Annotated[str, Field(min_length=1, max_length=100)]
Dataset = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9]*(-[a-z0-9]+)*)$", max_length=40)]
WalIdText = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class SelectionMetadata(_Strict):
    """The replay's name, purpose, environment and labels."""

    name: Annotated[str, Field(min_length=1, max_length=100)] = Field(description="Name shown in lists and logs.")
    description: str = Field("", max_length=1000, description="Purpose, in a sentence.")
    env: Environment = Field(description="dev, stage or prod; must equal KFM_ENV.")
    labels: dict[Text, Text] = Field(
        {},
        description="Any labels. Two have a meaning: replay_reason (a governed reason, default incident), incident_id.",
    )


class _Span(_Strict):
    """Two optional ends, in order."""

    may_be_equal: ClassVar[bool] = False

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        (first, begin), (last, end) = self
        if begin and end and (begin > end or (begin == end and not self.may_be_equal)):
            raise ValueError(f"{first} is not before {last}")
        return self


class EventTime(_Span):
    """The times when objects were written, from `start` (inclusive) to `end` (exclusive)."""

    start: AwareDatetime | None = None
    end: AwareDatetime | None = None


class Days(_Span):
    """UTC days of the units, like the partitions, from the first to the last, both included."""

    may_be_equal: ClassVar[bool] = True
    first: date | None = None
    last: date | None = None

    @property
    def are_bounded(self) -> bool:
        """Whether both ends are given."""
        return self.first is not None and self.last is not None


class Created(_Span):
    """The units' discovery times, from `after` (inclusive) to `before` (exclusive)."""

    after: AwareDatetime | None = None
    before: AwareDatetime | None = None


class Attempts(_Strict):
    """The number of the units' attempts."""

    max: int = Field(ge=0, le=1000, description="Maximum number of attempts of a unit.")


class Filters(_Strict):
    """The filters of records; a record must pass each of them."""

    datasets: list[Dataset] = Field([], description='Dataset ids; "*" selects all datasets (not in prod).')
    status: list[Status] = Field([], description="Default: failed. Never pending or in_progress.")
    error_codes: list[Code] = Field([], description="Only records whose last error has one of these codes.")
    event_time: EventTime = Field(EventTime(), description="Only objects written within this time.")
    days: Days = Field(Days(), description="Only units of these days, whenever their objects were written.")
    created: Created = Field(Created(), description="Only units discovered within this time.")
    attempts: Attempts | None = Field(None, description="Only units with a limited number of attempts.")
    wal_ids: list[WalIdText] = Field([], max_length=10_000, description="Only these units; no other filter is needed.")


class SpecLimits(_Strict):
    """The replay's own limits, besides the environment's limits."""

    max_records: int | None = Field(None, ge=1, description="Maximum records, earliest events first. Default: all.")
    batch_size: int | None = Field(None, ge=1, description="Units requeued at a time.")
    max_batches: int | None = Field(None, ge=1, description="Refuse a selection that needs more batches.")


class Options(_Strict):
    """Options of the replay."""

    dry_run: bool = Field(default=False, description="Plan only; change nothing.")
    allow_repair_and_replace: bool = Field(default=False, description="Required for mode repair-and-replace.")
    must_match: bool = Field(default=False, description="Repeat successes; a different result stops the replay.")
    allow_downgrade: bool = Field(default=False, description="Also replace results of a newer release.")
    respect_kill_switch: bool = Field(
        default=True,
        description="true: wait while a dataset of the selection is switched off. false: skip and count the units of "
        "such a dataset. No option requeues these units.",
    )
    approval: Text | None = Field(None, description="Change or incident of the approval.")
    records_per_second: float | None = Field(None, ge=1, description="Maximum rate, below the environment's limit.")
    batches_per_minute: int | None = Field(None, ge=1, description="Maximum rate, below the environment's limit.")
    notes: str = Field("", max_length=2000, description="Notes for readers.")


class Spec(_Strict):
    """A mode, and the records that it applies to."""

    mode: Mode = Mode.FAILED_ONLY
    filters: Filters
    limits: SpecLimits = SpecLimits()
    options: Options = Options()

    @property
    def statuses(self) -> tuple[Status, ...]:
        """The selected statuses without repetitions."""
        return tuple(dict.fromkeys(self.filters.status)) or (Status.FAILED,)

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Spec:
        if self.mode is Mode.BACKFILL:
            self._is_of_days()
            return self
        possible = [Status.FAILED]
        if self.mode is Mode.REPAIR_AND_REPLACE:
            possible += [Status.SUCCEEDED, Status.QUARANTINED]
        if wrong := [status.value for status in self.statuses if status not in possible]:
            raise ValueError(f"status {', '.join(wrong)} with mode {self.mode}, which is for {' or '.join(possible)}")
        if self.options.must_match and self.mode is Mode.FAILED_ONLY:
            raise ValueError("must_match with mode failed-only, although it compares successes")
        return self

    def _is_of_days(self) -> None:
        filters = self.filters
        if not filters.datasets or filters.event_time.start is None or filters.event_time.end is None:
            raise ValueError("a backfill without datasets, event_time.start or event_time.end")
        is_narrowed = filters.status or filters.error_codes or filters.wal_ids or filters.attempts
        if is_narrowed or filters.created != Created() or filters.days != Days():
            raise ValueError("a backfill with a filter other than datasets and event_time, although it lists buckets")
        if self.limits != SpecLimits():
            raise ValueError("a backfill with limits, although it lists whole days, as fast as KFM_LIVE_SHARE allows")


class Selection(_Strict):
    """A replay selection, as a file holds it."""

    apiVersion: Literal["kfm.nodd.replay/v1"]  # noqa: N815 - the key's name in the file, as in Kubernetes
    kind: Literal["ReplaySelection"]
    metadata: SelectionMetadata
    spec: Spec

    @model_validator(mode="after")
    def _reason_is_no_retry(self) -> Selection:
        # Only automatic retries have this reason: it puts units into the live lane without a decision.
        if self.replay_reason == ReplayReason.RETRY:
            raise ValueError("metadata.labels.replay_reason is 'retry', which only a contract's own retries have")
        return self

    @property
    def replay_reason(self) -> str:
        """The reason for the replay, a word of the ledger's vocabulary."""
        return self.metadata.labels.get("replay_reason", ReplayReason.INCIDENT)

    @property
    def change_ref(self) -> str | None:
        """The change or incident that the spec itself names."""
        return self.spec.options.approval or self.metadata.labels.get("incident_id")

    @property
    def days(self) -> tuple[date, date]:
        """First and last UTC day of a backfill."""
        window = self.spec.filters.event_time
        if window.start is None or window.end is None:
            raise ValueError("only a backfill has days")
        return window.start.date(), (window.end - timedelta(microseconds=1)).date()

    def as_json(self) -> dict[str, Any]:
        """Return the document with every default."""
        return self.model_dump(mode="json")

    def brief(self) -> dict[str, Any]:
        """Return the document as a person would write it, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def sha256(self) -> str:
        """Return the digest that identifies this selection in an approval."""
        return hashlib.sha256(orjson.dumps(self.as_json(), option=orjson.OPT_SORT_KEYS)).hexdigest()


def selection_from(env: Environment, source: str, /, **parts: Any) -> Selection:
    """Return the selection of named parts (`_PATHS`); an empty part gets the model's default.

    Raises ConfigurationError.
    """
    metadata = {"name": "by hand", "env": env.value}
    document = {"apiVersion": API_VERSION, "kind": "ReplaySelection", "metadata": metadata, "spec": {"filters": {}}}
    for name, value in parts.items():
        if value not in (None, "", [], ()):
            *path, last = _PATHS[name].split(".")
            node: dict[str, Any] = document
            for step in path:
                node = node.setdefault(step, {})
            node[last] = list(value) if isinstance(value, tuple) else value
    return selection_of(document, source=source)


_PATHS = {
    "name": "metadata.name",
    "replay_reason": "metadata.labels.replay_reason",
    "incident": "metadata.labels.incident_id",
    "mode": "spec.mode",
    "attempts_max": "spec.filters.attempts.max",
    **{f"event_time_{end}": f"spec.filters.event_time.{end}" for end in EventTime.model_fields},
    **{f"{end}_day": f"spec.filters.days.{end}" for end in Days.model_fields},
    **{f"created_{end}": f"spec.filters.created.{end}" for end in Created.model_fields},
    **{name: f"spec.filters.{name}" for name in Filters.model_fields},
    **{name: f"spec.limits.{name}" for name in SpecLimits.model_fields},
    **{name: f"spec.options.{name}" for name in Options.model_fields},
}
"""Path of each part of a selection, by its name in commands, jobs and pages."""


def selection_of_days(env: Environment, datasets: Sequence[str], first_day: date, last_day: date) -> Selection:
    """Return the selection of a backfill of these days."""
    return selection_from(
        env,
        "the days",
        name="backfill",
        mode=Mode.BACKFILL.value,
        datasets=list(datasets),
        event_time_start=f"{first_day}T00:00:00Z",
        event_time_end=f"{last_day + timedelta(days=1)}T00:00:00Z",
    )


def load_selection(path: Path) -> Selection:
    """Read a file. Raises ConfigurationError with file, line and reason."""
    return parse_selection(read_text(path, error=ConfigurationError), source=str(path))


def parse_selection(text: str, *, source: str) -> Selection:
    """Read YAML text. Raises ConfigurationError with source, line and reason."""
    return parse(text, Selection, source=source, error=ConfigurationError, schema=SCHEMA_FILE)


def selection_of(document: object, *, source: str) -> Selection:
    """Check a document. Raises ConfigurationError naming the first wrong key."""
    return held_against(document, Selection, source=source, error=ConfigurationError, schema=SCHEMA_FILE)
