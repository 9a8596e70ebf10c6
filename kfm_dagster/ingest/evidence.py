"""Evidence: facts for the decision on a quarantined unit, once per quarantine (BEY-06).

No Item may stay without lineage. So the collector first withdraws Items of units that were quarantined before their
lineage was recorded (ADR 014): only a further attempt would add it, and such a unit may get none. A case without
evidence is due. The collector stores a bundle under its hash before the case names it, so that a crash in between
leaves an unused file, and the case is still due. Belongs here: collecting and reading evidence. Does not belong here: a
bundle's content (`evidence_bundle.py`), cases (`ledger/cases.py`), Items that a rollback withdraws (`chain.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson
from obstore.exceptions import BaseError

from kfm_dagster.catalog.store import Orphan
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.issues import IntegrityIssue
from kfm_dagster.errors import ArtifactError, ContractError, DependencyUnavailableError, KfmError
from kfm_dagster.ingest.evidence_bundle import Announced, ObjectState, bundle_of, object_entry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import DueCase, QuarantineCases
from kfm_dagster.ledger.policy import LedgerCode
from kfm_dagster.ledger.record import HistoryEntry, NoddWalRecord, replay_history
from kfm_dagster.notifications.messages import SqsMessage
from kfm_dagster.redaction import redacted_error
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.publisher import PublishError
from kfm_dagster.storage.s3 import Store

FOLDER = "evidence"
EDGE_BYTES = 512
"""Bytes stored from each end of an object. In all our formats they show the format, and whether the object is cut."""
LIMIT = 500
"""Maximum cases per call; later calls collect the remaining cases."""
BUDGET_SECONDS = 15.0
"""After this time a call stops at the next multiple of _PART cases: a silent store must not delay a tick (60 s)."""
_PART = 50
"""Cases whose evidence is collected at a time."""

_OVERWRITTEN = frozenset({LedgerCode.STALE_EVENT.value, LedgerCode.SUPERSEDED.value})
_LOG = logging.getLogger(__name__)


_Facts = tuple[DueCase, NoddWalRecord, Sequence[HistoryEntry], Announced | None]


class EvidenceCollector:
    """Collects the evidence of a deployment's cases."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
        self._bundles = Artifacts(lambda: pipeline.store, folder=FOLDER)

    def collect(self, *, limit: int = LIMIT) -> int:
        """Collect missing evidence of quarantined units, oldest first; return the number.

        Does not raise for a store's failure. If the landing zone or artifact store does not answer, or a case's Item
        cannot be withdrawn, the cases stay due for the next call. If an object is unreadable, its evidence notes this.
        If a case's message or object causes an error, the evidence has a note instead of message and object (SEC-12).
        """
        due = self._cases.due(limit=limit)
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
        """Withdraw the units' Items without lineage; return the cases where no such Item is left."""
        try:
            withdraw_orphans(self._pipeline, {case.wal_id for case in part})
        except PublishError as error:
            _LOG.warning("%s", error)
            return [case for single in part if len(part) > 1 for case in self._without_orphans([single])]
        return part

    def _collect(self, due: Sequence[DueCase]) -> int:
        def store(facts: _Facts) -> ArtifactReference:
            case, record, history, message = facts
            try:
                observed = self._look(record, reason=case.reason)
                content = bundle_of(case, record, history, observed=observed, message=message)
            except KfmError:  # concerns the deployment, and so every case
                raise
            except Exception as error:  # concerns this case's message or object only
                redacted = redacted_error(error)
                _LOG.exception("the evidence of %s has no message and no object", record.wal_id, exc_info=redacted)
                note = object_entry(ObjectState.UNREADABLE, why=f"examining it failed with {type(error).__name__}")
                content = bundle_of(case, record, history, observed=note, message=None)
            return self._bundles.put(content, suffix="json")

        batch = self._facts(due)
        stored = self._pipeline.threads.concurrently(store, batch)
        return self._cases.attach(zip((case for case, *_ in batch), stored, strict=True))

    def _facts(self, due: Sequence[DueCase]) -> list[_Facts]:
        histories = self._cases.histories(case.wal_id for case in due)
        # The state at the time of the quarantine, even if the record has changed since.
        cases = [(case, histories[case.wal_id][: case.version]) for case in due]
        records = [(case, replay_history(history), history) for case, history in cases]
        messages = self._messages([record for _, record, _ in records])
        return [(*known, messages.get(known[1].sqs_message_id or "")) for known in records]

    def _messages(self, records: Sequence[NoddWalRecord]) -> Mapping[str, Announced]:
        deliveries = self._cases.messages(record.sqs_message_id for record in records if record.sqs_message_id)
        landed: dict[str, Mapping[str, SqsMessage] | str] = {}
        for digest in sorted({delivery.landing for delivery in deliveries.values()}):
            try:
                landed[digest] = {message.message_id: message for message in self._pipeline.landing.read(digest)}
            except ArtifactError as error:
                landed[digest] = str(error)
        messages: dict[str, Announced] = {}
        for key, delivery in deliveries.items():
            batch = landed[delivery.landing]
            absent = "the landed batch does not hold the message"
            messages[key] = (delivery, batch if isinstance(batch, str) else batch.get(delivery.message_id, absent))
        return messages

    def _look(self, record: NoddWalRecord, *, reason: str) -> Mapping[str, Any]:
        """Return the object's present head, and its first and last bytes if they may be shown."""
        if reason in _OVERWRITTEN:
            return object_entry(ObjectState.OVERWRITTEN, why=reason)
        try:
            contract = self._pipeline.registry[record.dataset]
        except ContractError:
            return object_entry(ObjectState.UNREADABLE, why="the dataset has no contract any more")
        # Evidence must not show content that governance or a sensitive area hides.
        shown = not (
            contract.governed
            or record.last_error_code == LedgerCode.GOVERNANCE_HARD_FAIL
            or self._pipeline.settings.sensitive_areas is not None
        )
        try:
            handle = self._pipeline.objects.open(contract, record.object_uri)
            head, first = handle.probe(EDGE_BYTES) if shown else (handle.head(), b"")
            # If an object is shorter than two ends, its last bytes begin after its first bytes.
            start = max(head.size - EDGE_BYTES, len(first))
            last = handle.read(start, head.size - start) if shown and start < head.size else b""
        except ObjectReadError as error:
            absent = error.code is IntegrityIssue.MISSING_OBJECT
            return object_entry(ObjectState.ABSENT if absent else ObjectState.UNREADABLE, why=str(error.observed))
        return object_entry(
            ObjectState.PRESENT if shown else ObjectState.WITHHELD,
            head=head,
            first=first,
            last=last,
        )


