"""Base classes of the chain's nodes: dataset, partition, run, gates, and heartbeat.

Belongs here: a step's declarations, the defaults of the run contract's protocol, and the renewal of a run's leases
while a node works (BEY-02). Does not belong here: the work of a node (`discovery.py`, `nodes.py`), or the permission to
write, which fences give, not leases (`ledger/leases.py`).
"""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

import orjson
from typing_extensions import override

from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.issues import FenceIssue, IntegrityIssue, MetadataIssue
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.deliveries import DueBackoff
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.redaction import error_text, redacted_error
from kfm_dagster.settings import FeedKind
from kfm_dagster.stages.gates.evaluate import evaluate
from kfm_dagster.stages.gates.subject import PartitionFacts, Subject, catalog_owners, partition_facts
from kfm_dagster.stages.gates.verdict import Gate, Verdict, of_every_gate
from kfm_dagster.stages.node import StageNode
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster.storage.read_ahead import ReadAhead
from kfm_dagster.telemetry.traces import traced

Value = TypeVar("Value")
UnitStep = Callable[[Envelope], Envelope]
Results = Mapping[WalId, bytes]
"""A stage's results by the units' primary keys, as bytes that are equal for equal results."""

_LOG = logging.getLogger(__name__)
_SILENT = frozenset({IntegrityIssue.STORAGE_UNAVAILABLE.value, MetadataIssue.STORAGE_UNAVAILABLE.value})


class StoreSilentError(DependencyUnavailableError):
    """An object's store does not answer, so the result is unknown."""


