"""The replay engine: freeze a selection (store its units), and requeue it batch by batch.

Any process can call `advance`. One transaction admits a batch and records the decision on each of its units, so that a
process that dies has admitted the batch wholly or not at all. Ordinary runs process the admitted units. Does not belong
here: rules (`plan.py`, `limits.py`, `units.py`), rows (`runs.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from kfm_dagster import __version__
from kfm_dagster.errors import DependencyUnavailableError, KfmError, RefusedError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import Units
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.replay import runs
from kfm_dagster.recovery.replay.limits import (
    LIMITS,
    RATES,
    REMEMBERED,
    Hold,
    HoldReason,
    Limits,
    Request,
    Traffic,
    reason_to_hold,
)
from kfm_dagster.recovery.replay.plan import PlannedReplay, kill_switch, look, request_refusals
from kfm_dagster.recovery.replay.runs import (
    ENDED,
    NEXT_STATES,
    Account,
    Differing,
    ReplayRun,
    ReplayState,
    UnitOutcome,
    outcome_line,
)
from kfm_dagster.recovery.replay.selection import Mode, Selection
from kfm_dagster.recovery.replay.units import Admission, AdmittedBatch, admit, datasets_of, frozen
from kfm_dagster.settings import Environment
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.view import json_row


@dataclass(frozen=True, kw_only=True, slots=True)
class Advance:
    """The result of an advance: an admitted batch, a hold, a new state, or no change."""

    replay_run_id: str
    state: ReplayState
    admitted: AdmittedBatch | None = None
    hold: Hold | None = None

    def __str__(self) -> str:
        if self.admitted is not None:
            return f"replay {self.replay_run_id}: {self.admitted}"
        return f"replay {self.replay_run_id}: {self.state}" + (f", {self.hold}" if self.hold else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A replay, the account of its units, its differing results, and its present hold."""

    run: ReplayRun
    account: Account
    differing: tuple[Differing, ...]
    hold: Hold | None

    @property
    def ended(self) -> bool:
        """Return whether the replay is stopped or finished."""
        return self.run.state in ENDED

    def as_json(self) -> dict[str, object]:
        """Return the published form."""
        return {
            **self.run.as_json(),
            **self.account.as_json(),
            "mismatches": [json_row(unit) for unit in self.differing],
            "hold": None if self.hold is None else str(self.hold),
        }


