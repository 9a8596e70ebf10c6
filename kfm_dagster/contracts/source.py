"""The source of a dataset: its messages, key grammar, buckets and listings.

Belongs here: the part of a contract on the place of objects and their discovery. Does not belong here: applying
the key pattern (`key_grammar.py`), and the rest of the contract (`model.py`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from kfm_dagster.configs import Regex, Strict
from kfm_dagster.contracts.envelope import Priority

TOPIC_ARN = r"^arn:aws:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}$"
TopicArn = Annotated[str, Field(pattern=TOPIC_ARN)]
BUCKET_NAME = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
Bucket = Annotated[str, Field(pattern=BUCKET_NAME)]
HttpsTemplate = Annotated[str, Field(pattern=r"^https://([^{}]|\{\w+\})+$")]
SetName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
SetValue = Annotated[str, Field(pattern=r"^[^{}%]+$", max_length=100)]
_SET = re.compile(r"{(\w+)}")

MAX_PREFIXES = 10_000
"""Maximum prefixes to list for a day; each takes at least one request to the store."""

MessageShape = Literal["s3-event", "nexrad-chunk"]
"""The messages of a topic: S3 events, or messages of Unidata's feed of NEXRAD chunks."""


class Topic(Strict):
    """An SNS topic that announces objects of this dataset."""

    arn: TopicArn
    message_shape: MessageShape = "s3-event"
    until: date | None = Field(
        None, description="First UTC day without messages, e.g. after a satellite's retirement. Default: none."
    )


class Notifications(Strict):
    """The messages of the dataset, and their accepted versions."""

    topics: list[Topic] = Field(
        [],
        min_length=1,
        description="Default: none; then a listing must discover the objects (storage.scheduled_listing).",
    )
    schema_versions: list[str] = Field(
        ["2.0", "2.1", "2.2", "2.3", "2.4"],
        description="Accepted values of S3's eventVersion, or of L2Version for NEXRAD chunks.",
    )
    object_removed: Literal["ignore", "reject"] = Field(
        "ignore",
        description="ignore: ObjectRemoved events are acknowledged and give no unit. reject: they are rejected.",
    )
    priority: Priority = Priority.NORMAL

    @property
    def shapes(self) -> frozenset[MessageShape]:
        """Message shapes of the dataset; S3 events if no topic announces its objects."""
        return frozenset(topic.message_shape for topic in self.topics) or frozenset({"s3-event"})

    @property
    def names_versions(self) -> bool:
        """Whether messages name an object's version; a chunk is written once and has no version."""
        return "s3-event" in self.shapes


class QueueConfig(Strict):
    """The queue that the dataset's topics feed; times in seconds."""

    name: str = "kfm-nodd-primary"
    dlq: str = "kfm-nodd-dlq"
    visibility_timeout: int = Field(900, ge=30, le=43200)
    max_receive_count: int = Field(5, ge=1, le=1000)


class TimeField(Strict):
    """A time in the key: `value` joins groups of the pattern to a text of the form `format`."""

    value: str
    format: str = Field(
        pattern=r"^([^%]|%[mdjHMS])*%Y([^%]|%[mdjHMS])*(%f)?$",
        description="strptime directives of fixed width (%Y %m %d %j %H %M %S) and, last, %f.",
    )

    @field_validator("format")
    @classmethod
    def _each_directive_once(cls, value: str) -> str:
        directives = re.findall(r"%(\w)", value)
        if len(set(directives)) != len(directives):
            raise ValueError("each directive once")
        return value


def refuse_missing(used: Mapping[str, set[str]], groups: set[str]) -> None:
    """Raise ValueError if fields use groups that the key pattern lacks; its text names them."""
    if missing := {field: sorted(names - groups) for field, names in used.items() if names - groups}:
        listing = ", ".join(f"{field} {names}" for field, names in missing.items())
        raise ValueError(f"groups that are not in the key pattern: {listing}; the pattern has {sorted(groups)}")


class ImpliedGroup(Strict):
    """A group that is not in the keys, because another group implies its value."""

    by: str = Field(description="Group of the pattern that implies the value.")
    values: dict[str, list[str]] = Field(description="Each implied value with the values of `by` that imply it.")
    otherwise: str

    def of(self, value: str) -> str:
        """Return the implied value for a value of the group `by`."""
        return next((implied for implied, values in self.values.items() if value in values), self.otherwise)


def _joined(pattern: object) -> object:
    if isinstance(pattern, list) and all(isinstance(piece, str) for piece in pattern):
        return "".join(pattern)
    return pattern


class KeyGrammar(Strict):
    """Regular expression of a whole key, with named groups; times are UTC."""

    pattern: Annotated[Regex, BeforeValidator(_joined, json_schema_input_type=str | list[str])] = Field(
        description="A long pattern may be a list of pieces, which are joined."
    )
    implied: dict[str, ImpliedGroup] = Field(
        {},
        description="Groups besides the pattern's, for times, key values, mirrors, the Item's id and the reader. The "
        "names of an Item's grid properties begin with the group `prefix`, else with the first word of the key (GRIB2) "
        "or of the file's name (NetCDF).",
    )
    start: TimeField | Literal["event"] = Field(
        description="event: the keys have no time. A unit then belongs to the UTC day of its event (from a listing: of "
        "Last-Modified), and its time range lasts from the beginning of that day to the event."
    )
    end: TimeField | None = Field(None, description="Default: the start.")
    end_offset_hours: str | None = Field(None, description="Group that holds hours after the start (forecast lead).")

    @model_validator(mode="after")
    def _groups_exist(self) -> KeyGrammar:
        groups = set(re.compile(self.pattern).groupindex)
        used = {
            "start": set(re.findall(r"{(\w+)}", self.start.value)) if isinstance(self.start, TimeField) else set(),
            "end": set(re.findall(r"{(\w+)}", self.end.value)) if self.end else set(),
            "end_offset_hours": {self.end_offset_hours} if self.end_offset_hours else set(),
        }
        refuse_missing(used, groups | self.implied.keys())
        refuse_missing({"implied": {group.by for group in self.implied.values()}}, groups)
        if shadowed := sorted(groups & self.implied.keys()):
            raise ValueError(f"implied {shadowed} are groups of the pattern")
        if self.end and self.end_offset_hours:
            raise ValueError("end and end_offset_hours exclude each other")
        if not self.has_times and (self.end or self.end_offset_hours):
            raise ValueError("keys without a start have no end: remove end and end_offset_hours")
        return self

    @property
    def has_times(self) -> bool:
        """Whether the keys have a time."""
        return isinstance(self.start, TimeField)