@dataclass(kw_only=True)
class ChainNode(StageNode):
    """A step of every dataset's chain; an instance has its dataset, partition and run.

    A new step needs only a subclass: ops, assets, jobs, gates, rollback, comparison and the names that the pipeline
    card may use are derived from the subclasses (`nodes.chain`).
    """

    operator: ClassVar[str]
    """Name of the step in run-state, and of its op in Dagster."""
    asset: ClassVar[str]
    """Name of the op's asset."""
    description: ClassVar[str]
    """The asset's description in the UI."""
    did: ClassVar[tuple[str, str]] = ("worked on", "unit")
    """The step's action in the past tense and the noun that it counts, for explaining a run."""
    follows: ClassVar[type[ChainNode] | None] = None
    """The node whose output this node receives; None for the first node, and for a node outside the chain."""
    section: ClassVar[str | None] = None
    """The section of the envelope that this step adds to every unit that does not fail."""
    required_gates: ClassVar[tuple[Gate, ...]] = ()
    """The gates that check the step's output; the other gates do not apply."""
    replayable: ClassVar[bool] = False
    """Whether `results` depends on the input only; a replay compares the results of such steps."""

    pipeline: Pipeline
    dataset: str
    partition: str
    run_id: str
    received: Sequence[Envelope] = field(default=(), repr=False)
    read_ahead: dict[str, ReadAhead] = field(default_factory=dict, repr=False)
    """Data that a step has read from objects for the next step, by dataset; the nodes of a process share it."""
    partition_facts: PartitionFacts | None = field(default=None, init=False, repr=False)
    """The ledger's facts about the partition when the gates ran; None if no gate needed them."""

    @property
    def contract(self) -> DatasetContract:
        """The dataset's contract."""
        return self.pipeline.registry[self.dataset]

    @property
    @override
    def kind(self) -> str:
        return f"{self.dataset}.{self.operator}"

    @property
    @override
    def name(self) -> str:
        return f"{self.kind}@{self.partition}"

    @property
    def sampled(self) -> bool:
        """Whether the deployment's queue brings only some objects of each day."""
        return self.pipeline.settings.feed is FeedKind.SAMPLE

    @classmethod
    def chain(cls) -> tuple[type[ChainNode], ...]:
        """Return the chain's nodes up to this node, in order."""
        return (*(cls.follows.chain() if cls.follows else ()), cls)

    @override
    def gates(self, batch: Sequence[Envelope], *, of: str) -> Sequence[Verdict]:
        """Evaluate a batch by the gates of the node that made it."""
        maker = type(self) if of == self.kind or self.follows is None else self.follows
        # The first node's claims are known only at its commit, so the next node evaluates them by G1.
        required = maker.required_gates or (() if of == self.kind else (Gate.G1,))
        verdicts = evaluate(self._subject(batch, maker, required), gates=required) if required else ()
        return of_every_gate(verdicts, maker=maker.operator)

    def _subject(self, batch: Sequence[Envelope], maker: type[ChainNode], gates: Collection[Gate]) -> Subject:
        facts: dict[str, Any] = {}
        with_catalog = Gate.G8 in gates and issubclass(maker, EffectNode)
        if Gate.G6 in gates or with_catalog:
            with self.pipeline.database.snapshot() as view:
                if Gate.G6 in gates and not self.sampled:
                    self.partition_facts = partition_facts(self.contract, self.partition, tx=view)
                    facts["partition"] = self.partition_facts
                if with_catalog:
                    facts["catalog"] = catalog_owners(self.contract, batch, tx=view)
        return Subject(
            stage=maker.operator,
            sections=tuple(node.section for node in maker.chain() if node.section),
            contract=self.contract,
            envelopes=batch,
            reference_time=self.reference_time,
            sampled=self.sampled,
            rules=self.pipeline.card.machine.gates,
            **facts,
        )

    @property
    def reference_time(self) -> datetime:
        """The time of the run's claims, so that every attempt of a run decides by the same time."""
        return self.claimed_at or self.pipeline.clock()

    @property
    def claimed_at(self) -> datetime | None:
        """The time when the chain's first node was committed in this run; None before that."""
        first = self.chain()[0]
        state = self.pipeline.stages.run_states.get(f"{self.dataset}.{first.operator}", self.run_id)
        return state.recorded_at if state else None

    @property
    def public(self) -> str:
        """The dataset's public name, which hides a governed dataset."""
        return self.pipeline.registry.public_id(self.dataset)

    @override
    def holds_units(self, tx: Transaction) -> bool:
        return self.pipeline.ledger.holds(
            dataset=self.dataset,
            partition=self.partition,
            statuses=[Status.IN_PROGRESS],
            run_id=self.run_id,
            tx=tx,
        )

    @override
    def unlocked(self) -> str | None:
        decision = self.pipeline.calibration.decided(self.contract, self.pipeline.objects)
        return None if decision.locked else decision.reason

    @override
    def context(self) -> Mapping[str, Any]:
        return {"dataset": self.dataset, "partition": self.partition, "operator": str(self.operator)}

    @override
    def params(self) -> Mapping[str, Any]:
        # Any change of the contract may change the result.
        contract = hashlib.sha256(self.contract.model_dump_json().encode()).hexdigest()
        # Added only for a sample feed, so that content of earlier releases keeps its hash.
        sampled = {"feed": FeedKind.SAMPLE.value} if self.sampled and Gate.G6 in self.required_gates else {}
        return {"partition": self.partition, "contract_sha256": contract, **sampled}

    @override
    def working(self) -> AbstractContextManager[None]:
        attempts = {unit.wal_id: unit.attempt for unit in self.received}
        return Heartbeat(self.pipeline, run_id=self.run_id, attempts=attempts).keeping()

    def each(self, step: UnitStep) -> list[Envelope]:
        """Apply a step to every unit on the reading threads; return results in the batch's order."""
        step = traced(self.operator, step, dataset=self.public)
        return self.pipeline.threads.concurrently(step, self.received)

    def results(self, batch: Sequence[Envelope]) -> Results:
        """Return each unit's result: the node's section."""
        parts = ((unit.wal_id, getattr(unit, self.section)) for unit in batch) if self.section else ()
        return {wal_id: orjson.dumps(part, option=orjson.OPT_SORT_KEYS) for wal_id, part in parts if part is not None}

    def rerun(self) -> Results:
        """Return the results of a repetition without effects. Raises StoreSilentError.

        Nodes whose `transform` leaves effects override this method.
        """
        units = self.transform()
        for unit in units:
            if any(issue.code in _SILENT for issue in unit.issues):
                raise StoreSilentError(
                    observed=f"{unit.object_uri} cannot be read now",
                    next_step="retry when the store answers (KFM_OBJECT_ROOT, AWS_ENDPOINT_URL; the demo's: kfm cloud)",
                )
        return self.results(units)


