"""Factories of test values: envelopes at each point of the chain, and Hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import (
    CheckStatus,
    Envelope,
    Integrity,
    Lane,
    Metadata,
    Priority,
    ProvenanceResult,
    ProvenanceStatus,
    RawReference,
    StacResult,
    StacStatus,
    WalId,
)
from kfm_dagster.contracts.identity import wal_id
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.ledger.deliveries import Deliveries, Delivery, DeliveryState
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.transactions import own_tx

START = datetime(2025, 12, 3, 0, 6, 24, tzinfo=UTC)
PERSON = Decision(actor="person", reason="looked at it", change_ref="CHG-1")


def envelope(number: int = 0, **changes: Any) -> Envelope:
    """Return a parsed envelope of a NEXRAD volume, which begins `number` seconds after START."""
    start = changes.pop("time_range_start", START + timedelta(seconds=number))
    site = changes.pop("site", "KTLX")
    key = f"{start:%Y/%m/%d}/{site}/{site}{start:%Y%m%d_%H%M%S}_V06"
    values: dict[str, Any] = {
        "dataset": "nexrad-l2",
        "object_uri": f"s3://unidata-nexrad-level2/{key}",
        "provider": "aws",
        "queue": "kfm-nodd-primary",
        "event_time": start + timedelta(minutes=5),
        "time_range_start": start,
        "time_range_end": start,
        "schema_version": "2.1",
        "object_version": f"{number:032x}",
        "object_size": 1000 + number,
        "raw": RawReference(sqs_message_id=f"sqs-{number}", sns_message_id=f"sns-{number}"),
    }
    values |= changes
    if "wal_id" in values:
        return Envelope(**values)
    return identified(Envelope(**values, wal_id=WalId("")))


def staged(contract: DatasetContract, status: str, **retired: str | None) -> DatasetContract:
    """Return a contract with another status; `retired` gives the fields `since` and `successor`."""
    document = contract.model_dump()
    document["metadata"] |= {"status": status, "retired": {"reason": "It ended.", **retired} if retired else None}
    return DatasetContract.model_validate(document)


def with_section(contract: DatasetContract, section: str, **changes: Any) -> DatasetContract:
    """Return a contract with changes of one of its sections."""
    return contract.model_copy(update={section: getattr(contract, section).model_copy(update=changes)})


def identified(unit: Envelope, **changes: Any) -> Envelope:
    """Return the changed unit with its new identity."""
    changed = unit.evolve(**changes)
    facts = {name: getattr(changed, name) for name in ("dataset", "object_uri", "time_range_start", "object_version")}
    return changed.evolve(wal_id=wal_id(**facts))


def landed_path(digest: str) -> str:
    """Return the path of a landed batch below the storage root."""
    sha256 = digest.removeprefix("sha256:")
    return f"landing/{sha256[:2]}/{sha256}.ndjson.gz"


def received_long_ago(database: Database, digest: str) -> None:
    """Record a message of a landed batch, received years ago without a unit."""
    message = Delivery(
        message_id=digest,
        queue="q",
        receipt_handle="h",
        landing_sha256=digest,
        state=DeliveryState.IGNORED,
    )
    own_tx(Deliveries(database, clock=lambda: datetime(2020, 1, 1, tzinfo=UTC))).record([message])


def finished(unit: Envelope) -> Envelope:
    """Return the unit after a successful chain."""
    return unit.evolve(
        integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=unit.object_size, actual_etag=unit.object_version),
        metadata=Metadata(
            status=CheckStatus.OK,
            geometry={"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
            bbox=(0.0, 0.0, 1.0, 1.0),
            stac_properties={"datetime": "2025-12-03T00:06:24Z", "platform": "wsr-88d"},
        ),
        stac=StacResult(
            write_status=StacStatus.CREATED,
            item_id=unit.key.rsplit("/", 1)[-1],
            collection_id=unit.dataset,
            item_href=f"{unit.dataset}/x.json",
        ),
        provenance=ProvenanceResult(status=ProvenanceStatus.OK, activity_id=f"urn:uuid:{unit.wal_id}"),
    )


def failed(unit: Envelope, code: str = "missing_object") -> Envelope:
    """Return the unit after a failure at integrity-check."""
    issue = Issue(code=code, severity=Severity.FAILED, message="the object is not there")
    return unit.evolve(integrity=Integrity(status=CheckStatus.FAILED, issues=(issue,), checks_run=("exists",)))


def bring(ledger: Any, status: str, units: Sequence[Envelope], *, code: str | None = None) -> None:
    """Record units of one dataset and day, and bring them to a status as runs and people do."""
    own, ids = own_tx(ledger), [unit.wal_id for unit in units]
    own.ensure(units)
    if status == "quarantined":
        own.quarantine(ids, reason_code=code or "test", decision=PERSON)
    elif status != "pending":
        day = {"dataset": units[0].dataset, "partition": units[0].partition}
        claimed = own.claim(**day, run_id="run-1", limit=len(ids), wal_ids=ids)
        assert len(claimed) == len(ids)
        if status != "in_progress":
            ends = [
                finished(unit) if status == "succeeded" else failed(unit, code or "missing_object") for unit in claimed
            ]
            own.settle(ends, run_id="run-1")


def repeat_units(ledger: Any, *wal_ids: str) -> None:
    """Make succeeded units pending again, as a person does."""
    own = own_tx(ledger)
    versions = {wal_id: own.get(wal_id).version for wal_id in wal_ids}
    decided = {"action": GovernanceAction.REPEAT, "decision": PERSON}
    assert own.override(versions, from_status=Status.SUCCEEDED, **decided) == set(wal_ids)


_TEXT = st.text(max_size=20)
_TIMES = st.datetimes(min_value=datetime(1991, 6, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
_SIZES = st.integers(0, 2**40)
_ISSUES = st.lists(st.builds(Issue, code=_TEXT, severity=st.sampled_from(Severity), message=_TEXT), max_size=2).map(
    tuple
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Draw an envelope as the operators return it; some of its combinations are impossible."""
    start = draw(_TIMES)
    unit = envelope(
        draw(st.integers(0, 10**6)),
        time_range_start=start,
        time_range_end=start + draw(st.timedeltas(timedelta(0), timedelta(days=16))),
        event_time=draw(_TIMES),
        priority=draw(st.sampled_from(Priority)),
        object_version=draw(st.none() | _TEXT),
        object_size=draw(st.none() | st.integers(0, 2**40)),
        sequencer=draw(st.none() | _TEXT),
        peer_sizes=draw(st.none() | st.tuples(st.integers(1, 24), _SIZES, _SIZES)),
        raw=draw(st.builds(RawReference, sqs_message_id=st.none() | _TEXT, subject=st.none() | _TEXT)),
        lane=draw(st.sampled_from(Lane)),
        replay_reason=draw(st.none() | _TEXT),
        replay_run_id=draw(st.none() | _TEXT),
        attempt=draw(st.integers(0, 20)),
        record_version=draw(st.integers(0, 100)),
    )
    if draw(st.booleans()):
        unit = unit.evolve(
            integrity=Integrity(
                status=draw(st.sampled_from(CheckStatus)),
                actual_size_bytes=draw(st.none() | st.integers(0, 2**40)),
                actual_etag=draw(st.none() | _TEXT),
                last_modified=draw(st.none() | _TIMES),
                checks_run=tuple(draw(st.lists(_TEXT, max_size=3))),
                issues=draw(_ISSUES),
            )
        )
    if draw(st.booleans()):
        coordinate = st.floats(-180, 180, allow_nan=False)
        unit = unit.evolve(
            metadata=Metadata(
                status=draw(st.sampled_from(CheckStatus)),
                geometry=draw(st.none() | st.dictionaries(_TEXT, JSON, max_size=3)),
                bbox=draw(st.none() | st.tuples(coordinate, coordinate, coordinate, coordinate)),
                stac_properties=draw(st.dictionaries(_TEXT, JSON, max_size=3)),
                sidecars=draw(st.dictionaries(_TEXT, _TEXT, max_size=2)),
                layers=draw(st.dictionaries(_TEXT, st.tuples(_SIZES, _SIZES).map(list), max_size=2)),
                issues=draw(_ISSUES),
            )
        )
    if draw(st.booleans()):
        unit = unit.evolve(
            stac=StacResult(
                write_status=draw(st.sampled_from(StacStatus)),
                item_id=draw(st.none() | _TEXT),
                content_sha256=draw(st.none() | _TEXT),
                superseded=draw(st.booleans()),
                superseded_by=draw(st.none() | _TEXT),
                replaces=draw(st.none() | _TEXT),
                issues=draw(_ISSUES),
            ),
            provenance=ProvenanceResult(
                status=draw(st.sampled_from(ProvenanceStatus)),
                entity_ids=tuple(draw(st.lists(_TEXT, max_size=3))),
                issues=draw(_ISSUES),
            ),
        )
    return unit
