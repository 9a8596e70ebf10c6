"""Replay of the chain's intents: what a stage intended, failed to do, and no later run has overtaken (ADR 023).

    failed intent > its payload > what the ledger says of the units that it names > one of the actions below

A batch names attempts, and an attempt that ended is over, so nothing is computed under it again: its units are let in
again through the ledger, and the run that claims them overtakes the intent. Harmless to repeat, by anybody.
Does not belong here: a library's nodes (`idempotent_node/replay.py`), letting failed units in (`replay/engine.py`).
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
"""Each reads at most one batch; what is left has the next tick."""


@unique
class IntentAction(StrEnum):
    """What a replay does with a failed intent."""

    CLOSE = "close"
    """Nothing of it is left to do: it is SKIPPED."""
    ENTER = "enter"
    """The listing that it has kept is entered into the ledger; runs claim from there."""
    LET_IN = "let in"
    """Its failed units are let in again, by a replay with every guard. The sensor leaves them to the retry policy."""
    RUN = "run"
    """It claims nothing: its stage is run again, in its run and from the batches that it names."""
    WAIT = "wait"
    """Its units are pending or in work, and the run that has them overtakes it."""
    HOLD = "hold"
    """A person decides."""


Decided: TypeAlias = tuple[IntentAction, str, *tuple[WalId, ...]]
"""An action, why, and the units to let in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IntentPlan:
    """An intent, what a replay does with it, and why; `units` are those to let in."""

    intent: Intent
    action: IntentAction
    why: str
    units: tuple[WalId, ...] = ()
    failed: bool = False
    """Whether it was carried out and failed again."""

    def as_json(self) -> dict[str, Any]:
        """Return a row for a person."""
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
    """Replays the failed intents of a deployment's nodes, which it makes again."""

    pipeline: Pipeline

    def plans(self, *, dataset: str | None = None) -> Iterator[IntentPlan]:
        """Yield what a replay would do with each failed intent of the chain's nodes, oldest first; changes nothing."""
        off = KillSwitchPolicy.now(self.pipeline.ledger.switches)
        for intent in self.pipeline.nodes.intents.unresolved():
            context = intent.payload["context"]
            ours = (
                context.get("operator") in {*operators(), NODE}
                and context["dataset"] in self.pipeline.registry.contracts
            )
            if ours and intent.status is IntentStatus.FAILED and dataset in {None, context["dataset"]}:
                switch = off.of(context["dataset"])
                try:
                    action, why, *units = (IntentAction.HOLD, sentence(switch)) if switch else self._decided(intent)
                except ArtifactError as gone:
                    action, why, units = IntentAction.HOLD, str(gone), []
                yield IntentPlan(intent=intent, action=action, why=why, units=tuple(units))

    def carry_out(self, plan: IntentPlan) -> IntentPlan:
        """Do what a plan says of its intent, letting units in excepted; return what is left of it.

        Raises StageFailedError where a stage that is run again fails again, and what store and database raise.
        """
        context = plan.intent.payload["context"]
        if plan.action is IntentAction.RUN:
            parts = {name: context[name] for name in ("dataset", "partition", "run_id")}
            node = PathArrivals(pipeline=self.pipeline, **parts)
            self.pipeline.stages.commit(self.pipeline.stages.run(node, run_id=node.run_id, upstream=None))
            return replace(plan, why="it is applied")
        if plan.action is IntentAction.ENTER:
            self._listing_node(plan.intent).transform()
            action, why = self._of_the_first_node(plan.intent)
            plan = replace(plan, action=action, why=why)
        if plan.action is IntentAction.CLOSE:
            with self.pipeline.database.transaction() as tx:
                self.pipeline.nodes.intents.resolve(plan.intent, IntentStatus.SKIPPED, tx=tx)
        return plan

    def advance(self, revisited: set[int], *, say: Callable[[str], None]) -> None:
        """Revisit failed intents, each once: enter the listings that failed runs kept, close what is done.

        What waits for a person is left to `kfm replay intents`, which says why.
        """
        for plan in islice((plan for plan in self.plans() if plan.intent.wal_id not in revisited), INTENTS_PER_TICK):
            if plan.action in {IntentAction.ENTER, IntentAction.CLOSE}:
                done = self.carry_out(plan)
                say(f"intent {plan.intent.wal_id} of {plan.intent.node} is replayed ({plan.action}): {done.why}")
            revisited.add(plan.intent.wal_id)

    def _decided(self, intent: Intent) -> Decided:
        payload = intent.payload
        if payload["context"]["operator"] == NODE:
            return IntentAction.RUN, "it failed in every attempt of its run"
        if payload["context"]["operator"] != MessageParse.operator:
            return self._of_a_batch(intent)
        if "replay_of" in payload["params"]:
            return IntentAction.HOLD, "a replay of a run is started by a person"
        # A backfill's has the names of what it lists, and no file.
        listed = payload["params"]["source"] == Source.LISTING and "checksum" in payload["inputs"][0]
        return self._of_a_listing(intent) if listed else self._of_the_first_node(intent)

    def _of_a_listing(self, intent: Intent) -> Decided:
        if refused := intent.payload["context"].get("refused"):
            return IntentAction.HOLD, f"its day was not listed whole ({refused}); start the run again"
        node = self._listing_node(intent)
        if any(intent.payload["params"].get(name) != value for name, value in node.params().items()):
            return IntentAction.HOLD, "the contract has changed since; start the run again"
        listed = [unit.wal_id for entry in node.listing if (unit := parse_listed(node.contract, entry)) is not None]
        with self.pipeline.database.snapshot() as tx:
            unknown = set(listed) - set(self.pipeline.ledger.statuses(listed, tx=tx))
        if not unknown:
            return self._of_the_first_node(intent)
        return IntentAction.ENTER, f"{len(unknown)} objects that it listed are not in the ledger"

    def _listing_node(self, intent: Intent) -> MessageParse:
        """Return the first node of a run with the listing that it had kept. Raises ArtifactError."""
        payload = intent.payload
        context, params, [kept] = payload["context"], payload["params"], payload["inputs"]
        return MessageParse(
            pipeline=self.pipeline,
            dataset=context["dataset"],
            partition=context["partition"],
            run_id=context["run_id"],
            source=Source.LISTING,
            limit=params["limit"],
            lane=params["lane"],
            listing=kept_listing(self.pipeline.artifacts, kept),
        )

    def _of_the_first_node(self, intent: Intent) -> tuple[IntentAction, str]:
        """Wait for the run that claims what waits; with nothing waiting, there is nothing to claim."""
        context = intent.payload["context"]
        place = {"dataset": context["dataset"], "partition": context["partition"]}
        with self.pipeline.database.snapshot() as tx:
            waits = self.pipeline.ledger.holds(**place, statuses=(Status.PENDING, Status.IN_PROGRESS), tx=tx)
        if waits:
            return IntentAction.WAIT, "units of its day are pending or in work"
        return IntentAction.CLOSE, "no unit of its day waits"

    def _of_a_batch(self, intent: Intent) -> Decided:
        batch = intent.payload["inputs"][-1]
        content = self.pipeline.artifacts.get(ArtifactReference(uri=batch["uri"], sha256=batch["checksum"]))
        units = [unit.wal_id for unit in from_parquet(content)]
        with self.pipeline.database.snapshot() as tx:
            statuses = self.pipeline.ledger.statuses(units, tx=tx)
        of: dict[Status, Sequence[WalId]] = {
            status: sorted(wal_id for wal_id, now in statuses.items() if now is status) for status in Status
        }
        if waiting := len(of[Status.PENDING]) + len(of[Status.IN_PROGRESS]):
            return IntentAction.WAIT, f"{waiting} of its units are pending or in work"
        if failed := of[Status.FAILED]:
            return IntentAction.LET_IN, f"{len(failed)} of its units have failed", *failed
        if quarantined := of[Status.QUARANTINED]:
            return IntentAction.HOLD, f"{len(quarantined)} of its units are in quarantine; kfm release lets them in"
        return IntentAction.CLOSE, "its units have succeeded"