class Sidecar(Strict):
    """A file that describes a data object, and has the object's key plus a suffix.

    Notifications of a sidecar are acknowledged, and give no unit of the sidecar.
    """

    suffix: str = Field(min_length=1)
    role: Literal["index", "metadata"]
    media_type: str = "text/plain"
    required: bool = False
    may_precede_seconds: int = Field(
        3600,
        ge=0,
        le=31 * 86_400,
        description="Maximum seconds by which the sidecar may be older than the object, by Last-Modified. An "
        "even older sidecar may describe an earlier revision of the object (sidecar_outdated).",
    )


class ScheduledListing(Strict):
    """Listings that a deployment starts itself.

    They list today. If the keys have only a month or a year, they list the first day of the current month or year.
    """

    every_seconds: int = Field(ge=300, le=31 * 86_400, description="At most one listing begins within each interval.")
    days_back: int = Field(
        0,
        ge=0,
        le=366,
        description="Days before today to list as well, e.g. because last year's objects are still written in January.",
    )


class Storage(Strict):
    """Location of the objects, and the keys of the dataset."""

    provider: Literal["aws", "gcp", "azure"] = "aws"
    buckets: list[Bucket] = Field(min_length=1)
    region: str = "us-east-1"
    first_day: date = Field(
        description="UTC day before which no object can exist, such as the first day of the archive, satellite or "
        "model. A unit of an earlier day is rejected, and a backfill leaves earlier days out."
    )
    prefixes: list[str] = Field(min_length=1, description="Beginnings of keys, by which keys belong to this dataset.")
    key_grammar: KeyGrammar
    ignore: list[Regex] = Field([], description="Known keys of the same buckets that are not ingested.")
    sidecars: list[Sidecar] = Field([])
    mirrors: dict[Literal["gcs", "azure"], HttpsTemplate] = Field(
        {},
        description="Where NODD's partners have the same objects and sidecars: templates over {bucket}, {key} "
        "(URL-encoded) and the key's groups.",
    )
    listing: list[str] = Field(
        min_length=1,
        description="strftime templates of the prefixes with a UTC day's objects, the same in every bucket; `{name}` "
        "is replaced by each value of the set of this name in listing_sets.",
    )
    listing_sets: dict[SetName, Annotated[list[SetValue], Field(min_length=1)]] = Field(
        {},
        json_schema_extra={"additionalProperties": False},
        description="Values for `listing` if no prefix has a whole day. A template with several sets is listed for "
        "each combination of their values. Announced objects are ingested even if no template covers them.",
    )
    scheduled_listing: ScheduledListing | None = Field(
        None, description="Default: only backfills list objects, so notifications.topics must announce the objects."
    )

    @model_validator(mode="after")
    def _listing_has_its_sets(self) -> Storage:
        used = {name for template in self.listing for name in _set_names(template)}
        if missing := sorted(used - self.listing_sets.keys()):
            raise ValueError(f"listing names sets {missing} that listing_sets does not have")
        if unused := sorted(self.listing_sets.keys() - used):
            raise ValueError(f"listing_sets {unused} are in no template of listing")
        if twice := sorted(name for name, values in self.listing_sets.items() if len(set(values)) < len(values)):
            raise ValueError(f"listing_sets {twice} have a value twice")
        if stray := [template for template in self.listing if re.search(r"[{}]", _SET.sub("", template))]:
            raise ValueError(f"listing {stray} have a brace that belongs to no set's name")
        if starred := [template for template in self.listing if "*" in template.replace("/*/", "//")]:
            raise ValueError(f"listing {starred} have a * that is not a whole folder")
        return self

    @model_validator(mode="after")
    def _listing_finds_the_prefixes(self) -> Storage:
        sizes = (math.prod(len(self.listing_sets[name]) for name in _set_names(template)) for template in self.listing)
        if (count := sum(sizes)) > MAX_PREFIXES:
            raise ValueError(f"a day would be listed under {count} prefixes; {MAX_PREFIXES} at most")
        # If a template were outside the routed prefixes, every backfill of the dataset would silently find nothing.
        for folder in self.day_prefixes(date(2024, 2, 29)):
            if not any(folder.startswith(prefix) or prefix.startswith(folder) for prefix in self.prefixes):
                raise ValueError(f"listing gives {folder!r}, which no prefix of {self.prefixes} covers")
        return self

    def day_prefixes(self, day: date) -> list[str]:
        """Return the prefixes to list for a UTC day: each template with all values of its sets."""
        prefixes: list[str] = []
        for template in self.listing:
            names, dated = _set_names(template), day.strftime(template)
            combinations = itertools.product(*(self.listing_sets[name] for name in names))
            prefixes += [dated.format_map(dict(zip(names, values, strict=True))) for values in combinations]
        return prefixes


def _set_names(template: str) -> list[str]:
    """Return the sets in a listing template, each once, in order."""
    return list(dict.fromkeys(_SET.findall(template)))
