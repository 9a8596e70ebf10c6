"""Events: the message for a change, as a CloudEvent or as a WIS2 Notification Message.

Pure. An event has the same id and the same bytes each time that it is sent. Does not belong here: the choice of
receivers (`announcer.py`), sending (`sending.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.item import canonical
from kfm_dagster.catalog.layout import GEOJSON, JSON, link
from kfm_dagster.configs import Strict
from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.followers.announcements import wis2
from kfm_dagster.followers.announcements.plan import AnnouncementPlan, Subscription

TYPES = {kind: f"kfm.nodd.item.{kind}" for kind in ChangeKind}
"""`type` of the events. CloudEvents advises a reversed domain as prefix; this product has none and uses its name."""
CLOUDEVENT = "application/cloudevents+json; charset=UTF-8"
ITEM_SCHEMA = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"
REFERENCE_SCHEMA = "urn:kfm:nodd:item-reference:v1"
"""URN of docs/spec/item-reference.schema.json."""
ROOM_BYTES = 1024
"""Bytes reserved for a message's attributes; SNS and SQS count these in addition to the message's body."""
_DIGITS = 19
"""Digits of a change's number (64 bits), padded so that texts sort like numbers (CloudEvents' `sequence`)."""


class ItemReference(Strict):
    """Data of an event without an Item: the Item is withdrawn, or too large for a subscription."""

    collection: str
    id: str
    href: str | None = Field(
        None, description="Address of the Item; relative to the catalog's root if the catalog has no public address."
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingEvent:
    """An event, ready to send."""

    event_id: str
    kind: ChangeKind
    collection: str
    item_id: str
    time: datetime
    content_type: str
    body: bytes

    @property
    def group(self) -> str:
        """Key of fixed length, equal for an Item's events: FIFO queues order events by key."""
        return uuid8(self.collection, self.item_id)

    @property
    def size(self) -> int:
        """Bytes that the event takes in a request."""
        return len(self.body) + ROOM_BYTES


class EventWriter:
    """Writes the events of a subscription.

    Links lead to the catalog's public address or, if the catalog has none, to `catalog_url` in S3. Without either, the
    links are relative, because the files of a local folder are not accessible from outside.
    """

    def __init__(self, plan: AnnouncementPlan, subscription: Subscription, *, catalog_url: str) -> None:
        self.plan = plan
        self.subscription = subscription
        self.base = plan.catalog or (catalog_url.rstrip("/") if catalog_url.startswith("s3://") else None)

    @property
    def content_type(self) -> str:
        """Media type of the events."""
        return GEOJSON if self.subscription.form == "wis2" else CLOUDEVENT

    def event_id(self, collection: str, change: ItemChange, kind: ChangeKind) -> str:
        """Return an event's id, a UUIDv8 of change and kind: equal in all subscriptions and tries."""
        return uuid8(
            "announcement", self.plan.source, collection, change.item_id, kind, str(change.change_id),
            change.content_sha256,
        )  # fmt: skip

    def write(self, collection: str, change: ItemChange, kind: ChangeKind) -> OutgoingEvent:
        """Write an event; `kind` is the kind that the change has for this receiver."""
        event_id = self.event_id(collection, change, kind)
        if self.subscription.form == "wis2":
            body = wis2.notification(
                change,
                kind=kind,
                event_id=event_id,
                collection=collection,
                centre=self.subscription.centre or "",
                href=self._href(change.path),
            )
        else:
            body = self._cloudevent(collection, change, kind, event_id)
        return OutgoingEvent(
            event_id=event_id,
            kind=kind,
            collection=collection,
            item_id=change.item_id,
            time=change.changed_at,
            content_type=self.content_type,
            body=body,
        )

    def _cloudevent(self, collection: str, change: ItemChange, kind: ChangeKind, event_id: str) -> bytes:
        attributes = {
            "specversion": "1.0",
            "id": event_id,
            "source": self.plan.source,
            "type": TYPES[kind],
            "subject": f"{collection}/{change.item_id}",
            "time": rfc3339(change.changed_at),
            "collection": collection,
            "sequence": f"{change.change_id:0{_DIGITS}}",
        }
        if (item := change.item) is not None:
            data = {
                "datacontenttype": GEOJSON,
                "dataschema": ITEM_SCHEMA,
                "data": self._placed(item, change.path),
            }
            body = canonical({**attributes, **data})
            if len(body) + ROOM_BYTES <= self.subscription.max_bytes:
                return body
        reference = ItemReference(
            collection=collection,
            id=change.item_id,
            href=None if change.content is None else self._href(change.path),
        )
        data = {
            "datacontenttype": JSON,
            "dataschema": REFERENCE_SCHEMA,
            "data": reference.model_dump(exclude_none=True),
        }
        return canonical({**attributes, **data})

    def _href(self, path: str) -> str:
        return path if self.base is None else f"{self.base}/{path}"

    def _placed(self, item: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return an Item with absolute links instead of the relative links of its file."""
        if self.base is None:
            return item
        folder = posixpath.dirname(path)
        links = [
            {**relative, "href": self._href(posixpath.normpath(posixpath.join(folder, relative["href"])))}
            for relative in item["links"]
        ]
        return {**item, "links": [*links, link("self", self._href(path), media_type=GEOJSON)]}