@dataclass(kw_only=True)
class EffectNode(ChainNode):
    """A step whose `transform` has effects outside the database; `compensate` undoes them."""

    leaves_effects = True

    @override
    @abstractmethod
    def compensate(self, *, tx: Transaction) -> Mapping[str, Any] | None: ...

    @override
    def count_owned(self, tx: Transaction) -> int:
        refused = self.pipeline.ledger.leases.fence(self.run_id)(
            tx, {unit.wal_id: unit.attempt for unit in self.received}
        )
        return len(self.received) - sum(issue is FenceIssue.CLAIM_LOST for issue in refused.values())


def each_alone(step: UnitStep, *, fail: Callable[[Envelope, Exception], Envelope]) -> UnitStep:
    """Return a step whose error fails only its unit (SEC-09).

    A KfmError that does not concern the object, for example about a wrong contract, concerns every unit and is raised.
    """

    def alone(unit: Envelope) -> Envelope:
        try:
            return step(unit)
        except ObjectReadError as error:
            return fail(unit, error)
        except KfmError:
            raise
        except Exception as error:
            _LOG.exception("the step of %s fails", unit.wal_id, exc_info=redacted_error(error))
            return fail(unit, error)

    return alone


def in_chunks(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    """Yield the values in lists of `size`; the last list may be shorter."""
    rest = iter(values)
    while chunk := list(islice(rest, size)):
        yield chunk


PART = 3
"""Renewals per duration of a lease; with three, a single failed renewal loses no lease."""

BATCH = 1_000
"""Messages read and hidden at a time."""


class Heartbeat:
    """Renews a run's leases at each `tick`; hides its messages again after half their timeout.

    A run loses its claims when its lease expires, and messages are received again after their visibility timeout. The
    longest work takes longer than either, so a thread renews lease and timeouts until the work ends. `attempts` maps
    each unit of the work to the attempt that claimed it; if `attempts` is empty, no lease is renewed.
    """

    def __init__(self, pipeline: Pipeline, *, run_id: str, attempts: Mapping[WalId, int]) -> None:
        self._pipeline = pipeline
        self._run_id = run_id
        self._attempts = attempts
        self._timeouts = {contract.id: contract.queue.visibility_timeout for contract in pipeline.registry}

    @property
    def interval_seconds(self) -> float:
        """Seconds between two ticks, short enough that the tick after a failed tick is in time."""
        return min(self._pipeline.settings.lease_seconds, *self._timeouts.values()) / PART

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Tick now, and every interval until the block ends."""
        self.tick()
        name = f"heartbeat-{self._run_id}"
        with self._pipeline.threads.repeating(self.tick, seconds=self.interval_seconds, name=name):
            yield

    def tick(self) -> None:
        """Renew once. Failures are only logged, because the work still holds its claims."""
        leases = partial(self._pipeline.ledger.leases.renew, self._run_id, self._attempts)
        for name, renew in (("leases", leases), ("messages", self._prolong_messages)):
            try:
                renew()
            except Exception as error:
                _LOG.warning("run %s could not renew its %s: %s", self._run_id, name, error_text(error))

    def _prolong_messages(self) -> None:
        now = self._pipeline.clock()
        after = ""
        while True:
            held = self._pipeline.deliveries.held_by(self._run_id, after=after, limit=BATCH)
            due = [
                DueBackoff(
                    message_id=message.message_id,
                    queue=message.queue,
                    receipt_handle=message.receipt_handle,
                    seconds=self._timeouts[message.dataset],
                )
                for message in held
                if message.dataset in self._timeouts
                and now - message.received_at >= timedelta(seconds=self._timeouts[message.dataset]) / 2
            ]
            if due:
                self._pipeline.acknowledger.postpone(due)
            if len(held) < BATCH:
                return
            after = held[-1].message_id