@dataclass(frozen=True, kw_only=True)
class ReplayEngine:
    """Replays of a deployment."""

    pipeline: Pipeline
    limits: Mapping[Environment, Limits] = field(default_factory=lambda: LIMITS)
    code_version: str = __version__

    def plan(
        self, selection: Selection, *, change_ref: str | None = None, tx: Transaction | None = None
    ) -> PlannedReplay:
        """Return the plan of a selection as of now, with the refusals of guards; change nothing.

        Raises GuardError if a guard refuses the query itself, UnknownReplayReasonError for an unknown reason.
        """
        with nullcontext(tx) if tx else self.pipeline.database.snapshot() as view:
            self.pipeline.ledger.check_reason(selection.replay_reason, tx=view)
            request = self._request(selection, change_ref)
            return look(request, registry=self.pipeline.registry, rules=self._rules(selection, view), tx=view)

    def start(
        self,
        selection: Selection,
        decision: Decision,
        *,
        approved: Units | None = None,
        tx: Transaction | None = None,
    ) -> ReplayRun:
        """Freeze a selection and start its replay, but admit no unit yet.

        A selection of mode backfill starts a backfill; then the errors of `Backfills.start` are raised. Raises
        GuardError if a guard refuses, RefusedError if the selection now needs other overrides than were `approved`.
        """
        decision = self.attributed(selection, decision)
        if selection.spec.mode is Mode.BACKFILL:
            datasets, (first, last) = datasets_of(selection, self.pipeline.registry), selection.days
            window = {"first_day": first, "last_day": last}
            return (
                Backfills(self.pipeline).start(datasets=datasets, decision=decision, selection=selection, **window).run
            )
        with nullcontext(tx) if tx else self.pipeline.database.transaction() as change:
            change.run("replay.lock")
            plan = self.plan(selection, change_ref=decision.change_ref, tx=change)
            plan.refuse()
            if approved is not None and plan.overrides != approved:
                raise RefusedError(
                    "the selection needs other overrides than were proposed",
                    observed=f"{sum(map(len, plan.overrides.values()))} units that succeeded or are quarantined",
                    expected=f"the {sum(map(len, approved.values()))} proposed units at their proposed versions",
                    next_step="propose the replay again",
                )
            self.pipeline.ledger.govern_reason(selection.replay_reason, tx=change)
            replay_run_id = str(uuid.uuid4())
            runs.create(
                change,
                replay_run_id=replay_run_id,
                selection=selection,
                units=frozen(plan.units, batch_size=plan.batch_size),
                decision=decision,
                at=self.pipeline.clock(),
            )
            run = runs.get(change, replay_run_id)
            log = self.pipeline.ledger.log
            runs.record(log, GovernanceAction.REPLAY_STARTED, run, decision, change, units=len(plan.units))
        return run

    def attributed(self, selection: Selection, decision: Decision) -> Decision:
        """Return the decision; without a change reference, it gets the reference of the spec."""
        return replace(decision, change_ref=decision.change_ref or selection.change_ref)

    def advance(self, replay_run_id: str) -> Advance:
        """Advance a running replay by at most one batch; any process can repeat this safely.

        Does nothing for a backfill, because `Backfills.advance` advances it. Raises UnknownNameError.
        """
        with self.pipeline.database.transaction() as tx:
            tx.run("replay.lock")
            run = runs.get(tx, replay_run_id)
            if run.state is not ReplayState.RUNNING or run.selection.spec.mode is Mode.BACKFILL:
                return Advance(replay_run_id=replay_run_id, state=run.state)
            return self._stop_on_mismatch(run, tx) or self._go_on(run, tx)

    def advance_all(self, *, report: Callable[[str], None] = lambda _: None) -> list[Advance]:
        """Advance every running replay by a step, and pass each result to `report`."""
        with self.pipeline.database.snapshot() as view:
            replays = runs.running(view)
        steps = [self._advance_or_record(replay_run_id) for replay_run_id in replays]
        for step in steps:
            report(str(step))
        return steps

    def _advance_or_record(self, replay_run_id: str) -> Advance:
        """Advance a replay; return a hold if this version of kfm_dagster cannot continue the replay."""
        try:
            return self.advance(replay_run_id)
        except DependencyUnavailableError:
            raise
        except KfmError as error:
            hold = Hold(reason=HoldReason.GUARD, observed=str(error), expected="a replay that can be carried out")
            return Advance(replay_run_id=replay_run_id, state=ReplayState.RUNNING, hold=hold)

    def pause(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """Admit no unit until the replay is resumed; admitted units continue. Raises RefusedError."""
        return self._change(replay_run_id, ReplayState.PAUSED, decision, GovernanceAction.REPLAY_PAUSED)

    def stop(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """End a replay; admitted units continue. Raises RefusedError."""
        return self._change(replay_run_id, ReplayState.STOPPED, decision, GovernanceAction.REPLAY_STOPPED)

    def resume(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """Resume a replay; results that differed before do not stop it again. Raises RefusedError."""
        return self._change(replay_run_id, ReplayState.RUNNING, decision, GovernanceAction.REPLAY_RESUMED)

    def report(self, replay_run_id: str) -> Report:
        """Return the report of a replay. Raises UnknownNameError."""
        with self.pipeline.database.snapshot() as view:
            run = runs.get(view, replay_run_id)
            batch = view.run("replay.next_batch", replay_run_id=replay_run_id).scalar_one()
            is_held = run.state is ReplayState.RUNNING and batch is not None
            return Report(
                run=run,
                account=runs.account(view, replay_run_id),
                differing=tuple(runs.differing(view, replay_run_id)),
                hold=self._hold(run, batch, view) if is_held else None,
            )

    def at_work(self) -> bool:
        """Return whether a running replay exists that no guard holds."""
        with self.pipeline.database.snapshot() as view:
            replays = runs.running(view)
        holds = [self.report(replay_run_id).hold for replay_run_id in replays]
        return any(hold is None or hold.reason is not HoldReason.GUARD for hold in holds)

    def newest(self, *, limit: int = 20) -> list[ReplayRun]:
        """Return replays, the newest first."""
        with self.pipeline.database.snapshot() as view:
            return runs.newest(view, limit=limit)

    def _stop_on_mismatch(self, run: ReplayRun, tx: Transaction) -> Advance | None:
        differing = runs.differing(tx, run.replay_run_id)
        if len(differing) <= run.mismatches_seen:
            return None
        reason = f"{len(differing)} results differ from earlier results, the first at unit {differing[0].wal_id}"
        decision = self._engine(reason, run)
        at = self.pipeline.clock()
        runs.change_state(tx, run.replay_run_id, run.state, ReplayState.STOPPED, at=at, state_reason=reason)
        runs.record(
            self.pipeline.ledger.log, GovernanceAction.REPLAY_STOPPED, run, decision, tx, mismatches=len(differing)
        )
        return Advance(replay_run_id=run.replay_run_id, state=ReplayState.STOPPED)

    def _go_on(self, run: ReplayRun, tx: Transaction) -> Advance:
        batch = tx.run("replay.next_batch", replay_run_id=run.replay_run_id).scalar_one()
        if batch is None:
            return self._finish_if_done(run, tx)
        if (hold := self._hold(run, batch, tx)) is not None:
            return Advance(replay_run_id=run.replay_run_id, state=run.state, hold=hold)
        admitted = admit(
            self.pipeline.ledger,
            replay_run_id=run.replay_run_id,
            batch=batch,
            selection=run.selection,
            rules=self._rules(run.selection, tx),
            decision=run.decision,
            at=self.pipeline.clock(),
            tx=tx,
        )
        return Advance(replay_run_id=run.replay_run_id, state=run.state, admitted=admitted)

    def _finish_if_done(self, run: ReplayRun, tx: Transaction) -> Advance:
        account = runs.account(tx, run.replay_run_id)
        if account.open:
            return Advance(replay_run_id=run.replay_run_id, state=run.state)
        counts = outcome_line(account.outcomes)
        runs.change_state(tx, run.replay_run_id, run.state, ReplayState.FINISHED, at=self.pipeline.clock())
        outcomes = {outcome.value: account.outcomes[outcome] for outcome in UnitOutcome if account.outcomes[outcome]}
        decision = self._engine(counts, run)
        runs.record(self.pipeline.ledger.log, GovernanceAction.REPLAY_FINISHED, run, decision, tx, outcomes=outcomes)
        return Advance(replay_run_id=run.replay_run_id, state=ReplayState.FINISHED)

    def _hold(self, run: ReplayRun, batch: int, tx: Transaction) -> Hold | None:
        datasets = set(tx.run("replay.batch_datasets", replay_run_id=run.replay_run_id, batch=batch).scalars())
        request = self._request(run.selection, run.decision.change_ref)
        off = self.pipeline.ledger.switches.off(datasets, tx=tx)
        if refusals := [*request_refusals(request), *kill_switch(request, off)]:
            observed = f"{refusals[0].guard}: {refusals[0].what}, {refusals[0].observed}"
            return Hold(reason=HoldReason.GUARD, observed=observed, expected=str(refusals[0].expected))
        options = run.selection.spec.options
        rates = {name: getattr(options, name) or getattr(request.limits, name) for name in RATES}
        return reason_to_hold(self._traffic(tx), limits=replace(request.limits, **rates), datasets=datasets)

    def _traffic(self, tx: Transaction) -> Traffic:
        now = self.pipeline.clock()
        datasets = list(self.pipeline.registry.contracts)
        active = sorted(set(datasets) - self.pipeline.ledger.switches.off(datasets, tx=tx))
        waits_since = tx.run("replay.live_waits_since", datasets=active).scalar_one()
        return Traffic(
            now=now,
            in_flight=[(row.replay_run_id, row.batch, row.dataset) for row in tx.run("replay.unfinished")],
            recent=[(row.decided_at, row.admitted) for row in tx.run("replay.recent_batches", since=now - REMEMBERED)],
            live_waits_since=waits_since,
        )

    def _change(
        self, replay_run_id: str, to_state: ReplayState, decision: Decision, action: GovernanceAction
    ) -> ReplayRun:
        """Change a replay's state by a person's decision, and log the decision. Raises RefusedError."""
        # Only the engine changes a planned replay to running.
        allowed = {state for state, following in NEXT_STATES.items() if to_state in following} - {ReplayState.PLANNED}
        with self.pipeline.database.transaction() as tx:
            tx.run("replay.lock")
            run = runs.get(tx, replay_run_id)
            if run.state not in allowed:
                raise RefusedError(
                    "the replay is in another state",
                    observed=f"{replay_run_id} is {run.state}",
                    expected=" or ".join(sorted(allowed)),
                    next_step=f"kfm replay status {replay_run_id}",
                )
            change: dict[str, Any] = {"state_reason": decision.reason}
            details = {}
            if to_state is ReplayState.RUNNING:
                change = details = {"mismatches_seen": len(runs.differing(tx, replay_run_id))}
            runs.change_state(tx, replay_run_id, run.state, to_state, at=self.pipeline.clock(), **change)
            runs.record(self.pipeline.ledger.log, action, run, decision, tx, **details)
            return runs.get(tx, replay_run_id)

    def _request(self, selection: Selection, change_ref: str | None) -> Request:
        env = self.pipeline.settings.env
        return Request(
            selection=selection, env=env, limits=self.limits[env], change_ref=change_ref or selection.change_ref
        )

    def _rules(self, selection: Selection, tx: Transaction) -> Admission:
        registry = self.pipeline.registry
        return Admission(
            registry=registry,
            switched_off=self.pipeline.ledger.switches.off(registry.contracts, tx=tx),
            code_version=self.code_version,
            allow_downgrade=selection.spec.options.allow_downgrade,
        )

    def _engine(self, reason: str, run: ReplayRun) -> Decision:
        """Return a decision by the engine itself, with the replay's change reference."""
        actor = self.pipeline.settings.worker_id
        return Decision(actor=actor, reason=reason, change_ref=run.decision.change_ref)
