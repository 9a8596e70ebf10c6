"""Stories of a feed: objects are stored, announced and drained in some order, with the expected outcome of each.

Belongs here: the values of a pathology, and `play`. Does not belong here: the corpus (`pathologies.py`), or the caller:
a test over a folder, or a deployment through `kfm_dagster.demo.feed.Feed`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from kfm_dagster.contracts.identity import rfc3339, uuid8
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.feed import SUBJECT, ObjectEvent, chunk_notification, topic_of
from kfm_dagster.ledger.state_machine import Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A content of an object, and the time of its event by S3."""

    bucket: str
    key: str
    content: bytes
    at: datetime

    @property
    def uri(self) -> str:
        """`s3://bucket/key`."""
        return f"s3://{self.bucket}/{self.key}"

    @property
    def etag(self) -> str:
        """The ETag: an MD5, as of an object that was stored in one part."""
        return hashlib.md5(self.content, usedforsecurity=False).hexdigest()

    @property
    def event(self) -> ObjectEvent:
        """S3's event of this version."""
        return ObjectEvent(bucket=self.bucket, key=self.key, size=len(self.content), etag=self.etag, event_time=self.at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Store the content under the version's key in the bucket, in place of any earlier content."""

    version: Version
    content: bytes | None = None
    """The stored content, if it differs from the version's content."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Announce:
    """Announce versions by one message with an event for each, through `topic`, else the bucket's topic.

    Chunks have a message each, because a chunk's message announces a single chunk.
    """

    versions: tuple[Version, ...]
    topic: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drain:
    """The pipeline works until the queue is empty and every unit is terminal."""


Step = Store | Announce | Drain


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedOutcome:
    """The expected outcome of a version; `code` is the code of its last error."""

    version: Version
    status: Status
    code: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pathology:
    """A story, its steps, and its expected end.

    `shown` are the versions that Items show, one version per Item. `closed` are those of the shown versions that were
    read again as the last chunk of their volume, because a later volume closed it; their Items state this.
    """

    name: str
    story: str
    steps: tuple[Step, ...]
    fates: tuple[ExpectedOutcome, ...]
    shown: tuple[Version, ...] = ()
    closed: tuple[Version, ...] = ()
    rejected: tuple[ParseIssue, ...] = ()


def play(
    pathology: Pathology,
    *,
    registry: ContractRegistry,
    put: Callable[[str, str, bytes], object],
    send: Callable[[str], object],
    drain: Callable[[], object],
) -> None:
    """Play the steps: `put` stores (bucket, key, content), `send` puts a body on the queue, `drain` processes it.

    With an embedded cloud these are `feed.put`, `feed.announce_raw` and a call of `deployment.drain.drain`.
    """
    for step in (*pathology.steps, Drain()):
        match step:
            case Store(version=version, content=content):
                put(version.bucket, version.key, version.content if content is None else content)
            case Announce(versions=versions, topic=named):
                topic = named or topic_of(registry, versions[0].bucket)
                if registry.shapes.get(topic) == "nexrad-chunk":
                    for version in versions:
                        send(_delivered(chunk_notification(version.event), topic=topic, at=version.at))
                else:
                    send(notification(versions, topic=topic))
            case Drain():
                drain()


def notification(versions: Sequence[Version], *, topic: str) -> str:
    """Return the body of the SQS message by which SNS delivers one S3 event message."""
    payload = json.dumps({"Records": [version.event.record() for version in versions]}, separators=(",", ":"))
    return _delivered(payload, topic=topic, at=versions[0].at)


def _delivered(payload: str, *, topic: str, at: datetime) -> str:
    return json.dumps(
        {
            "Type": "Notification",
            "MessageId": uuid8("sns", payload),
            "TopicArn": topic,
            "Subject": SUBJECT,
            "Message": payload,
            "Timestamp": rfc3339(at + timedelta(seconds=1)),
        }
    )
