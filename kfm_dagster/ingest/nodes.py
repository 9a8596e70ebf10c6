"""The six nodes of a dataset's chain, over a partition's units: five operators, and settle.

    message_parse > integrity_check > metadata_extract > stac_register > provenance_emit > settle

A node applies an operator (a function over envelopes) to a batch; it reads with bounded concurrency, and writes many
units at a time. The first node, which finds and claims units, is in `discovery.py`. Does not belong here: the rules of
masking (`governance/rules.py`), the order of hash, skip, compute and commit (`stages/run_contract.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from kfm_dagster.catalog.item import NoItemError
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, StacStatus, WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.stewardship import Masking
from kfm_dagster.governance.areas import load_areas, salt_of
from kfm_dagster.governance.log import GovernanceAction
from kfm_dagster.governance.masking import MASKING_DECISION, MaskingDecision
from kfm_dagster.governance.rules import Rules, hard_fails
from kfm_dagster.ingest.discovery import MessageParse, Source
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.node import ChainNode, EffectNode, Results, each_alone, in_chunks
from kfm_dagster.ledger.reports import SettleReport
from kfm_dagster.operators.integrity_check import integrity_check
from kfm_dagster.operators.integrity_check import unreadable as integrity_unreadable
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.metadata_extract import unreadable as metadata_unreadable
from kfm_dagster.operators.provenance_emit import provenance_emit
from kfm_dagster.operators.stac_register import may_register, stac_register, stac_register_batch
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.settings import Settings
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.read_ahead import ReadAhead
from kfm_dagster.telemetry.totals import Total, Totals
from kfm_dagster.telemetry.traces import flush_traces, traced_batch

__all__ = [
    "IntegrityCheck",
    "MessageParse",
    "MetadataExtract",
    "ProvenanceEmit",
    "Settle",
    "Source",
    "StacRegister",
    "chain",
    "operators",
]

REGISTER_CHUNK = 1_000
"""Items in memory at a time; each takes about 30 KB until it is written."""

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class IntegrityCheck(ChainNode):
    """Check each object in its store."""

    operator = "integrity_check"
    asset = "integrity"
    description = "Each object as stored: existence, announced size and version, and format."
    did = ("checked", "object")
    follows = MessageParse
    section = "integrity"
    required_gates = (Gate.G1, Gate.G5, Gate.G8)
    replayable = True

    @override
    def transform(self) -> list[Envelope]:
        objects, heads = self.pipeline.objects, ReadAhead()
        reader = self.pipeline.readers[self.contract.metadata_extract.reader]
        # Reads from a local folder are fast, so first bytes are not kept.
        first_bytes = reader.first_bytes if objects.remote else 0
        self.read_ahead[self.dataset] = heads

        def check(unit: Envelope) -> Envelope:
            handle = objects.open(self.contract, unit.object_uri)
            checked = integrity_check(unit, contract=self.contract, handle=handle, first_bytes=first_bytes)
            if first_bytes:
                heads.keep(unit.object_uri, checked.actual_etag, handle.first)
            return unit.evolve(integrity=checked)

        def fail(unit: Envelope, error: Exception) -> Envelope:
            return unit.evolve(integrity=integrity_unreadable(self.contract, error))

        return self.each(each_alone(check, fail=fail))

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the objects that failed a check."""
        return _summary([unit.integrity.status is CheckStatus.FAILED for unit in batch if unit.integrity])