def read_evidence(store: Store, reference: ArtifactReference) -> dict[str, Any]:
    """Read a bundle. Raises ArtifactError if it is missing or differs from its hash."""
    content: dict[str, Any] = orjson.loads(Artifacts(lambda: store, folder=FOLDER).get(reference))
    return content


def withdraw_orphans(pipeline: Pipeline, wal_ids: Iterable[WalId]) -> None:
    """Withdraw the Items without lineage that belong to quarantined units of `wal_ids`.

    A transaction per dataset and run locks the units, so that none is requeued meanwhile. Safe to repeat, also after a
    crash. Raises PublishError if the catalog's storage fails, and the database's error.
    """
    known = {contract.id for contract in pipeline.registry}
    for (dataset, run_id), orphans in groupby(pipeline.catalog.orphans(wal_ids), key=attrgetter("dataset", "run_id")):
        if dataset in known:  # without its contract a collection cannot be written
            _withdraw(pipeline, dataset, run_id, list(orphans))


def _withdraw(pipeline: Pipeline, dataset: str, run_id: str, orphans: Sequence[Orphan]) -> None:
    stages = pipeline.stages.lifecycle.store
    with pipeline.database.transaction() as tx:
        held = pipeline.ledger.hold_quarantined([orphan.wal_id for orphan in orphans], tx=tx)
        promotions = {orphan.item_id: orphan.promotion_id for orphan in orphans if orphan.wal_id in held}
        undone = pipeline.catalog.undo_items(dataset, promotions, tx=tx)
        counts = {"restored": len(undone.restored), "removed": len(undone.removed)}
        because = "units quarantined without lineage"
        if not any(counts.values()):
            return
        if (attempt := stages.newest(run_id, f"{dataset}.stac_register", tx=tx)) is not None:
            details = {**counts, "because": because}
            stages.audit.append([attempt.event(AuditKind.COMPENSATION, "done", details)], tx=tx)
    _LOG.warning("withdrew %d Items of %s, run %s: %s", sum(counts.values()), dataset, run_id, because)
