"""Finding: the first node of the chain - where a run's units come from, and how it claims them.

Belongs here: landed messages, the ledger, and a bucket's listing as sources of units. Does not belong here: what is
done to a unit (`nodes.py`), how a notification is parsed (`operators/message_parse.py`), or its intake (`intake.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum, unique
from typing import Any, Protocol

import orjson
from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.errors import StoreAccessError
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.ingest.kill_switch_policy import refuse_switched_off
from kfm_dagster.ingest.node import ChainNode, in_chunks
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.rejections import RejectedObject
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import parse_listed
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.objects import ListedObject

LISTING_CHUNK = 5_000
"""Listed objects that enter the ledger in one transaction; a busy day has over 100,000."""


@unique
class Source(StrEnum):
    """Where message_parse takes its units from."""

    LANDING = "landing"
    """What the messages of landed batches, named by digest, gave the ledger when they were taken in."""
    LEDGER = "ledger"
    """What is pending in the ledger."""
    LISTING = "listing"
    """The bucket's objects of the partition's day, and what is pending in the ledger."""


class ListingAccount(Protocol):
    """What a backfill keeps of the listing of one of its days."""

    def opened(self, tx: Transaction) -> bool:
        """Begin to count the objects; False when nobody wants the listing any more."""
        ...

    def counted(self, tx: Transaction, *, listed: int, created: int, requeued: int) -> bool:
        """Count what entered the ledger in this transaction; False when nobody wants the rest any more."""
        ...

    def closed(self, tx: Transaction) -> None:
        """Note that every object of the day is in the ledger."""
        ...


@dataclass(kw_only=True)
class MessageParse(ChainNode):
    """Claim units that have a pending record; a listing gives its objects theirs first.

    A listing enters the ledger in the bulk lane, so that what is announced today goes first. With `lane` only units of
    that lane are claimed; a run that a person starts claims from both, live units first.
    """

    operator = "message_parse"
    asset = "envelopes"
    description = (
        "Units of one UTC day, claimed for this run: pending in the ledger since their messages were parsed at intake, "
        "or listed in the bucket. Started by hand, it lists the bucket and takes what is missing."
    )

    source: Source
    landing: Sequence[str] = ()
    limit: int
    lane: Lane | None = None
    account: ListingAccount | None = None
    """Of the backfill that asked for this listing, where one did."""
    listing: Sequence[ListedObject] = field(default=(), repr=False)
    """What the bucket holds of the day, once `inputs` has listed it. A backfill counts while it lists."""
    _refused: StoreAccessError | None = field(default=None, init=False, repr=False)
    _replays: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def references(self) -> Sequence[InputReference]:
        """Return the landed batches: a run lists once, whatever has come to the bucket since."""
        return [InputReference(uri=f"landing:{digest}", checksum=digest) for digest in self.landing]

    @override
    def inputs(self) -> Sequence[ManifestEntry]:
        if self.source is Source.LISTING:
            # The caller has to see that nothing will come; the other sources find nothing to claim.
            refuse_switched_off(self.pipeline.ledger.switches, self.dataset)
        if self.source is Source.LISTING and self.account is None:
            self.listing = sorted(self._list(), key=lambda listed: listed.uri)
            # Kept, so that what was listed can be read again; an intent is no place for a busy day's objects.
            kept = self.pipeline.stages.artifacts.put(_listing_lines(self.listing), suffix="ndjson")
            return [ManifestEntry(uri=kept.uri, checksum=kept.sha256)]
        return [ManifestEntry(uri=f"landing:{digest}", checksum=digest) for digest in self.landing]

    @override
    def params(self) -> Mapping[str, Any]:
        return {**super().params(), "source": self.source.value, "limit": self.limit, "lane": self.lane}

    @override
    def context(self) -> Mapping[str, Any]:
        return {**super().context(), "landing": list(self.landing)}

    def can_reuse_output(self, tx: Transaction) -> bool:
        """Tell whether no unit of the day waits or is in work."""
        # A listing lets failed units in again, and a backfill counts what it listed.
        waiting = (Status.PENDING, Status.IN_PROGRESS, *((Status.FAILED,) if self.source is Source.LISTING else ()))
        return self.account is None and not self.pipeline.ledger.holds(
            dataset=self.dataset, partition=self.partition, statuses=waiting, tx=tx
        )

    @override
    def transform(self) -> list[Envelope]:
        if self.source is Source.LISTING:
            self._enter_listing()
            if self._refused is not None:
                raise self._refused
        return []

    @override
    def apply(self, tx: Transaction, made: list[Envelope], /) -> list[Envelope]:  # nothing is made before the claim
        # Claimed in the transaction that names the output: a run that dies before it has claimed nothing.
        if self.account is not None:
            self.account.closed(tx)
        claimed = self.pipeline.ledger.claim(
            dataset=self.dataset,
            partition=self.partition,
            run_id=self.run_id,
            limit=self.limit,
            lane=self.lane,
            tx=tx,
        )
        self._replays = Counter(unit.replay_run_id for unit in claimed if unit.replay_run_id is not None)
        return claimed

    def audit_lines(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Say which replays' units this run does again."""
        return [
            attempt.event(AuditKind.REPLAY, "let in", {"replay_run_id": replay_run_id, "units": units})
            for replay_run_id, units in sorted(self._replays.items())
        ]

    def _enter_listing(self) -> None:
        """Give every object of the day its record, and let failed ones in again, a chunk to a transaction.

        A listing that dies is begun again: what it had entered is known then, and nothing is entered twice.
        """
        if self.account is not None:
            with self.pipeline.database.transaction() as tx:
                if not self.account.opened(tx):
                    return
        for chunk in in_chunks(self._listed(), LISTING_CHUNK):
            if not self._enter(chunk):
                return

    def _enter(self, chunk: Sequence[Envelope]) -> bool:
        ledger = self.pipeline.ledger
        with self.pipeline.database.transaction() as tx:
            ensured = ledger.ensure(chunk, lane=Lane.BULK, tx=tx)
            failed = [wal_id for wal_id, status in ensured.existing.items() if status is Status.FAILED]
            requeued = ledger.requeue(failed, reason=ReplayReason.BACKFILL, tx=tx)
            self.pipeline.deliveries.reject_objects(
                [
                    RejectedObject(
                        dataset=unit.dataset, object_uri=unit.object_uri, detail=ensured.refused[unit.wal_id]
                    )
                    for unit in chunk
                    if unit.wal_id in ensured.refused
                ],
                tx=tx,
            )
            return self.account is None or self.account.counted(
                tx, listed=len(chunk), created=len(ensured.created), requeued=len(requeued)
            )

    def _list(self) -> Iterator[ListedObject]:
        try:
            yield from self.pipeline.objects.list_day(self.contract, date.fromisoformat(self.partition))
        except StoreAccessError as error:
            # One bucket costs the others nothing: what they hold enters the ledger, and then the listing fails.
            self._refused = error

    def _listed(self) -> Iterator[Envelope]:
        for listed in self.listing if self.account is None else self._list():
            unit = parse_listed(self.contract, listed)
            if unit is not None:
                yield unit


def _listing_lines(listing: Sequence[ListedObject]) -> bytes:
    """Return a listing as lines of JSON: the same objects in the same versions give the same bytes."""
    return b"".join(
        orjson.dumps({"uri": listed.uri, "size": listed.size, "etag": listed.etag}, option=orjson.OPT_APPEND_NEWLINE)
        for listed in listing
    )
