"""The six nodes of a dataset's chain: five operators and the settlement, over the units of one partition.

    message_parse > integrity_check > metadata_extract > stac_register > provenance_emit > settle

A node binds an operator (pure, over one envelope) to a batch: bounded concurrency where it reads, one call where it
writes. The order of hash, skip, compute and commit is `stages/run_contract.py`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum, unique
from itertools import islice
from typing import Any, ClassVar

from typing_extensions import override

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, StacStatus, WalId
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.store import SettleReport
from kfm_dagster.operators.integrity_check import integrity_check
from kfm_dagster.operators.message_parse import parse_listed, parse_message
from kfm_dagster.operators.metadata_extract import metadata_extract
from kfm_dagster.operators.provenance_emit import provenance_emit
from kfm_dagster.operators.stac_register import stac_register_batch
from kfm_dagster.readers.registry import READERS
from kfm_dagster.run_state.inputs_hash import InputReference
from kfm_dagster.run_state.record import ValidationSummary
from kfm_dagster.seams import carried
from kfm_dagster.storage.database import Transaction

LISTING_CHUNK = 5_000
"""Listed objects that enter the ledger in one transaction; a busy day has over 100,000."""

REGISTER_CHUNK = 1_000
"""Items built and held at a time; each takes about 30 KB until it is written."""


@unique
class Operator(StrEnum):
    """The nodes of the chain, in order; the value names run-state and Dagster ops."""

    MESSAGE_PARSE = "message_parse"
    INTEGRITY_CHECK = "integrity_check"
    METADATA_EXTRACT = "metadata_extract"
    STAC_REGISTER = "stac_register"
    PROVENANCE_EMIT = "provenance_emit"
    SETTLE = "settle"


@unique
class Source(StrEnum):
    """Where message_parse takes its units from."""

    LANDING = "landing"
    """Landed message batches, named by digest."""
    LEDGER = "ledger"
    """What is pending in the ledger."""
    LISTING = "listing"
    """The bucket's objects of the partition's day, and what is pending in the ledger."""


@dataclass(kw_only=True)
class _Node:
    """What every node shares: its dataset, partition and run."""

    operator: ClassVar[Operator]

    pipeline: Pipeline
    dataset: str
    partition: str
    run_id: str

    @property
    def contract(self) -> DatasetContract:
        return self.pipeline.registry[self.dataset]

    @property
    def dataset_id(self) -> str:
        return f"{self.dataset}.{self.operator}"

    @property
    def labels(self) -> Mapping[str, str]:
        return {
            "dataset": self.dataset,
            "operator": self.operator.value,
            "partition": self.partition,
            "run": self.run_id,
        }

    def inputs(self) -> Sequence[InputReference]:
        return []

    def parameters(self) -> Mapping[str, Any]:
        # Any change of the contract may change any operator's result.
        contract = hashlib.sha256(self.contract.model_dump_json().encode()).hexdigest()
        return {"partition": self.partition, "contract_sha256": contract}

    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        return list(batch)

    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:  # noqa: ARG002, the node's protocol
        return batch

    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return ValidationSummary(checks=len(batch), passed=len(batch), failed=0)

    def after_commit(self, batch: Sequence[Envelope]) -> None:
        """Nothing, for most nodes."""

    def _concurrently(self, work: Callable[[Envelope], Envelope], batch: Sequence[Envelope]) -> list[Envelope]:
        with ThreadPoolExecutor(max_workers=self.pipeline.settings.read_threads) as pool:
            return list(pool.map(carried(work), batch))

    def _while_held(
        self, write: Callable[[list[Envelope]], list[Envelope]], batch: Sequence[Envelope]
    ) -> list[Envelope]:
        """Write for the units that this run still holds; the others come back as they are, and settle as lost.

        A re-executed run may hold a batch that recovery has given to another run, or that it has settled itself.
        """
        held = self.pipeline.ledger.held(batch, run_id=self.run_id)
        written = iter(write([unit for unit in batch if unit.wal_id in held]))
        return [next(written) if unit.wal_id in held else unit for unit in batch]


@dataclass(kw_only=True)
class MessageParse(_Node):
    """Find the units, make sure each has a pending record, claim them."""

    operator = Operator.MESSAGE_PARSE

    source: Source
    landing: Sequence[str] = ()
    limit: int

    @override
    def inputs(self) -> Sequence[InputReference]:
        return [InputReference(uri=f"landing:{digest}", checksum=digest) for digest in self.landing]

    @override
    def parameters(self) -> Mapping[str, Any]:
        return {**super().parameters(), "source": self.source.value, "limit": self.limit}

    @override
    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        if self.source is Source.LANDING:
            return self._landed()
        if self.source is Source.LISTING:
            for chunk in _chunks(self._listed(), LISTING_CHUNK):
                self.pipeline.ledger.ensure(chunk)
        return []

    @override
    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:
        # Ensured and claimed in the transaction that names the output: a run that dies before it has claimed nothing.
        ledger = self.pipeline.ledger
        if batch:
            ledger.ensure(batch, tx=tx)
        return ledger.claim(dataset=self.dataset, partition=self.partition, run_id=self.run_id, limit=self.limit, tx=tx)

    def _landed(self) -> list[Envelope]:
        found: dict[WalId, Envelope] = {}
        for digest in self.landing:
            for message in self.pipeline.landing.read(digest):
                parsed = parse_message(
                    message, registry=self.pipeline.registry, queue=self.pipeline.settings.sqs_primary_queue
                )
                for unit in parsed.envelopes:
                    if unit.dataset == self.dataset and unit.partition == self.partition:
                        found.setdefault(unit.wal_id, unit)
        return list(found.values())

    def _listed(self) -> Iterator[Envelope]:
        for listed in self.pipeline.objects.list_day(self.contract, date.fromisoformat(self.partition)):
            unit = parse_listed(self.contract, listed)
            if unit is not None:
                yield unit


@dataclass(kw_only=True)
class IntegrityCheck(_Node):
    """Look at each object as stored."""

    operator = Operator.INTEGRITY_CHECK

    @override
    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        def check(unit: Envelope) -> Envelope:
            handle = self.pipeline.objects.open(self.contract, unit.object_uri)
            return unit.evolve(integrity=integrity_check(unit, contract=self.contract, handle=handle))

        return self._concurrently(check, batch)

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return _summary([unit.integrity.status is CheckStatus.FAILED for unit in batch if unit.integrity])


@dataclass(kw_only=True)
class MetadataExtract(_Node):
    """Read each object's headers."""

    operator = Operator.METADATA_EXTRACT

    @override
    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        grammar = self.pipeline.registry.grammars[self.dataset]

        def extract(unit: Envelope) -> Envelope:
            if unit.failure is not None or unit.integrity is None:
                return unit
            objects = self.pipeline.objects
            handle = objects.open(self.contract, unit.object_uri, size=unit.integrity.actual_size_bytes)
            metadata = metadata_extract(
                unit,
                contract=self.contract,
                grammar=grammar,
                source=handle,
                readers=READERS,
                open_sidecar=lambda suffix: objects.open_sidecar(self.contract, unit.object_uri, suffix),
            )
            return unit.evolve(metadata=metadata)

        return self._concurrently(extract, batch)

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return _summary([unit.metadata.status is CheckStatus.FAILED for unit in batch if unit.metadata])


