"""Replay of the chain's failed intents that no later run has made obsolete (ADR 023).

    failed intent > its payload > the statuses of its units in the ledger > an action

The attempts that claimed the units of an intent's batch have ended, so the batch is never recomputed. Its units are
requeued instead, and the next run that claims these units makes the intent obsolete. A replay can safely be repeated by
any process. Does not belong here: nodes outside the chain (`idempotent_node/replay.py`), requeueing units
(`replay/engine.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from itertools import islice
from typing import Any, TypeAlias

from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.errors import ArtifactError
from kfm_dagster.idempotent_node.wal import Intent, IntentStatus
from kfm_dagster.ingest.discovery import MessageParse, Source, kept_listing
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy, sentence
from kfm_dagster.ingest.nodes import operators
from kfm_dagster.ingest.path_arrivals import NODE, PathArrivals
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.operators.message_parse import parse_listed
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.storage.artifacts import ArtifactReference

INTENTS_PER_TICK = 20
"""Maximum intents per tick, because each can need a batch from the store; the next tick handles further intents."""


@unique
class IntentAction(StrEnum):
    """The action of a replay on a failed intent."""

    CLOSE = "close"
    """The intent's work is done, so the intent becomes SKIPPED."""
    ENTER = "enter"
    """The intent's stored listing is recorded in the ledger; then runs claim the units of the listing."""
    LET_IN = "let in"
    """A replay, with every guard, requeues the failed units. Only a person starts the replay, because the sensor leaves
    failed units to their retries."""
    RUN = "run"
    """The node claims no units, so its stage is rerun in the original run, from the intent's input batches."""
    WAIT = "wait"
    """Units are pending or in progress; the run that claims these units makes the intent obsolete."""
    HOLD = "hold"
    """A person decides."""


