"""The lineage store: both paths of a batch's lineage, each unit once per path, whatever crashes.

Per path, and per partition of the batch, the same round until everything is published:

    publish what is staged -> which units does the path have? all, published: done
      -> build the file of the rest -> stage it, durably -> one transaction: the batch (staged) and a row per unit

The primary key (wal_id, path) decides between workers: who comes second is refused as a whole, rolls back, and goes
round again without the units that the first one has. A crash before the transaction leaves a staged file that nobody
names, removed by age; a crash after it leaves a staged batch, which the next emit publishes from its file. So what
readers find holds every unit once, and says what was first recorded.

Belongs here: the protocol, and the queries that link a record with its run and activity. Does not belong here: what a
document says (`openlineage.py`, `prov.py`), the durability of a file (`files.py`), or backends (`backend.py`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from sqlalchemy.exc import DBAPIError, IntegrityError

from kfm_dagster.contracts.envelope import ProvenanceResult, ProvenanceStatus, WalId
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import Issue, ProvenanceIssue, Severity
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.lineage.backend import Backend
from kfm_dagster.lineage.files import STORE_ERRORS, LineageFiles, open_files
from kfm_dagster.lineage.openlineage import openlineage_lines
from kfm_dagster.lineage.prov import OPERATOR, SERVICE, producer_ids, prov_document
from kfm_dagster.lineage.unit import IngestRun, LineagePath, LineageUnit
from kfm_dagster.storage.database import Database, Transaction, is_conflict

_LOG = logging.getLogger(__name__)

ORPHAN_SECONDS = 24 * 3600.0
"""A staged file this old that no staged batch names was left by a crash: its writer's lease (16 min) is long over."""

MAX_ROUNDS = 12
"""Two rounds do it; each one more means that another worker recorded units of ours, so ten workers may overlap."""

BATCH_ID_DIGITS = 32
"""128 bits of the content's SHA-256: the same content is the same batch."""

