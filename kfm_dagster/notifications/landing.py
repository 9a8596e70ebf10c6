"""The landing zone: raw messages under the hash of their bytes.

Belongs here: writing a batch once and reading it back unchanged. Does not belong here: the messages' meaning, and
deletion by retention (docs/retention.md).
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import orjson
from obstore.exceptions import AlreadyExistsError, NotFoundError

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import ArtifactError
from kfm_dagster.failpoints import Failpoint, hit
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.storage.answering import answering
from kfm_dagster.storage.s3 import Store

MAX_BATCH_BYTES = 1024**3
"""Limit for unpacking a landed batch, because a corrupted file must not fill the memory."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Landing:
    """Stores batches in the deployment's store, and never overwrites or deletes a batch."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def land(self, messages: Sequence[SqsMessage]) -> str:
        """Write a batch unless it exists; return its digest, `sha256:<hex>`.

        The digest covers the unpacked bytes (sorted lines without delivery data), so zlib's release does not matter.
        """
        content = b"".join(sorted({_line(message) for message in messages}))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        with answering("the landing zone", "KFM_STORAGE_URL"):
            hit(Failpoint.LANDING_PUT_BEFORE)
            with suppress(AlreadyExistsError):  # the same bytes: landing is idempotent
                self._store.put(_uri(digest), gzip.compress(content, mtime=0), mode="create")
            hit(Failpoint.LANDING_PUT_AFTER)
        return digest

    def read(self, digest: str) -> tuple[SqsMessage, ...]:
        """Read a batch. Raises ArtifactError if it is missing or does not match its digest."""
        if not _DIGEST.fullmatch(digest):
            raise ArtifactError("not the digest of a landed batch", observed=digest[:80], expected="sha256:<64 hex>")
        try:
            with answering("the landing zone", "KFM_STORAGE_URL"):
                packed = bytes(self._store.get(_uri(digest)).bytes())
        except (FileNotFoundError, NotFoundError):
            raise ArtifactError("a landed batch is gone", observed=_uri(digest)) from None
        content = _unpacked(packed)
        if content is None or f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise ArtifactError(
                "a landed batch is corrupted", observed=_uri(digest), expected=digest, next_step="restore the file"
            )
        return tuple(_message(line) for line in content.splitlines())


def _uri(digest: str) -> str:
    name = digest.removeprefix("sha256:")
    return f"landing/{name[:2]}/{name}.ndjson.gz"


def _line(message: SqsMessage) -> bytes:
    # Left out: the receipt handle (a short-lived credential), and the receive count (a fact of one delivery).
    return orjson.dumps(
        {
            "body": message.body,
            "message_id": message.message_id,
            "sent_at": None if message.sent_at is None else rfc3339(message.sent_at),
        },
        option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE,
    )


def _unpacked(packed: bytes) -> bytes | None:
    unpacker = zlib.decompressobj(wbits=31)  # a gzip header and trailer
    try:
        content = unpacker.decompress(packed, MAX_BATCH_BYTES)
    except zlib.error:
        return None
    return content if unpacker.eof else None


def _message(line: bytes) -> SqsMessage:
    fields = orjson.loads(line)
    sent_at = fields["sent_at"]
    return SqsMessage(
        message_id=fields["message_id"],
        body=fields["body"],
        sent_at=None if sent_at is None else datetime.fromisoformat(sent_at),
    )