Decided: TypeAlias = tuple[IntentAction, str, *tuple[WalId, ...]]
"""An action, its reason, and the units to requeue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentPlan:
    """An intent, the action of a replay on the intent, the reason, and the `units` to requeue."""

    intent: Intent
    action: IntentAction
    why: str
    units: tuple[WalId, ...] = ()
    failed: bool = False
    """Whether the action was tried and failed."""

    def as_json(self) -> dict[str, Any]:
        """Return a row of the list of plans."""
        return {
            "intent": self.intent.wal_id,
            "node": self.intent.node,
            "run_id": self.intent.payload["context"]["run_id"],
            "started_at": self.intent.started_at.isoformat(),
            "action": self.action.value,
            "units": len(self.units),
            "why": self.why,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentRecovery:
    """Replays a deployment's failed intents, each by a node rebuilt from the intent's payload."""

    pipeline: Pipeline

    def plans(self, *, dataset: str | None = None) -> Iterator[IntentPlan]:
        """Yield the plan of each failed intent of the chain's nodes, oldest first; change nothing."""
        off = KillSwitchPolicy.now(self.pipeline.ledger.switches)
        for intent in self.pipeline.nodes.intents.unresolved():
            context = intent.payload["context"]
            of_the_chain = (
                context.get("operator") in {*operators(), NODE}
                and context["dataset"] in self.pipeline.registry.contracts
            )
            if of_the_chain and intent.status is IntentStatus.FAILED and dataset in {None, context["dataset"]}:
                switch = off.of(context["dataset"])
                try:
                    action, why, *units = (IntentAction.HOLD, sentence(switch)) if switch else self._decided(intent)
                except ArtifactError as error:
                    action, why, units = IntentAction.HOLD, str(error), []
                yield IntentPlan(intent=intent, action=action, why=why, units=tuple(units))

    def carry_out(self, plan: IntentPlan) -> IntentPlan:
        """Carry out a plan except requeueing, which a replay does; return the plan with the outcome.

        Raises StageFailedError if a rerun stage fails again, and the errors of store and database.
        """
        context = plan.intent.payload["context"]
        if plan.action is IntentAction.RUN:
            parts = {name: context[name] for name in ("dataset", "partition", "run_id")}
            node = PathArrivals(pipeline=self.pipeline, **parts)
            self.pipeline.stages.commit(self.pipeline.stages.run(node, run_id=node.run_id, upstream=None))
            return replace(plan, why="the intent is applied")
        if plan.action is IntentAction.ENTER:
            self._listing_node(plan.intent).transform()
            action, why = self._of_the_first_node(plan.intent)
            plan = replace(plan, action=action, why=why)
        if plan.action is IntentAction.CLOSE:
            with self.pipeline.database.transaction() as tx:
                self.pipeline.nodes.intents.resolve(plan.intent, IntentStatus.SKIPPED, tx=tx)
        return plan

    def advance(self, revisited: set[int], *, report: Callable[[str], None]) -> None:
        """Handle each failed intent once: record the listings of failed runs, close done intents.

        `kfm replay intents` lists the intents that need a person, with the reason.
        """
        for plan in islice((plan for plan in self.plans() if plan.intent.wal_id not in revisited), INTENTS_PER_TICK):
            if plan.action in {IntentAction.ENTER, IntentAction.CLOSE}:
                outcome = self.carry_out(plan)
                report(f"intent {plan.intent.wal_id} of {plan.intent.node} is replayed ({plan.action}): {outcome.why}")
            revisited.add(plan.intent.wal_id)

    def _decided(self, intent: Intent) -> Decided:
        payload = intent.payload
        if payload["context"]["operator"] == NODE:
            return IntentAction.RUN, "it failed in every attempt of its run"
        if payload["context"]["operator"] != MessageParse.operator:
            return self._of_a_batch(intent)
        if "replay_of" in payload["params"]:
            return IntentAction.HOLD, "only a person starts the replay of a run"
        # A backfill's input only describes the listing, which is not stored.
        is_listing = payload["params"]["source"] == Source.LISTING and "checksum" in payload["inputs"][0]
        return self._of_a_listing(intent) if is_listing else self._of_the_first_node(intent)

    def _of_a_listing(self, intent: Intent) -> Decided:
        if refused := intent.payload["context"].get("refused"):
            return IntentAction.HOLD, f"not every bucket of its day was listed ({refused}); start the run again"
        node = self._listing_node(intent)
        if any(intent.payload["params"].get(name) != value for name, value in node.params().items()):
            return IntentAction.HOLD, "the contract has changed since the run; start the run again"
        grammar = node.pipeline.registry.grammars[node.dataset]
        wal_ids = [unit.wal_id for entry in node.listing if (unit := parse_listed(grammar, entry)) is not None]
        with self.pipeline.database.snapshot() as tx:
            unknown = set(wal_ids) - set(self.pipeline.ledger.statuses(wal_ids, tx=tx))
        if not unknown:
            return self._of_the_first_node(intent)
        return IntentAction.ENTER, f"{len(unknown)} objects that it listed are not in the ledger"

    def _listing_node(self, intent: Intent) -> MessageParse:
        """Return a run's first node with the listing that the run stored. Raises ArtifactError."""
        payload = intent.payload
        context, params, [reference] = payload["context"], payload["params"], payload["inputs"]
        return MessageParse(
            pipeline=self.pipeline,
            dataset=context["dataset"],
            partition=context["partition"],
            run_id=context["run_id"],
            source=Source.LISTING,
            limit=params["limit"],
            lane=params["lane"],
            listing=kept_listing(self.pipeline.artifacts, reference),
        )

    def _of_the_first_node(self, intent: Intent) -> tuple[IntentAction, str]:
        """Return WAIT if units of the intent's day are pending or in progress, otherwise CLOSE."""
        context = intent.payload["context"]
        day = {"dataset": context["dataset"], "partition": context["partition"]}
        with self.pipeline.database.snapshot() as tx:
            has_waiting = self.pipeline.ledger.holds(**day, statuses=(Status.PENDING, Status.IN_PROGRESS), tx=tx)
        if has_waiting:
            return IntentAction.WAIT, "units of its day are pending or in progress"
        return IntentAction.CLOSE, "no unit of its day waits"

    def _of_a_batch(self, intent: Intent) -> Decided:
        batch = intent.payload["inputs"][-1]
        content = self.pipeline.artifacts.get(ArtifactReference(uri=batch["uri"], sha256=batch["checksum"]))
        units = [unit.wal_id for unit in from_parquet(content)]
        with self.pipeline.database.snapshot() as tx:
            statuses = self.pipeline.ledger.statuses(units, tx=tx)
        by_status: dict[Status, Sequence[WalId]] = {
            status: sorted(wal_id for wal_id, current in statuses.items() if current is status) for status in Status
        }
        if waiting := len(by_status[Status.PENDING]) + len(by_status[Status.IN_PROGRESS]):
            return IntentAction.WAIT, f"{waiting} of its units are pending or in progress"
        if failed := by_status[Status.FAILED]:
            return IntentAction.LET_IN, f"{len(failed)} of its units have failed", *failed
        if quarantined := by_status[Status.QUARANTINED]:
            return IntentAction.HOLD, f"{len(quarantined)} of its units are in quarantine; kfm retry requeues them"
        return IntentAction.CLOSE, "its units have succeeded"
