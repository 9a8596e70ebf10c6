"""The provider: writes, overwrites, re-issues and loses objects, and announces them.

It also keeps the expected state for checks of the ledger: every version of every object, in the order in which they
were written. Does not belong here: delivery (`services.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import orjson
import pyproj

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.operators.message_parse import parse_message
from kfm_dagster_tests.catalog.envelopes import goes, nexrad
from kfm_dagster_tests.simulation.faults import Fault
from kfm_dagster_tests.simulation.objects import SIZE, Buckets, Stored, content_of
from kfm_dagster_tests.simulation.scheduling import Actor, Scheduler
from kfm_dagster_tests.simulation.services import PRIMARY, Broker

GOES_TOPIC = "arn:aws:sns:us-east-1:123901341784:NewGOES19Object"
NEXRAD_TOPIC = "arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2Archive"
GOES_PROJECTION = pyproj.CRS("+proj=geos +h=35786023 +lon_0=-75 +sweep=x +ellps=GRS80").to_wkt()
LATENESS = 400.0
"""The longest delay of a message or an object, in seconds."""
BIRTHS = 6
"""The maximum number of events of a feed, such as a written, lost or announced object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version of one object, which is one unit of the ledger.

    `order` compares versions of one Item: by re-issue, then by the order in which the object was written.
    """

    unit: Envelope
    item_id: str
    order: tuple[str, int]
    record: Mapping[str, object]
    sample: Envelope
    """The object's content."""
    sound: bool
    """Whether the content is valid, so that the version can become an Item."""