@dataclass(kw_only=True)
class StacRegister(_Node):
    """Write the Items."""

    operator = Operator.STAC_REGISTER

    @override
    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        registered: list[Envelope] = []
        for part in _chunks(iter(batch), REGISTER_CHUNK):
            registered += stac_register_batch(
                part,
                contract=self.contract,
                grammar=self.pipeline.registry.grammars[self.dataset],
                catalog=self.pipeline.catalog,
                fence=self.pipeline.ledger.fence(self.run_id),
                run_state={"dataset_id": self.dataset_id, "run_id": self.run_id},
            )
        return registered

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return _summary([unit.stac.write_status is StacStatus.FAILED for unit in batch if unit.stac])


@dataclass(kw_only=True)
class ProvenanceEmit(_Node):
    """Emit the lineage of every registered unit, once."""

    operator = Operator.PROVENANCE_EMIT

    @override
    def compute(self, batch: Sequence[Envelope]) -> list[Envelope]:
        claimed = self.pipeline.stages.run_states.get(f"{self.dataset}.{Operator.MESSAGE_PARSE}", self.run_id)

        def emit(units: list[Envelope]) -> list[Envelope]:
            return provenance_emit(
                units,
                contract=self.contract,
                lineage=self.pipeline.lineage,
                run_id=self.run_id,
                occurred_at=self.pipeline.clock(),
                started_at=claimed.recorded_at if claimed else None,
            )

        return self._while_held(emit, batch)

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
        return _summary([bool(unit.provenance.issues) for unit in batch if unit.provenance])


@dataclass(kw_only=True)
class Settle(_Node):
    """Give each claimed record its final status; then the messages whose units are all terminal may go."""

    operator = Operator.SETTLE

    report: SettleReport = field(default_factory=SettleReport)

    @override
    def apply(self, tx: Transaction, batch: list[Envelope]) -> list[Envelope]:
        self.report = self.pipeline.ledger.settle(batch, run_id=self.run_id, tx=tx)
        return batch

    @override
    def summarize(self, batch: Sequence[Envelope]) -> ValidationSummary:
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
            },
        )

    @override
    def after_commit(self, batch: Sequence[Envelope]) -> None:
        if any(unit.raw.sqs_message_id for unit in batch):
            self.pipeline.acknowledge(retrying=self.report.failed)


def _summary(failures: Sequence[bool]) -> ValidationSummary:
    """Count the units that the node worked on, each given as whether it failed here."""
    return ValidationSummary(checks=len(failures), passed=len(failures) - sum(failures), failed=sum(failures))


def _chunks(units: Iterator[Envelope], size: int) -> Iterator[list[Envelope]]:
    while chunk := list(islice(units, size)):
        yield chunk
