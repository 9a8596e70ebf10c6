"""Lineage store: each unit's lineage is recorded once per form and revision, crash or not.

A transaction for each partition of a batch checks the fence. For each form (the column `path`: OpenLineage or PROV-O)
it writes a row per unit, and one row with the batch's bytes. The outbox delivers the bytes after the commit, so no unit
fails because the lineage root or the backend is dead. The primary key (wal_id, path, revision) decides between two
workers: the batch of a worker has only the units whose rows this worker has inserted.

Belongs here: recording, and the queries that link a record with its runs and activities. Does not belong here:
documents (`openlineage.py`, `prov.py`), the choice of a unit's revision and withdrawing (`revisions.py`), or delivery
of a recorded batch (`batches.py`, `delivery.py`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import orjson
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InternalError

from kfm_dagster.contracts.envelope import ProvenanceResult, ProvenanceStatus, WalId
from kfm_dagster.contracts.issues import FenceIssue, Issue, ProvenanceIssue, Severity
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage import batches
from kfm_dagster.lineage.delivery import BackendDelivery, BackendUnavailableError, ClientBackend
from kfm_dagster.lineage.noted import publish_noted
from kfm_dagster.lineage.openlineage import event_lines, openlineage_events
from kfm_dagster.lineage.prov import OPERATOR, SERVICE, producer_ids, prov_document, prov_line
from kfm_dagster.lineage.revisions import History, Revision, in_revision, invalidate
from kfm_dagster.lineage.unit import IngestRun, LineagePath, LineageUnit
from kfm_dagster.redaction import error_text
from kfm_dagster.storage.database import Database, Transaction, is_conflict
from kfm_dagster.storage.fence import Fence
from kfm_dagster.storage.statements import value_of

_LOG = logging.getLogger(__name__)

_SUFFIX = {LineagePath.OPENLINEAGE: "ndjson", LineagePath.PROV: "jsonld"}
_ISSUE = {
    LineagePath.OPENLINEAGE: ProvenanceIssue.OPENLINEAGE_EMIT_FAILED,
    LineagePath.PROV: ProvenanceIssue.PROV_STORE_UNAVAILABLE,
}
_REFUSALS = (IntegrityError, DataError, InternalError)
"""Errors of a database that refuses a batch. If the connection is lost instead, the whole stage fails."""

_RACE = "lineage_emissions_id_names_one_unit"
"""Index that PostgreSQL can find violated before the primary key, when two workers record the same unit."""

MAX_ROUNDS = 12
"""Maximum rounds of inserts: one, and another for each lost race. 12 rounds are enough for ten workers that record the
same units without a fence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A record's lineage on a path, in a revision. `state`: its file is staged or published.

    `invalidated_at` is the time of the withdrawal, None while the lineage is valid.

    `object_uri` and `record_status` are of the ledger's record, and None if the ledger has no record.
    """

    wal_id: WalId
    path: LineagePath
    revision: str
    lineage_id: str
    href: str
    state: str
    run_id: str
    object_uri: str | None
    record_status: str | None
    invalidated_at: datetime | None = None


@dataclass(kw_only=True)
class _Part:
    """The units of a partition to record, with `failures` by path and the units `refused`."""

    units: Sequence[LineageUnit]
    lines: Mapping[LineagePath, dict[WalId, bytes]]
    """Lines that each path still has to record, by unit."""
    failures: dict[LineagePath, dict[WalId, str]] = field(default_factory=lambda: {path: {} for path in LineagePath})
    refused: Mapping[WalId, FenceIssue] = field(default_factory=dict)


class Lineage:
    """Emits, finds and delivers lineage; threads and processes can share database and root.

    The root is a folder or `s3://bucket/prefix`; any other root raises ConfigurationError. With a backend, each
    OpenLineage batch recorded from now on waits for `deliver`. `public` returns the public name of a step's dataset.
    """

    def __init__(
        self,
        database: Database,
        root: str | batches.LineageFiles,
        *,
        backend: ClientBackend | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        public: Callable[[str], str] = str,
    ) -> None:
        self._database = database
        self._clock = clock
        self._public = public
        files = batches.LineageFiles.open(root) if isinstance(root, str) else root
        self._batches = batches.LineageBatches(database, files, deliver=backend is not None, clock=clock)
        outbox = self._batches.outbox
        self._delivery = BackendDelivery(database, outbox, files, backend=backend, clock=clock) if backend else None

    def emit(
        self, units: Sequence[LineageUnit], *, run: IngestRun, contract: DatasetContract, fence: Fence
    ) -> Mapping[WalId, ProvenanceResult]:
        """Record the units that a path has not recorded yet, and return the result of every unit.

        `units` are of the contract's dataset. A unit that the fence refuses is not recorded, and its result has the
        fence's issue. If a unit cannot be recorded on a path, its result has an issue for the path. Then files
        are published, unless the lineage root is failing. Raises the database's errors, so that the stage is retried.
        """
        run = replace(run, dataset=contract.public_id)
        results: dict[WalId, ProvenanceResult] = {}
        agents = (SERVICE, OPERATOR, *producer_ids(contract))
        for part in _partitions(units):
            recorded = self._record(part, run, contract, fence)
            results |= {unit.wal_id: _result(unit, agents, recorded) for unit in recorded.units}
        if results:
            self._batches.publish_unless_failing()
        return results

    def invalidate(self, *, run_id: str, contract: DatasetContract, reason: str, tx: Transaction) -> int:
        """Withdraw a run's lineage of the contract's dataset; return the number of units.

        Nothing is deleted: both paths publish the withdrawal, and `links_of` omits withdrawn lineage. Emitting a unit
        again adds a further revision. A second call changes nothing. `reason` is a text for people, at most 200
        characters. Raises the database's errors.
        """
        units = invalidate(self._batches, run_id=run_id, contract=contract, reason=reason, at=self._clock(), tx=tx)
        if units:
            tx.after_commit(self._batches.publish_unless_failing)
        return units

    def publish_staged(self) -> int:
        """Record ended steps and failed attempts; publish pending files and return their number."""
        publish_noted(self._database, self._batches, public=self._public)
        return self._batches.publish()

    def deliver(self, *, most_batches: int = 10, within: timedelta = timedelta(seconds=20)) -> int:
        """Send recorded OpenLineage events to the backend; return the number of accepted events.

        Delivery is at least once, with the same bytes each time, so a backend that compares run ids stores each event
        once. Raises BackendUnavailableError if the backend is down; then the events stay pending.
        """
        return self._delivery.deliver(most_batches=most_batches, within=within) if self._delivery else 0

    def flush(self) -> str | None:
        """Publish and deliver all recorded lineage; return the backend's error, or None.

        An event that is not accepted waits in the outbox for the next call.
        """
        self.publish_staged()
        try:
            self.deliver()
        except BackendUnavailableError as error:
            return str(error)
        return None

    def undelivered(self, *, most: int = 20) -> batches.Undelivered:
        """Return lineage that waits for root or backend, and the batches with most failures."""
        with self._database.snapshot() as tx:
            waiting = batches.backlog(tx)
            failing = tx.rows(batches.Failing, "lineage.failing", most=most)
        return batches.Undelivered(files=waiting[batches.FILES], backend=waiting[batches.BACKEND], failing=failing)

    def links_of(self, wal_id: WalId) -> list[Link]:
        """Return OpenLineage runs and PROV activities of a record's valid revisions, oldest first."""
        with self._database.snapshot() as tx:
            return tx.rows(Link, "lineage.links", wal_id=wal_id, lineage_id="")

    def find(self, lineage_id: str) -> Link | None:
        """Return the link of an OpenLineage run id or PROV activity id, even of withdrawn lineage."""
        with self._database.snapshot() as tx:
            return tx.row(Link, "lineage.links", wal_id="", lineage_id=lineage_id)

    def _record(self, units: Sequence[LineageUnit], run: IngestRun, contract: DatasetContract, fence: Fence) -> _Part:
        """Build a partition's documents, then record them; only the recording blocks other writers."""
        history = self._history(units)
        revised = [in_revision(unit, history, run_id=run.run_id) for unit in units]
        part = _build(revised, history, run, contract)
        try:
            with self._database.transaction() as tx:
                part.refused = fence(tx, {unit.wal_id: unit.envelope.attempt for unit in units})
                for path in LineagePath:
                    self._record_path(tx, path, part, run, contract)
        except DBAPIError as error:
            if not is_conflict(error):
                raise
            for path, lines in part.lines.items():
                part.failures[path] |= dict.fromkeys(lines, "another writer has locked the lineage record")
        return part

    def _history(self, units: Sequence[LineageUnit]) -> History:
        related = {other for unit in units for other in (unit.stac.replaces, unit.stac.superseded_by) if other}
        wal_ids = sorted(related | {unit.wal_id for unit in units})
        history: dict[WalId, list[Revision]] = defaultdict(list)
        with self._database.snapshot() as tx:
            for row in tx.run("lineage.history", wal_ids=wal_ids).mappings():
                history[row["wal_id"]].append(value_of(Revision, row))
        return history

    def _record_path(
        self, tx: Transaction, path: LineagePath, part: _Part, run: IngestRun, contract: DatasetContract
    ) -> None:
        """Record units on a path; a refusal by the database does not affect the other path."""
        lines = part.lines[path]
        units = [unit for unit in part.units if unit.wal_id in lines and unit.wal_id not in part.refused]
        if not units:
            return
        reason = ""
        for _ in range(MAX_ROUNDS):
            try:
                with tx.nested():
                    self._insert(tx, path, units, lines, run, contract)
            except _REFUSALS as error:
                reason = error_text(error.orig if isinstance(error.orig, Exception) else error)
                if _RACE not in reason:
                    break
            else:
                return
        _LOG.warning("lineage path %s of %d units of %s is refused: %s", path, len(units), contract.id, reason)
        part.failures[path] |= dict.fromkeys((unit.wal_id for unit in units), reason)

    def _insert(
        self,
        tx: Transaction,
        path: LineagePath,
        units: Sequence[LineageUnit],
        lines: Mapping[WalId, bytes],
        run: IngestRun,
        contract: DatasetContract,
    ) -> None:
        rows = [[unit.wal_id, unit.revision, unit.lineage_id(path), unit.registered_sha256] for unit in units]
        packed = orjson.dumps(rows)
        batch_id = batches.batch_id_of(orjson.dumps([path, run.run_id]) + packed)
        inserted = tx.run("lineage.insert_emissions", path=path, batch_id=batch_id, units=packed.decode()).scalars()
        ours = set(inserted)  # another worker has recorded the other units
        if not ours:
            return
        ready = [lines[unit.wal_id] for unit in units if unit.wal_id in ours]
        self._batches.record(
            tx,
            b"".join(ready) if path is LineagePath.OPENLINEAGE else prov_document(ready, contract),
            batch_id=batch_id,
            path=path,
            dataset=contract.id,
            run_id=run.run_id,
            href=f"{path}/{contract.public_id}/{units[0].envelope.partition}/{batch_id}.{_SUFFIX[path]}",
            units=len(ours),
        )