class Feed:
    """The written objects and their announcements."""

    def __init__(self, scheduler: Scheduler, registry: ContractRegistry, broker: Broker, buckets: Buckets) -> None:
        self.versions: dict[WalId, Version] = {}
        self.announced: dict[WalId, Version] = {}
        self._scheduler = scheduler
        self._registry = registry
        self._broker = broker
        self._buckets = buckets
        self._sources: dict[str, Envelope] = {}
        self._numbers: dict[str, int] = {}

    def live(self, _actor: Actor) -> None:
        """Write, overwrite, lose and announce objects, between two and BIRTHS times."""
        scheduler, rng = self._scheduler, self._scheduler.rng
        for _ in range(rng.randint(2, BIRTHS)):
            self._happen(rng.random())
            scheduler.pause("feed", seconds=rng.uniform(1, 200))
        for uri in self._sources:
            if scheduler.happens(Fault.OBJECT_GONE):
                self._buckets.objects.pop(uri, None)

    def find(self, uri: str, etag: str) -> Version | None:
        """Return the version with this URI and ETag."""
        matching = (
            version
            for version in self.versions.values()
            if version.unit.object_uri == uri and version.unit.etag == etag
        )
        return next(matching, None)

    def is_readable(self, version: Version) -> bool:
        """Return whether the provider's key now holds this version."""
        stored = self._buckets.find(version.unit.object_uri)
        return stored is not None and stored.etag == version.unit.etag

    def newer(self, wal_id: str) -> list[WalId]:
        """Return the versions of the same object that were written after this one."""
        this = self.versions[WalId(wal_id)]
        return [
            other
            for other, version in self.versions.items()
            if version.unit.object_uri == this.unit.object_uri and version.order > this.order
        ]

    def _happen(self, chance: float) -> None:
        rng = self._scheduler.rng
        uris = list(self._sources)
        if not uris or chance < 0.35:
            self._write(self._another())
        elif chance < 0.65:
            self._write(self._sources[rng.choice(uris)])
        elif chance < 0.75:
            self._lose(rng.choice(uris))
        elif chance < 0.9:
            self._announce(rng.choice(list(self.versions.values())))
        elif chance < 0.95:
            self._announce(*rng.sample(list(self.versions.values()), k=min(2, len(self.versions))))
        else:
            self._scheduler.happened["unreadable message"] += 1
            self._broker.send(PRIMARY, "{poison", frozenset())

    def _another(self) -> Envelope:
        rng = self._scheduler.rng
        if rng.random() < 0.3:
            return nexrad()
        self._scheduler.happened["object"] += 1
        return goes(rng.randrange(2), created=rng.randrange(3), **{"proj:wkt2": GOES_PROJECTION})

    def _write(self, sample: Envelope) -> None:
        uri = sample.object_uri
        rng, now = self._scheduler.rng, self._scheduler.now
        number = self._numbers[uri] = self._numbers.get(uri, 0) + 1
        if number > 1:
            self._scheduler.happened["rewritten"] += 1
        self._sources[uri] = sample
        etag = hashlib.md5(f"{uri} {number}".encode()).hexdigest()
        late = rng.uniform(0, LATENESS) if self._scheduler.happens(Fault.OBJECT_LATE) else 0.0
        wrong = self._wrong(sample)
        content = content_of(sample, self._registry[sample.dataset], wrong)
        self._buckets.objects[uri] = Stored(etag=etag, content=content, appears_at=now + timedelta(seconds=late))
        announced_at = now.replace(microsecond=now.microsecond // 1000 * 1000)  # the precision of an event's time
        record = ObjectEvent(
            bucket=sample.bucket, key=sample.key, size=SIZE, etag=etag, event_time=announced_at
        ).record()
        unit = self._unit(record, sample)
        match = self._registry.grammars[unit.dataset].match(unit.key)
        version = Version(
            unit=unit,
            item_id=match.item_id,
            order=(match.precedence, number),
            record=record,
            sample=sample,
            sound=not wrong,
        )
        self.versions[unit.wal_id] = version
        if rng.random() < 0.9:  # only a listing finds the objects that are not announced
            self._announce(version)

    def _wrong(self, sample: Envelope) -> dict[str, object]:
        """Draw the wrong values of an object, if any."""
        if "proj:shape" in sample.metadata.stac_properties and self._scheduler.happens(Fault.UNSOUND):
            self._scheduler.happened["unsound object"] += 1
            return {"proj:shape": [0, 0]}
        if self._scheduler.happens(Fault.POISONOUS):
            self._scheduler.happened["poisonous object"] += 1
            return {f"nobody:knows-{number}": "this" for number in range(len(sample.metadata.stac_properties))}
        return {}

    def _unit(self, record: Mapping[str, object], sample: Envelope) -> Envelope:
        body = _notification([record], _topic(sample))
        message = SqsMessage(message_id="m", body=body)
        (unit,) = parse_message(message, registry=self._registry, queue=PRIMARY).envelopes
        return unit

    def _announce(self, *versions: Version) -> None:
        rng = self._scheduler.rng
        topic = _topic(versions[0].sample)
        announced = [version for version in versions if _topic(version.sample) == topic]
        self.announced |= {version.unit.wal_id: version for version in announced}
        body = _notification([version.record for version in announced], topic)
        delay = rng.uniform(0, LATENESS) if self._scheduler.happens(Fault.MESSAGE_LATE) else 0.0
        units = frozenset(str(version.unit.wal_id) for version in announced)
        for _ in range(2 if self._scheduler.happens(Fault.ANNOUNCED_TWICE) else 1):
            self._broker.send(PRIMARY, body, units, delay=delay)
            self._scheduler.happened["announced"] += 1

    def _lose(self, uri: str) -> None:
        """Remove an object, temporarily or permanently."""
        stored = self._buckets.objects.get(uri)
        if stored is None:
            return
        self._scheduler.happened["object lost"] += 1
        if self._scheduler.rng.random() < 0.5:
            del self._buckets.objects[uri]
        else:
            back = self._scheduler.now + timedelta(seconds=self._scheduler.rng.uniform(60, 1200))
            self._buckets.objects[uri] = replace(stored, appears_at=back)


def _topic(sample: Envelope) -> str:
    return NEXRAD_TOPIC if sample.dataset == "nexrad-l2" else GOES_TOPIC


def _notification(records: list[Mapping[str, object]], topic: str) -> str:
    payload = orjson.dumps({"Records": records}).decode()
    notification = {
        "Type": "Notification",
        "MessageId": hashlib.md5(payload.encode()).hexdigest(),
        "TopicArn": topic,
        "Subject": "Amazon S3 Notification",
        "Message": payload,
    }
    return orjson.dumps(notification).decode()