@dataclass(kw_only=True)
class MetadataExtract(ChainNode):
    """Read each object's headers, and apply governance to them."""

    operator = "metadata_extract"
    asset = "metadata"
    description = "Each object's headers: time, footprint, product, platform, quality."
    did = ("read the headers of", "object")
    follows = IntegrityCheck
    section = "metadata"
    required_gates = (Gate.G1, Gate.G2, Gate.G4)
    replayable = True

    @override
    def transform(self) -> list[Envelope]:
        grammar = self.pipeline.registry.grammars[self.dataset]
        # Governance is applied in this step: sensitive metadata must not be stored, refused units not registered.
        rules = rules_of(self)
        objects, heads = self.pipeline.objects, self.read_ahead.pop(self.dataset, ReadAhead())

        def extract(unit: Envelope) -> Envelope:
            if unit.failure is not None or unit.integrity is None:
                return unit
            stored = unit.integrity
            first = heads.take(unit.object_uri, stored.actual_etag)
            handle = objects.open(
                self.contract, unit.object_uri, size=stored.actual_size_bytes, etag=stored.actual_etag, first=first
            )
            metadata = metadata_extract(
                unit,
                contract=self.contract,
                grammar=grammar,
                source=handle,
                readers=self.pipeline.readers,
                open_sidecar=lambda suffix: objects.open_sidecar(self.contract, unit.object_uri, suffix),
            )
            return rules.applied(unit.evolve(metadata=metadata))

        def fail(unit: Envelope, error: Exception) -> Envelope:
            return unit.evolve(metadata=metadata_unreadable(self.contract, error))

        return self.each(each_alone(extract, fail=fail))

    @override
    def params(self) -> Mapping[str, Any]:
        return {**super().params(), **masking_params(self.pipeline.settings, self.contract)}

    @override
    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:
        record_maskings(self, computed, tx)
        return computed

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the units whose headers are insufficient, or which governance refused."""
        return _summary(
            [unit.metadata.status is CheckStatus.FAILED or hard_fails(unit) for unit in batch if unit.metadata]
        )


@dataclass(kw_only=True)
class StacRegister(EffectNode):
    """Write the Items."""

    operator = "stac_register"
    asset = "stac_items"
    description = "One STAC Item per unit, validated offline and promoted atomically."
    did = ("registered", "Item")
    follows = MetadataExtract
    section = "stac"
    required_gates = (Gate.G1, Gate.G8)
    replayable = True

    seconds: list[float] = field(default_factory=list, init=False)
    """The writing time of each part of the batch."""

    @override
    def transform(self) -> list[Envelope]:
        with traced_batch(self.operator, self.received, dataset=self.public) as registered:
            for part in in_chunks(self.received, REGISTER_CHUNK):
                began = time.perf_counter()
                registered.extend(
                    stac_register_batch(
                        part,
                        contract=self.contract,
                        grammar=self.pipeline.registry.grammars[self.dataset],
                        catalog=self.pipeline.catalog,
                        fence=self.pipeline.ledger.leases.fence(self.run_id),
                        run_state={"dataset_id": self.kind, "run_id": self.run_id},
                    )
                )
                self.seconds.append(time.perf_counter() - began)
            return registered

    @override
    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:
        totals = Totals()
        for seconds in self.seconds:
            totals.observe(Total.STAC_WRITE_LATENCY, seconds, subject=self.dataset)
        totals.write(tx)
        return computed

    @override
    def compensate(self, *, tx: Transaction) -> Mapping[str, Any] | None:
        """Restore the catalog's Items from before this run."""
        undone = self.pipeline.catalog.undo(self.dataset, self.run_id, tx=tx)
        return {name: len(getattr(undone, name)) for name in ("restored", "removed", "superseded")}

    @override
    def results(self, batch: Sequence[Envelope]) -> Results:
        return {
            unit.wal_id: f"{unit.stac.item_id} {unit.stac.content_sha256}".encode()
            for unit in batch
            # A superseded unit's Item did not reach the catalog, so it is not a result of this run.
            if unit.stac and unit.stac.write_status is not StacStatus.FAILED and not unit.stac.superseded
        }

    @override
    def rerun(self) -> Results:
        """Build the Items and return their hashes only."""
        grammar = self.pipeline.registry.grammars[self.dataset]
        results: dict[WalId, bytes] = {}
        for unit in self.received:
            if may_register(unit):
                with suppress(NoItemError):
                    item = stac_register(unit, contract=self.contract, grammar=grammar)
                    results[unit.wal_id] = f"{item.item_id} {item.content_sha256}".encode()
        return results

    def verify(self, computed: list[Envelope], /) -> None:
        """Read the Items back. Raises KfmError for a missing or differing Item."""
        self.pipeline.catalog.verify(self.dataset, [unit.stac for unit in computed if unit.stac])

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the Items that could not be written."""
        return _summary([unit.stac.write_status is StacStatus.FAILED for unit in batch if unit.stac])


@dataclass(kw_only=True)
class ProvenanceEmit(EffectNode):
    """Emit the lineage of every registered unit, once."""

    operator = "provenance_emit"
    asset = "provenance"
    description = "OpenLineage and PROV-O for every registered unit, once."
    did = ("recorded the lineage of", "unit")
    follows = StacRegister
    section = "provenance"
    required_gates = (Gate.G1,)

    @override
    def transform(self) -> list[Envelope]:
        with traced_batch(self.operator, self.received, dataset=self.public) as emitted:
            emitted.extend(
                provenance_emit(
                    self.received,
                    contract=self.contract,
                    lineage=self.pipeline.lineage,
                    fence=self.pipeline.ledger.leases.fence(self.run_id),
                    run_id=self.run_id,
                    occurred_at=self.pipeline.clock(),
                    started_at=self.claimed_at,
                )
            )
            return emitted

    @override
    def compensate(self, *, tx: Transaction) -> Mapping[str, Any] | None:
        """Withdraw this run's lineage; the events are not deleted."""
        reason = f"{self.kind} was rolled back"
        withdrawn = self.pipeline.lineage.invalidate(run_id=self.run_id, contract=self.contract, reason=reason, tx=tx)
        return {"withdrawn": withdrawn}

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the units with an issue of their lineage."""
        return _summary([bool(unit.provenance.issues) for unit in batch if unit.provenance])


@dataclass(kw_only=True)
class Settle(ChainNode):
    """Set the status of each claimed record; then delete messages whose units are all terminal."""

    operator = "settle"
    asset = "ledger"
    description = "The new status of every claimed unit; a message is deleted when all its units are terminal."
    did = ("settled", "unit")
    follows = ProvenanceEmit
    # A run checks its partition once, when all its units are known.
    required_gates = (Gate.G6,)

    report: SettleReport = field(default_factory=SettleReport)

    @override
    def apply(self, tx: Transaction, computed: list[Envelope], /) -> list[Envelope]:
        self.report = self.pipeline.ledger.settle(computed, run_id=self.run_id, tx=tx)
        if not self.sampled:
            FeedWatch(self.pipeline).follow(self.contract, computed, tx)
        return computed

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        """Count the units by outcome."""
        report = self.report
        failed = len(report.failed) + len(report.quarantined)
        return ValidationSummary(
            checks=len(batch),
            passed=len(batch) - failed,
            failed=failed,
            extra={
                "succeeded": len(report.succeeded),
                "retrying": len(report.failed),
                "quarantined": len(report.quarantined),
                "lost": len(report.lost),
                "mismatched": len(report.mismatched),
            },
        )

    @override
    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Delete messages whose units are all terminal, record the day's gaps, run the followers."""
        if self.report.mismatched:
            first = ", ".join(self.report.mismatched[:20])
            _LOG.error(
                "%d results of %s differ from earlier results: %s", len(self.report.mismatched), self.dataset, first
            )
        if any(unit.raw.sqs_message_id for unit in batch):
            self.pipeline.acknowledger.acknowledge(retrying=self.report.failed)
        if self.partition_facts is not None:
            FeedWatch(self.pipeline).record_day(self.contract, self.partition_facts, run_id=self.run_id)
        self.pipeline.following.catch_up(self.pipeline.followers)
        flush_traces()


