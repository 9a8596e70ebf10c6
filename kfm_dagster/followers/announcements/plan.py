"""Model of `configs/announcements.yaml`: subscriptions, their targets and selections.

Does not belong here: matching Items (`selection.py`), sending (`sending.py`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, AwareDatetime, Field, PositiveInt, field_validator, model_validator

from kfm_dagster.addresses import shown
from kfm_dagster.catalog.changes import ChangeKind
from kfm_dagster.configs import Strict, parse, refusal, text_in
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.documents import KeyPath
from kfm_dagster.followers.announcements.selection import compiled
from kfm_dagster.settings import LOOPBACK_HOSTS

ANNOUNCEMENTS = "announcements.yaml"
KIB = 1024
SMALLEST_BYTES, USUAL_BYTES, LARGEST_BYTES = 4 * KIB, 256 * KIB, 1024 * KIB
"""Limits in bytes of a message, and of a whole request. SNS and EventBridge accept 256 KiB. SQS accepts 1 MiB since
2025 (SNS API reference, PublishBatch; SQS, SendMessageBatch)."""


def follower_name(subscription: str) -> str:
    """Return the name of a subscription's follower; its positions are stored by this name."""
    return f"announcements.{subscription}"


def _secure(value: str) -> str:
    """Accept https, and http on this machine; refuse URLs with credentials."""
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("a URL") from None
    secure = parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_HOSTS)
    if not secure or not host or "@" in parts.netloc or parts.fragment:
        raise ValueError("https://HOST/..., or http:// of a loopback address, without user and fragment")
    return value


def _without_query(value: str) -> str:
    if "?" in value:
        raise ValueError("a URL without a query, because paths of files are appended to it")
    return value.rstrip("/")


def _matching(pattern: str, expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if re.fullmatch(pattern, value) is None:
            raise ValueError(expected)
        return value

    return AfterValidator(check)


Topic = Annotated[
    str,
    _matching(
        r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?",
        "the ARN of a topic, arn:aws:sns:REGION:ACCOUNT:NAME",
    ),
]
Bus = Annotated[
    str,
    _matching(
        r"(arn:aws[a-z-]*:events:[a-z0-9-]+:\d{12}:event-bus/)?[A-Za-z0-9._/-]{1,256}",
        "the name or the ARN of an event bus",
    ),
]
SecureUrl = Annotated[str, AfterValidator(_secure)]


class AnnouncementTarget(Strict):
    """Target of a subscription: exactly one of these fields."""

    sns: Topic | None = Field(None, description="ARN of a topic.")
    sqs: SecureUrl | None = Field(None, description="URL of a queue.")
    eventbridge: Bus | None = Field(None, description="Name or ARN of an event bus.")
    webhook: SecureUrl | None = Field(None, description="URL that takes POST requests.")

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        return next(iter(self.model_dump(exclude_none=True)))

    @property
    def address(self) -> str:
        """ARN, URL or name."""
        address: str = getattr(self, self.kind)
        return address

    def __str__(self) -> str:
        """Return the target for display, without a URL's query, because a query can be a credential."""
        return f"{self.kind}: {shown(self.address)}"

    @model_validator(mode="after")
    def _one_of_them(self) -> AnnouncementTarget:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError(f"not exactly one of {', '.join(type(self).model_fields)}")
        return self


class Subscription(Strict):
    """A receiver. Its events are recorded under its name, so a new name sends all events again."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,59}$")]
    target: AnnouncementTarget
    datasets: Annotated[list[str], Field(min_length=1)] | None = Field(None, description="Default: all.")
    kinds: list[ChangeKind] = Field(
        list(ChangeKind), min_length=1, description="Kinds of changes to announce; default: all."
    )
    bbox: tuple[float, float, float, float] | None = Field(
        None,
        description="Box that the footprint meets: west, south, east, north; west > east crosses the antimeridian.",
    )
    filter: str | dict[str, Any] | None = Field(None, description="CQL2, as text or JSON.")
    since: AwareDatetime | None = Field(
        None,
        description="Earlier changes are not announced. Default: a new subscription begins with all current Items.",
    )
    after: list[Literal["stac-api", "geoparquet", "virtual-zarr"]] = Field(
        [], description="Followers that must have received a change before it is announced. Default: none."
    )
    form: Literal["cloudevents", "wis2"] = Field(
        "cloudevents", description="CloudEvents 1.0 in structured JSON, or WMO's WIS2 Notification Message."
    )
    max_bytes: PositiveInt = Field(
        USUAL_BYTES,
        ge=SMALLEST_BYTES,
        le=LARGEST_BYTES,
        description="Maximum bytes of a message, and of a request; if an Item is larger, the event has its address.",
    )
    centre: Annotated[str, Field(pattern=r"^[a-z0-9-]{2,60}$")] | None = Field(
        None, description="WIS2 centre-id, in data_id and metadata_id; needed by the form wis2."
    )

    @field_validator("bbox")
    @classmethod
    def _of_this_world(cls, value: tuple[float, float, float, float] | None) -> tuple[float, ...] | None:
        if value is not None:
            west, south, east, north = value
            if not (-180 <= west <= 180 and -180 <= east <= 180 and -90 <= south < north <= 90 and west != east):
                raise ValueError("west, south, east, north in degrees, south below north")
        return value

    @field_validator("filter")
    @classmethod
    def _is_cql2(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value is not None:
            compiled(value)
        return value

    @model_validator(mode="after")
    def _has_a_centre(self) -> Subscription:
        if (self.form == "wis2") != (self.centre is not None):
            raise ValueError("form wis2 without a centre, or a centre with another form")
        return self


class AnnouncementPlan(Strict):
    """`announcements.yaml`."""

    version: Literal["1.0.0"]
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9+.-]*:[!-~]{1,300}$")] = "urn:kfm:nodd:catalog"
    catalog: Annotated[str, AfterValidator(_secure), AfterValidator(_without_query)] | None = None
    subscriptions: list[Subscription]

    @classmethod
    def load(cls, folder: Path | None, registry: ContractRegistry) -> Self:
        """Read the file of a folder, by default this release's. Raises CardError as `parse` does."""
        text, source = text_in(folder, ANNOUNCEMENTS)
        plan = cls.parse(text, source=source)
        for place, subscription in enumerate(plan.subscriptions):
            for number, dataset in enumerate(subscription.datasets or ()):
                if dataset not in registry.contracts:
                    path = ("subscriptions", place, "datasets", number)
                    expected = f"one of {', '.join(registry.contracts)}"
                    raise refusal(text, path, source=source, observed=repr(dataset), expected=expected)
        return plan

    @classmethod
    def parse(cls, text: str, *, source: str = ANNOUNCEMENTS) -> Self:
        """Read the file's text. Raises CardError with file, line and reason."""
        plan = parse(text, cls, source=source)
        seen: set[str] = set()
        for place, subscription in enumerate(plan.subscriptions):
            path: KeyPath = ("subscriptions", place)
            if subscription.name in seen:
                observed, expected = repr(subscription.name), "a name that no other subscription has"
                raise refusal(text, (*path, "name"), source=source, observed=observed, expected=expected)
            seen.add(subscription.name)
            if subscription.form == "wis2" and not (plan.catalog or "").startswith("https://"):
                observed, expected = "form wis2 without catalog", "catalog: https://..., for the links of its messages"
                raise refusal(text, (*path, "form"), source=source, observed=observed, expected=expected)
        return plan