def _build(units: Sequence[LineageUnit], history: History, run: IngestRun, contract: DatasetContract) -> _Part:
    """Build the lines that each path has not recorded; a unit's error does not stop other units."""
    part = _Part(units=units, lines={path: {} for path in LineagePath})
    producers = producer_ids(contract)
    documents: Mapping[LineagePath, Callable[[LineageUnit], bytes]] = {
        LineagePath.OPENLINEAGE: lambda unit: event_lines(openlineage_events(unit, run)),
        LineagePath.PROV: lambda unit: prov_line(unit, run, producers),
    }
    for unit in units:
        recorded = {(entry.path, entry.revision) for entry in history.get(unit.wal_id, ())}
        for path in LineagePath:
            if (path, unit.revision) not in recorded:
                try:
                    part.lines[path][unit.wal_id] = documents[path](unit)
                except (TypeError, ValueError) as error:  # e.g. of a text without a UTF-8 form
                    part.failures[path][unit.wal_id] = error_text(error)
    return part


def _partitions(units: Sequence[LineageUnit]) -> list[list[LineageUnit]]:
    """Return distinct units by partition, in order of wal_id so that two workers never deadlock."""
    once = {unit.wal_id: unit for unit in units}

    def order(unit: LineageUnit) -> tuple[str, str]:
        return unit.envelope.partition, unit.wal_id

    return [list(part) for _, part in groupby(sorted(once.values(), key=order), key=lambda unit: order(unit)[0])]


def _result(unit: LineageUnit, agents: tuple[str, ...], part: _Part) -> ProvenanceResult:
    if (refusal := part.refused.get(unit.wal_id)) is not None:
        issue = Issue(code=refusal, severity=Severity.FAILED, message="no lineage was recorded for this unit")
        return ProvenanceResult(status=ProvenanceStatus.FAILED, issues=(issue,))
    failed = [path for path in LineagePath if unit.wal_id in part.failures[path]]
    status = (ProvenanceStatus.OK, ProvenanceStatus.PARTIAL, ProvenanceStatus.FAILED)[len(failed)]
    severity = Severity.FAILED if status is ProvenanceStatus.FAILED else Severity.SUSPECT
    return ProvenanceResult(
        status=status,
        activity_id=unit.activity_id,
        entity_ids=unit.entity_ids,
        agent_ids=agents,
        openlineage_run_id=unit.openlineage_run_id,
        issues=tuple(
            Issue(code=_ISSUE[path], severity=severity, message=part.failures[path][unit.wal_id]) for path in failed
        ),
    )