def chain() -> tuple[type[ChainNode], ...]:
    """Return the nodes of every dataset's chain, in order."""
    return Settle.chain()


def operators() -> tuple[str, ...]:
    """Return the operators of the chain, in order."""
    return tuple(node.operator for node in chain())


def _summary(failures: Sequence[bool]) -> ValidationSummary:
    """Count the units of the node; `failures` has a flag for each unit: whether it failed here."""
    return ValidationSummary(checks=len(failures), passed=len(failures) - sum(failures), failed=sum(failures))


def rules_of(node: ChainNode) -> Rules:
    """Return the governance rules at the time of the run's claims."""
    return Rules(
        governance=node.contract.governance,
        at=node.reference_time,
        dataset=node.contract.public_id,
        areas=load_areas(node.pipeline.settings),
        salt=salt_of(node.pipeline.settings),
    )


def masking_params(settings: Settings, contract: DatasetContract) -> dict[str, str]:
    """Return the hash of areas and secret, if areas exist or the contract displaces locations."""
    areas, masking = load_areas(settings), contract.governance.masking
    displaced = masking is not None and masking.method == "donut"
    return {"masking": areas.fingerprint(salt_of(settings))} if areas.areas or displaced else {}


def record_maskings(node: ChainNode, computed: Sequence[Envelope], tx: Transaction) -> None:
    """Write the decisions behind a batch's maskings into the governance log, once per run."""
    log = node.pipeline.ledger.log
    maskings = list(_maskings(node, computed))
    # A re-execution of the run may compute the batch again; then the decision is already recorded.
    if maskings and not log.holds(GovernanceAction.MASK, dataset=node.dataset, run_id=node.run_id, tx=tx):
        for masking, counts in maskings:
            details = {"run_id": node.run_id, "partition": node.partition, **counts}
            MaskingDecision.declared(masking, dataset=node.dataset).record(log, tx=tx, details=details)


def _maskings(node: ChainNode, computed: Sequence[Envelope]) -> Iterator[tuple[Masking, dict[str, Any]]]:
    """Yield the masking of the contract, or else of each area, with the number of masked units."""
    extracted = [unit.metadata.stac_properties for unit in computed if unit.metadata]
    if (masking := node.contract.governance.masking) is not None:
        if extracted:
            yield masking, {"units": len(extracted)}
        return
    for area in load_areas(node.pipeline.settings):
        decision = MaskingDecision.declared(area.masking, dataset=node.contract.public_id).as_json()
        if units := sum(properties.get(MASKING_DECISION) == decision for properties in extracted):
            yield area.masking, {"area": area.name, "units": units}
