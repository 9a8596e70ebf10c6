"""Evidence: collecting what a person needs to judge each quarantined unit, once for each quarantine (BEY-06).

What the unit left in the catalog without lineage is taken back first: a case without evidence is what is still to do.
A bundle is stored under its hash before its case names it, so a process that dies in between leaves a file that nobody
names and a case that the next collector takes. Belongs here: the one way in which evidence is collected and read again.
Does not belong here: what stands in a bundle (`evidence_bundle.py`), the cases (`ledger/cases.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from obstore.exceptions import BaseError

from kfm_dagster.catalog.store import CatalogUndoError
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import ArtifactError, ContractError, DependencyUnavailableError, KfmError
from kfm_dagster.ingest.evidence_bundle import FoundMessage, FoundObject, ObjectState, bundle_of
from kfm_dagster.ingest.orphans import OrphanedItems
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.threads import Threads
from kfm_dagster.ledger.cases import AnnouncingMessage, DueCase, QuarantineCases
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord, replay_history
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.redaction import redacted_error
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.objects import ObjectStores
from kfm_dagster.storage.s3 import Store

FOLDER = "evidence"
EDGE_BYTES = 512
"""Bytes kept of each end of an object: every format of ours says in them what it is, and where it was cut off."""
LIMIT = 500
"""Cases that one call collects at most; what is left is the next call's."""
BUDGET_SECONDS = 15.0
"""A call begins no further part after this long: a store that does not answer must not hold up a tick of 60 s."""
_PART = 50

