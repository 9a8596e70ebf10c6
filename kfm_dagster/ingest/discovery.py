"""Discovery: the first node of the chain, which finds and claims a run's units.

Belongs here: the ledger and a bucket's listing as sources of units. Does not belong here: the steps after it
(`nodes.py`), parsing of notifications (`operators/message_parse.py`), or their intake (`intake.py`).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from functools import cached_property, partial
from typing import Any

import orjson
from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.errors import StoreAccessError
from kfm_dagster.idempotent_node.compute_hash import ManifestEntry
from kfm_dagster.ingest.kill_switch_policy import refuse_switched_off
from kfm_dagster.ingest.node import ChainNode, in_chunks
from kfm_dagster.ingest.recording import enter_listed
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import IgnoreReason, parse_listed
from kfm_dagster.run_state.record import InputReference, Outcome
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.objects import ListedObject
from kfm_dagster.telemetry.traces import is_tracing, record_span

LISTING_CHUNK = 5_000
"""Listed objects per transaction of the ledger; a busy day has over 100,000."""


@unique
class Source(StrEnum):
    """The source of message_parse's units."""

    LEDGER = "ledger"
    """Units pending in the ledger."""
    LISTING = "listing"
    """The bucket's objects of the partition's day, and units pending in the ledger."""


LeftOut = Mapping[str, Mapping[str, int | str]]
"""Listed keys that gave no unit, by reason: their number `keys`, and the `first` key."""
_WHY_LEFT_OUT = {
    KeyKind.IGNORED: IgnoreReason.KNOWN_NEIGHBOUR.value,
    KeyKind.FOREIGN: ParseIssue.KEY_GRAMMAR_MISMATCH.value,
    KeyKind.DATA: ParseIssue.INVALID_TIME_RANGE.value,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DayListing:
    """The progress of a day's listing, recorded for the backfill that requested it."""

    clock: Callable[[], datetime]
    backfill_id: str
    dataset: str
    day: str

    def opened(self, tx: Transaction) -> bool:
        """Begin to count the objects; False if the day is listed already or the backfill has ended."""
        return tx.run("backfill.open_listing", self._day).one_or_none() is not None

    def counted(self, tx: Transaction, *, listed: int, created: int, requeued: int) -> bool:
        """Count the units of this transaction; False when the backfill was stopped meanwhile."""
        row = tx.run("backfill.count_listed", self._day, listed=listed, created=created, requeued=requeued)
        return row.one_or_none() is not None

    def closed(self, tx: Transaction, left_out: LeftOut) -> None:
        """Record that the listing is complete, with the keys that gave no unit."""
        tx.run("backfill.close_listing", self._day, at=self.clock(), left_out=left_out)

    @property
    def _day(self) -> dict[str, str]:
        return {"backfill_id": self.backfill_id, "dataset": self.dataset, "day": self.day}


@dataclass(kw_only=True)
class MessageParse(ChainNode):
    """Claim pending units; with a listing as source, first record the listed objects.

    Listed objects enter the ledger in the bulk lane, so that today's announced units are claimed first. With `lane`,
    only units of that lane are claimed; a run that a person starts claims from both lanes, live units first.
    """

    operator = "message_parse"
    asset = "envelopes"
    description = (
        "Units of one UTC day, claimed for this run: pending in the ledger since their messages were parsed at intake, "
        "or listed in the bucket. A run that a person starts lists the bucket and ingests the missing objects."
    )
    did = ("claimed", "unit")

    source: Source
    limit: int
    lane: Lane | None = None
    account: DayListing | None = None
    """The progress record of the backfill that requested this listing, if any."""
    listing: Sequence[ListedObject] = field(default=(), repr=False)
    """The day's objects in the bucket, once `inputs` has listed them. A backfill does not keep them."""
    _refused: StoreAccessError | None = field(default=None, init=False, repr=False)
    _left_out: dict[str, dict[str, int | str]] = field(default_factory=dict, init=False, repr=False)
    _whole: bool = field(default=False, init=False, repr=False)
    _began: int = field(default=0, init=False, repr=False)
    _replays: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    @override
    def references(self) -> Sequence[InputReference]:
        """Return the requests to ledger or bucket, each with its query and the day as its window.

        Each request of a listing has the digest of the whole listing: URIs, sizes, ETags, Last-Modified. A run lists
        once, so a second call returns the first digest even if the bucket has changed. A backfill's requests have no
        digest, because a backfill records objects while it lists.
        """
        day = datetime.fromisoformat(f"{self.partition}T00:00:00+00:00")
        requests: dict[str, dict[str, str]] = {
            _in_ledger(self): {"status": Status.PENDING, "lane": self.lane or "any", "limit": str(self.limit)}
        }
        if self.source is Source.LISTING:
            requests = {uri: {"list-type": "2", "prefix": uri.split("/", 3)[3]} for uri in self._prefixes()}
        return [
            InputReference(
                uri=uri,
                checksum=self._listed_digest if self.account is None and self.source is Source.LISTING else None,
                query=query,
                window=(rfc3339(day), rfc3339(day + timedelta(days=1))),
            )
            for uri, query in requests.items()
        ]

    @override
    def inputs(self) -> Sequence[ManifestEntry]:
        if self.source is not Source.LISTING:
            return [ManifestEntry(uri=_in_ledger(self))]
        # A listing of a switched-off dataset fails visibly. A run without a listing is not checked: its claim is empty.
        refuse_switched_off(self.pipeline.ledger.switches, self.dataset)
        if self.account is not None:
            return [ManifestEntry(uri=uri) for uri in self._prefixes()]
        if isinstance(self._kept, Exception):
            raise self._kept
        return [self._kept]

    @cached_property
    def _kept(self) -> ManifestEntry | Exception:
        """The file of the listed objects, or an error, which `inputs` raises so that it is recorded.

        A file, because a busy day has too many objects for an intent, and because a replay reads them again.
        """
        try:
            self.listing = sorted(self._list(), key=lambda listed: listed.uri)
            # The same objects in the same versions give the same bytes.
            lines = b"".join(orjson.dumps(listed, option=orjson.OPT_APPEND_NEWLINE) for listed in self.listing)
            artifact = self.pipeline.stages.artifacts.put(lines, suffix="ndjson")
        except Exception as error:
            return error
        return ManifestEntry(uri=artifact.uri, checksum=artifact.sha256)

    @property
    def _listed_digest(self) -> str | None:
        state = self.pipeline.stages.run_states.get(self.kind, self.run_id)
        if state is not None and state.outcome is not Outcome.FAILED:
            for intent in reversed(self.pipeline.nodes.intents.of_run(self.run_id)):
                if intent.payload["context"].get("dataset_id") == self.kind:
                    return str(intent.payload["inputs"][0]["checksum"])
        with self.pipeline.database.snapshot() as tx:
            if self.pipeline.ledger.switches.off([self.dataset], tx=tx):
                return None
        return None if isinstance(self._kept, Exception) else self._kept.checksum

    def _prefixes(self) -> list[str]:
        contract, day = self.contract, date.fromisoformat(self.partition)
        prefixes = self.pipeline.registry[self.dataset].storage.day_prefixes(day)
        return [f"s3://{bucket}/{prefix}" for bucket in contract.storage.buckets for prefix in prefixes]

    @override
    def params(self) -> Mapping[str, Any]:
        return {**super().params(), "source": self.source.value, "limit": self.limit, "lane": self.lane}

    @override
    def context(self) -> Mapping[str, Any]:
        # Called after `inputs`, which sets `_refused`; a replay must see that the listing was incomplete.
        refused = {"refused": str(self._refused)} if self._refused is not None else {}
        return {**super().context(), **refused}

    @override
    def can_reuse_output(self, tx: Transaction) -> bool:
        """Return whether no unit of the day waits or is in progress; always False for a backfill."""
        # A listing requeues failed units, so they count as waiting, too. A backfill must list to count the objects.
        waiting = (Status.PENDING, Status.IN_PROGRESS, *((Status.FAILED,) if self.source is Source.LISTING else ()))
        return self.account is None and not self.pipeline.ledger.holds(
            dataset=self.dataset, partition=self.partition, statuses=waiting, tx=tx
        )

    @override
    def transform(self) -> list[Envelope]:
        self._began = time.time_ns()
        if self.source is Source.LISTING:
            self._enter_listing()
            if self._refused is not None:
                raise self._refused
        return []

    @override
    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:  # `transform` returns no units
        # Claimed in the transaction that records the output, so that a run that dies earlier holds no claims.
        if self.account is not None:
            self.account.closed(tx, self._left_out)
        # Before a dataset's first day no data can be missing.
        if self._whole and date.fromisoformat(self.partition) >= self.contract.storage.first_day:
            self.pipeline.gaps.listed(self.dataset, self.partition, at=self.pipeline.clock(), tx=tx)
        claimed = self.pipeline.ledger.claim(
            dataset=self.dataset,
            partition=self.partition,
            run_id=self.run_id,
            limit=self.limit,
            lane=self.lane,
            tx=tx,
        )
        if is_tracing():
            for unit in claimed:
                tx.after_commit(partial(record_span, self.operator, unit, self._began, self.public))
        self._replays = Counter(unit.replay_run_id for unit in claimed if unit.replay_run_id is not None)
        return claimed

    @override
    def claimed(self, batch: Sequence[Envelope]) -> ManifestEntry:
        """Return a manifest entry of the claimed units: the digest of their ids and record versions."""
        return claimed_of(self, batch)

    @override
    def audit_lines(self, attempt: StageAttempt) -> Sequence[AuditEvent]:
        """Return the replays whose units this run repeats."""
        return [
            attempt.event(AuditKind.REPLAY, "let in", {"replay_run_id": replay_run_id, "units": units})
            for replay_run_id, units in sorted(self._replays.items())
        ]

    def _enter_listing(self) -> None:
        """Record every object of the day and requeue failed units, a chunk per transaction.

        After a crash the listing starts again and skips the recorded objects, so that none is entered twice.
        """
        if self.account is not None:
            with self.pipeline.database.transaction() as tx:
                if not self.account.opened(tx):
                    return
        for chunk in in_chunks(self._listed(), LISTING_CHUNK):
            if not self._enter(chunk):
                return
        self._whole = True

    def _enter(self, chunk: Sequence[Envelope]) -> bool:
        with self.pipeline.database.transaction() as tx:
            ensured, requeued = enter_listed(self.pipeline.ledger, chunk, tx)
            for unit in chunk:
                if unit.wal_id in ensured.refused:
                    self._leave_out(unit.key, ParseIssue.DATABASE_REFUSED.value)
            return self.account is None or self.account.counted(
                tx, listed=len(chunk), created=len(ensured.created), requeued=len(requeued)
            )

    def _list(self) -> Iterator[ListedObject]:
        try:
            day = date.fromisoformat(self.partition)
            yield from self.pipeline.objects.list_day(
                self.contract, day, left_out=lambda key, kind: self._leave_out(key, _WHY_LEFT_OUT[kind])
            )
        except StoreAccessError as error:
            # The objects of the other buckets enter the ledger before the listing fails.
            self._refused = error

    def _leave_out(self, key: str, reason: str) -> None:
        count = self._left_out.setdefault(reason, {"keys": 0, "first": key})
        count["keys"] = int(count["keys"]) + 1

    def _listed(self) -> Iterator[Envelope]:
        grammar = self.pipeline.registry.grammars[self.dataset]
        for listed in self.listing if self.account is None else self._list():
            unit = parse_listed(grammar, listed)
            if unit is not None:
                yield unit


def _in_ledger(node: ChainNode) -> str:
    return f"ledger:{node.dataset}@{node.partition}"


def claimed_of(node: ChainNode, batch: Sequence[Envelope]) -> ManifestEntry:
    """Return the entry of a day's units: SHA-256 over the sorted lines `<wal_id> <version>`.

    `version` is the record's version after the claim.
    """
    lines = "".join(sorted(f"{unit.wal_id} {unit.record_version}\n" for unit in batch))
    return ManifestEntry(uri=_in_ledger(node), checksum=hashlib.sha256(lines.encode()).hexdigest())


def kept_listing(artifacts: Artifacts, kept: Mapping[str, str]) -> list[ListedObject]:
    """Return the stored listing of a manifest's entry. Raises ArtifactError."""
    content = artifacts.get(ArtifactReference(uri=kept["uri"], sha256=kept["checksum"]))
    lines = [orjson.loads(line) for line in content.splitlines()]
    return [ListedObject(**line | {"last_modified": datetime.fromisoformat(line["last_modified"])}) for line in lines]
