"""Lineage units: a registered unit with its ids in OpenLineage and in PROV-O.

Belongs here: ids, and the facts of a run that both documents contain. Does not belong here: the form of an
OpenLineage event (`openlineage.py`) or a PROV-O node (`prov.py`), or the storage of both (`store.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, unique

from kfm_dagster.contracts.envelope import Envelope, StacResult, StacStatus, WalId
from kfm_dagster.contracts.identity import uuid8

FIRST_REVISION = ""
"""Revision of a unit's lineage before any repair."""

REGISTERED = frozenset({StacStatus.CREATED, StacStatus.UPDATED, StacStatus.NO_OP})
"""Results of stac_register after which a unit has lineage."""


@unique
class LineagePath(StrEnum):
    """The two forms of a unit's lineage; each form is emitted once, independently of the other."""

    OPENLINEAGE = "openlineage"
    PROV = "prov"


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestRun:
    """The run that ingests a batch of a dataset.

    Times are in RFC 3339: `started_at` is the time of the batch's claim, `occurred_at` that of recording its lineage.
    """

    run_id: str
    started_at: str
    occurred_at: str
    dataset: str = ""
    """The dataset's public name. `Lineage.emit` sets it from the contract, so a governed dataset stays unnamed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageUnit:
    """A registered envelope with its lineage ids, which are UUIDv8 of stable fields.

    The object's id derives from its URI and version, a message's id from its id of SNS or SQS, the id of a result of
    this ingest from the unit's wal_id and the revision. So a second emit, in any process or release, gives the same
    ids, and a repair that changed the Item is published beside the earlier lineage. PROV has ids as `urn:uuid:`.
    """

    wal_id: WalId
    revision: str
    envelope: Envelope
    stac: StacResult
    openlineage_run_id: str
    activity_id: str
    object_id: str
    item_id: str
    qc_report_id: str
    notification_id: str | None
    message_id: str | None
    revises: str | None = None
    """PROV entity of the Item that this unit's Item replaced."""
    yields_to: str | None = None
    """PROV entity of the current Item, if a newer unit was registered before this unit."""

    @classmethod
    def of(
        cls,
        envelope: Envelope,
        *,
        revision: str = FIRST_REVISION,
        revises: str | None = None,
        yields_to: str | None = None,
    ) -> LineageUnit:
        """Derive all ids. Raises ValueError for an envelope that stac_register has not registered."""
        stac = envelope.stac
        if stac is None or stac.write_status not in REGISTERED:
            raise ValueError(f"{envelope.wal_id} has no registered STAC Item")
        raw = envelope.raw
        ingest = _ingest(envelope.wal_id, revision)
        return cls(
            wal_id=envelope.wal_id,
            revision=revision,
            envelope=envelope,
            stac=stac,
            openlineage_run_id=uuid8("openlineage", *ingest),
            activity_id=_urn("activity", *ingest),
            object_id=object_entity(envelope.object_uri, envelope.object_version),
            item_id=item_entity(envelope.wal_id, revision),
            qc_report_id=qc_report_entity(envelope.wal_id, revision),
            notification_id=raw.sns_message_id and _urn("notification", raw.sns_message_id),
            message_id=raw.sqs_message_id and _urn("message", raw.sqs_message_id),
            revises=revises,
            yields_to=yields_to,
        )

    @property
    def masked_id(self) -> str:
        """PROV entity of the unit's masked location, if a sensitive area masks the location."""
        return _urn("masked", *_ingest(self.wal_id, self.revision))

    @property
    def entity_ids(self) -> tuple[str, ...]:
        """PROV entities: notification and message, if any, then object, QC report and STAC Item."""
        messages = tuple(entity for entity in (self.notification_id, self.message_id) if entity)
        return (*messages, self.object_id, self.qc_report_id, self.item_id)

    @property
    def registered_sha256(self) -> str | None:
        """Hash of the Item that this ingest registered; None if a newer unit's Item is current."""
        return None if self.stac.superseded else self.stac.content_sha256

    def lineage_id(self, path: LineagePath) -> str:
        """Return this ingest's id on a path: the OpenLineage run id, or the PROV activity id."""
        return self.openlineage_run_id if path is LineagePath.OPENLINEAGE else self.activity_id


def agent_id(name: str) -> str:
    """Return the PROV agent of a piece of software or an organisation."""
    return _urn("agent", name)


def object_entity(object_uri: str, object_version: str | None) -> str:
    """Return the PROV entity of a version of an object."""
    return _urn("object", object_uri, object_version)


def item_entity(wal_id: WalId, revision: str) -> str:
    """Return the PROV entity of the Item that a unit registered."""
    return _urn("item", *_ingest(wal_id, revision))


def qc_report_entity(wal_id: WalId, revision: str) -> str:
    """Return the PROV entity of the quality report of a unit's object."""
    return _urn("qc-report", *_ingest(wal_id, revision))


def invalidation_activity(batch_id: str) -> str:
    """Return the PROV activity that withdraws a batch of lineage."""
    return _urn("invalidation", batch_id)


def _ingest(wal_id: WalId, revision: str) -> tuple[str, ...]:
    return (wal_id, revision) if revision else (wal_id,)


def _urn(*fields: str | None) -> str:
    return "urn:uuid:" + uuid8("prov", *fields)