_SUFFIX = {LineagePath.OPENLINEAGE: "ndjson", LineagePath.PROV: "jsonld"}
_ISSUE = {
    LineagePath.OPENLINEAGE: ProvenanceIssue.OPENLINEAGE_EMIT_FAILED,
    LineagePath.PROV: ProvenanceIssue.PROV_STORE_UNAVAILABLE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One path's lineage of one record. `state` is that of the file: staged or published.

    object_uri and record_status are the record's, None when the ledger does not know the wal_id.
    """

    wal_id: WalId
    path: LineagePath
    lineage_id: str
    href: str
    state: str
    run_id: str
    object_uri: str | None
    record_status: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Staged:
    """A batch on record whose file may still be out of readers' sight."""

    batch_id: str
    href: str


class Lineage:
    """Emits, finds and delivers lineage. Any number of threads and processes may share a database and a root."""

    def __init__(
        self,
        database: Database,
        files: LineageFiles,
        *,
        backend: Backend | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._files = files
        self._backend = backend
        self._clock = clock

    @classmethod
    def open(cls, database: Database, *, url: str, backend: Backend | None = None) -> Lineage:
        """Open the lineage root, a folder or `s3://bucket/prefix`. Raises ConfigurationError.

        With a backend, OpenLineage batches recorded from now on wait for `deliver`.
        """
        return cls(database, open_files(url), backend=backend)

    def emit(
        self, units: Sequence[LineageUnit], *, run: IngestRun, contract: DatasetContract
    ) -> Mapping[WalId, ProvenanceResult]:
        """Record and publish what each path has not, and return the result of every unit.

        `units` are of the contract's dataset. A path whose files cannot be written gives its issue to the units that it
        does not hold. Raises what the database raises: without it the whole stage fails and is tried again.
        """
        failures: dict[LineagePath, dict[WalId, str]] = {path: {} for path in LineagePath}
        for path, failed in failures.items():
            for part in _parts(units):
                failed.update(self._emit_path(path, part, run, contract))
        with suppress(*STORE_ERRORS):  # the next emit tries again
            self._discard_orphans()
        agents = (SERVICE, OPERATOR, *producer_ids(contract))
        return {unit.wal_id: _result(unit, agents, failures) for unit in units}

    def publish_staged(self) -> None:
        """Finish what crashed runs left, of every dataset; `emit` does it for its own. Raises STORE_ERRORS."""
        for batch in self._staged():
            self._publish(batch)
        self._discard_orphans()

    def deliver(self, *, most_batches: int = 10) -> int:
        """Send recorded OpenLineage batches to the backend, oldest first; return the number of events sent.

        At least once: a batch whose delivery was cut short is sent again whole, byte for byte the same events, so a
        backend that knows run ids takes each once. Raises BackendUnavailableError or STORE_ERRORS; the rest stays
        pending.
        """
        if self._backend is None:
            return 0
        with self._database.snapshot() as tx:
            batches = tx.run("lineage.undelivered", most=most_batches).all()
        sent = 0
        for batch in batches:
            events = [json.loads(line) for line in self._files.read(batch.href).splitlines()]
            self._backend.send(events)
            with self._database.transaction() as tx:
                tx.run("lineage.mark_delivered", batch_id=batch.batch_id)
            sent += len(events)
        return sent

    def links_of(self, wal_id: WalId) -> list[Link]:
        """From a record to its OpenLineage run and PROV activity."""
        with self._database.snapshot() as tx:
            return _links(tx, "lineage.of_unit", wal_id=wal_id)

    def find(self, lineage_id: str) -> Link | None:
        """From an OpenLineage run id or PROV activity id to the record."""
        with self._database.snapshot() as tx:
            return next(iter(_links(tx, "lineage.of_lineage_id", lineage_id=lineage_id)), None)

    def _emit_path(
        self, path: LineagePath, units: Sequence[LineageUnit], run: IngestRun, contract: DatasetContract
    ) -> dict[WalId, str]:
        """Emit one path of one partition; return why, for each unit that readers of the path do not find."""
        absent = {unit.wal_id: unit for unit in units}
        why = "other workers kept recording the same units"
        try:
            for _ in range(MAX_ROUNDS):
                for batch in self._staged(path=path, dataset=contract.id):
                    self._publish(batch)
                recorded = self._recorded(path, units)
                absent = {unit.wal_id: unit for unit in units if recorded.get(unit.wal_id) != "published"}
                if not absent:
                    break
                if missing := [unit for unit in units if unit.wal_id not in recorded]:
                    self._record(path, missing, run, contract)
        except STORE_ERRORS as error:
            why = f"{type(error).__name__}: {error}"
            _LOG.warning("lineage path %s does not take %d units of %s: %s", path, len(absent), contract.id, why)
        return dict.fromkeys(absent, why)

    def _staged(self, *, path: LineagePath | None = None, dataset: str | None = None) -> list[_Staged]:
        with self._database.snapshot() as tx:
            rows = tx.run("lineage.staged").all()
        return [
            _Staged(batch_id=row.batch_id, href=row.href)
            for row in rows
            if path in {None, row.path} and dataset in {None, row.dataset}
        ]

    def _recorded(self, path: LineagePath, units: Sequence[LineageUnit]) -> dict[str, str]:
        """State of the batch that holds each unit already recorded, by wal_id."""
        with self._database.snapshot() as tx:
            rows = tx.run("lineage.emitted", path=path, wal_ids=json.dumps([unit.wal_id for unit in units]))
            return {row.wal_id: row.state for row in rows}

    def _record(
        self, path: LineagePath, units: Sequence[LineageUnit], run: IngestRun, contract: DatasetContract
    ) -> None:
        """Stage the file of the units and name both in one transaction; nothing when another worker has one of them."""
        content = _content(path, units, run, contract)
        sha256 = hashlib.sha256(content).hexdigest()
        batch_id = sha256[:BATCH_ID_DIGITS]
        self._files.stage(batch_id, content)
        with suppress(_LostRaceError), self._database.transaction() as tx, _lost_races():
            tx.run(
                "lineage.insert_batch",
                batch_id=batch_id,
                path=path,
                dataset=contract.id,
                run_id=run.run_id,
                href=f"{path}/{contract.id}/{units[0].envelope.partition}/{batch_id}.{_SUFFIX[path]}",
                sha256=sha256,
                unit_count=len(units),
                delivery="pending" if self._backend and path is LineagePath.OPENLINEAGE else "none",
                created_at=rfc3339(self._clock()),
            )
            rows = [[unit.wal_id, unit.lineage_id(path)] for unit in units]
            tx.run("lineage.insert_emissions", path=path, batch_id=batch_id, units=json.dumps(rows))

    def _publish(self, batch: _Staged) -> None:
        if self._files.publish(batch.batch_id, batch.href):
            with self._database.transaction() as tx:
                tx.run("lineage.mark_published", batch_id=batch.batch_id, published_at=rfc3339(self._clock()))
            return
        # It was never readable, so its units count as not emitted; kept, the row would bar them for ever.
        _LOG.error("lineage batch %s lost its file %s and is forgotten", batch.batch_id, batch.href)
        with self._database.transaction() as tx:
            tx.run("lineage.forget_emissions", batch_id=batch.batch_id)
            tx.run("lineage.forget_batch", batch_id=batch.batch_id)

    def _discard_orphans(self) -> None:
        old = [name for name, age in self._files.staged() if age > ORPHAN_SECONDS]
        named = {batch.batch_id for batch in self._staged()} if old else set()
        for name in old:
            if name not in named:
                self._files.discard(name)


class _LostRaceError(Exception):
    """Another worker recorded one of the units first."""


@contextmanager
def _lost_races() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise _LostRaceError from error
    except DBAPIError as error:
        if is_conflict(error):
            raise _LostRaceError from error
        raise


def _content(path: LineagePath, units: Sequence[LineageUnit], run: IngestRun, contract: DatasetContract) -> bytes:
    if path is LineagePath.PROV:
        return prov_document(units, run, contract)
    return b"".join(openlineage_lines(unit, run) for unit in units)


def _parts(units: Sequence[LineageUnit]) -> list[list[LineageUnit]]:
    """One part per partition, in order, each unit once."""
    once = {unit.wal_id: unit for unit in units}

    def order(unit: LineageUnit) -> tuple[str, str]:
        return unit.envelope.partition, unit.wal_id

    return [list(part) for _, part in groupby(sorted(once.values(), key=order), key=lambda unit: order(unit)[0])]


def _result(
    unit: LineageUnit, agents: tuple[str, ...], failures: Mapping[LineagePath, Mapping[WalId, str]]
) -> ProvenanceResult:
    failed = [path for path in LineagePath if unit.wal_id in failures[path]]
    status = (ProvenanceStatus.OK, ProvenanceStatus.PARTIAL, ProvenanceStatus.FAILED)[len(failed)]
    severity = Severity.FAILED if status is ProvenanceStatus.FAILED else Severity.SUSPECT
    return ProvenanceResult(
        status=status,
        activity_id=unit.activity_id,
        entity_ids=unit.entity_ids,
        agent_ids=agents,
        openlineage_run_id=unit.openlineage_run_id,
        issues=tuple(
            Issue(code=_ISSUE[path], severity=severity, message=failures[path][unit.wal_id]) for path in failed
        ),
    )


def _links(tx: Transaction, name: str, **parameters: str) -> list[Link]:
    return [
        Link(
            wal_id=WalId(str(row.wal_id)),
            path=LineagePath(row.path),
            lineage_id=row.lineage_id,
            href=row.href,
            state=row.state,
            run_id=row.run_id,
            object_uri=row.object_uri,
            record_status=row.status,
        )
        for row in tx.run(name, parameters)
    ]