_OVERWRITTEN = frozenset({LedgerCode.STALE_EVENT.value, LedgerCode.SUPERSEDED.value})
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    case: DueCase
    record: NoddWalRecord
    history: Sequence[HistoryEntry]
    message: FoundMessage | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceCollector:
    """Collects the evidence of a deployment's cases."""

    cases: QuarantineCases
    bundles: Artifacts
    landing: Landing
    objects: ObjectStores
    registry: ContractRegistry
    orphans: OrphanedItems
    threads: Threads
    withholding: bool
    """Whether sensitive areas are set, so that the content of no object may be shown."""

    @classmethod
    def of(cls, pipeline: Pipeline) -> EvidenceCollector:
        """Return the collector of a deployment."""
        stages = pipeline.stages.lifecycle.store
        return cls(
            cases=QuarantineCases(pipeline.database, clock=pipeline.clock),
            bundles=evidence_bundles(pipeline.store),
            landing=pipeline.landing,
            objects=pipeline.objects,
            registry=pipeline.registry,
            orphans=OrphanedItems(catalog=pipeline.catalog, ledger=pipeline.ledger, stages=stages),
            threads=pipeline.threads,
            withholding=pipeline.settings.sensitive_areas is not None,
        )

    def collect(self, *, limit: int = LIMIT) -> int:
        """Make the evidence of quarantined units that have none, oldest first; return the number of bundles.

        Never raises for what a store does: a landing zone or artifact store that does not answer leaves the cases to
        the next call, as an Item that cannot be taken back leaves its case; an object that cannot be read is what the
        evidence says. What cannot be made of one case's message or object is left out with a note (SEC-12).
        """
        due = self.cases.due(limit=limit)
        end = time.monotonic() + BUDGET_SECONDS
        collected = 0
        for start in range(0, len(due), _PART):
            if time.monotonic() > end:
                break
            try:
                collected += self._collect(self._without_orphans(due[start : start + _PART]))
            except (BaseError, OSError, DependencyUnavailableError) as error:
                _LOG.warning("evidence is not stored yet, the next collection tries again: %s", type(error).__name__)
                break
        return collected

    def _without_orphans(self, part: Sequence[DueCase]) -> Sequence[DueCase]:
        """Take back the units' Items without lineage; return the cases of units that have no Item any more."""
        try:
            self.orphans.take_back({case.wal_id for case in part})
        except CatalogUndoError as error:
            _LOG.warning("%s", error)
            return [case for one in part if len(part) > 1 for case in self._without_orphans([one])]
        return part

    def _collect(self, due: Sequence[DueCase]) -> int:
        def store(facts: _Facts) -> ArtifactReference:
            try:
                observed = self._look(facts.record, reason=facts.case.reason)
                content = bundle_of(facts.case, facts.record, facts.history, found=observed, message=facts.message)
            except KfmError:  # of the deployment, so of every case
                raise
            except Exception as error:  # of this case's message or object, so of no other case
                shown = redacted_error(error)
                _LOG.exception("the evidence of %s has no message and no object", facts.record.wal_id, exc_info=shown)
                note = FoundObject(state=ObjectState.UNREADABLE, why=f"the evidence ends in {type(error).__name__}")
                content = bundle_of(facts.case, facts.record, facts.history, found=note, message=None)
            return self.bundles.put(content, suffix="json")

        known = self._facts(due)
        stored = self.threads.concurrently(store, known)
        return self.cases.attach(zip((facts.case for facts in known), stored, strict=True))

    def _facts(self, due: Sequence[DueCase]) -> list[_Facts]:
        histories = self.cases.histories(case.wal_id for case in due)
        # As it stood when it was quarantined, wherever the record is by now.
        until = [(case, histories[case.wal_id][: case.version]) for case in due]
        records = [(case, replay_history(history), history) for case, history in until]
        messages = self._messages([record for _, record, _ in records])
        return [
            _Facts(case=case, record=record, history=history, message=messages.get(record.sqs_message_id or ""))
            for case, record, history in records
        ]

    def _messages(self, records: Sequence[NoddWalRecord]) -> Mapping[str, FoundMessage]:
        deliveries = self.cases.messages(record.sqs_message_id for record in records if record.sqs_message_id)
        landed: dict[str, Mapping[str, SqsMessage] | str] = {}
        for digest in sorted({delivery.landing for delivery in deliveries.values()}):
            try:
                landed[digest] = {message.message_id: message for message in self.landing.read(digest)}
            except ArtifactError as error:
                landed[digest] = str(error)
        return {name: _found_message(delivery, landed[delivery.landing]) for name, delivery in deliveries.items()}

    def _look(self, record: NoddWalRecord, *, reason: str) -> FoundObject:
        """Look at the object as it stands: its head, and both ends where they may be shown."""
        if reason in _OVERWRITTEN:
            return FoundObject(state=ObjectState.OVERWRITTEN, why=reason)
        try:
            contract = self.registry[record.dataset]
        except ContractError:
            return FoundObject(state=ObjectState.UNREADABLE, why="the dataset has no contract any more")
        shown = _may_be_shown(contract, record) and not self.withholding
        try:
            handle = self.objects.open(contract, record.object_uri)
            head, first = handle.probe(EDGE_BYTES) if shown else (handle.head(), b"")
            # An object shorter than both ends is told by its first bytes and what follows them.
            start = max(head.size - EDGE_BYTES, len(first))
            last = handle.read(start, head.size - start) if shown and start < head.size else b""
        except ObjectReadError as error:
            absent = error.code is IntegrityIssue.MISSING_OBJECT
            return FoundObject(state=ObjectState.ABSENT if absent else ObjectState.UNREADABLE, why=str(error.observed))
        return FoundObject(
            state=ObjectState.PRESENT if shown else ObjectState.WITHHELD,
            size=head.size,
            version=head.etag,
            content_type=head.content_type,
            last_modified=head.last_modified,
            first=first,
            last=last,
        )


def evidence_bundles(store: Store) -> Artifacts:
    """Return the bundles of a deployment's store."""
    return Artifacts(store, folder=FOLDER)


def read_evidence(store: Store, reference: ArtifactReference) -> dict[str, Any]:
    """Read a bundle back. Raises ArtifactError when it is gone or is not the one that was stored."""
    content: dict[str, Any] = orjson.loads(evidence_bundles(store).get(reference))
    return content


def _found_message(delivery: AnnouncingMessage, batch: Mapping[str, SqsMessage] | str) -> FoundMessage:
    if isinstance(batch, str):
        return FoundMessage(delivery=delivery, landed=None, why=batch)
    message = batch.get(delivery.message_id)
    why = None if message else "the landed batch does not hold the message"
    return FoundMessage(delivery=delivery, landed=message, why=why)


def _may_be_shown(contract: DatasetContract, record: NoddWalRecord) -> bool:
    """Tell whether content may stand in evidence: not where governance keeps it from anybody."""
    governance = contract.governance
    restricted = governance.sensitivity != "none" or governance.indigenous_data_flag
    return not restricted and record.last_error_code != LedgerCode.GOVERNANCE_HARD_FAIL
