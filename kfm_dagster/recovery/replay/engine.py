"""The replay engine: freezes a selection, and carries it out batch by batch, always through the ledger.

Any process may call `advance`: a batch is admitted in one transaction together with what was decided about each of its
units, so that a process that dies at any instant has admitted it wholly or not at all. The admitted units are worked by
the ordinary runs. Does not belong here: rules (`guards.py`, `pace.py`, `units.py`), rows (`runs.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from kfm_dagster import __version__
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.governance.log import Decision, GovernanceAction
from kfm_dagster.governance.review import ReviewError, Units
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.recovery.replay import pace, runs
from kfm_dagster.recovery.replay.accounts import UnitOutcome, outcome_line
from kfm_dagster.recovery.replay.guards import kill_switch, refused_as_asked
from kfm_dagster.recovery.replay.limits import LIMITS, Limits
from kfm_dagster.recovery.replay.pace import Hold, HoldReason, Rate, RecentBatch, Traffic
from kfm_dagster.recovery.replay.plan import PlannedReplay, look
from kfm_dagster.recovery.replay.refusals import Refusal, Request
from kfm_dagster.recovery.replay.reports import Advance, Report
from kfm_dagster.recovery.replay.runs import ReplayRun, ReplayState, ReplayStateError
from kfm_dagster.recovery.replay.selection import Mode, Selection
from kfm_dagster.recovery.replay.units import Admission, admit, frozen
from kfm_dagster.settings import Environment
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.joining import reading, writing


@dataclass(frozen=True, kw_only=True)
class ReplayEngine:
    """Replays of one deployment."""

    pipeline: Pipeline
    limits: Mapping[Environment, Limits] = field(default_factory=lambda: LIMITS)
    code_version: str = __version__

    def plan(
        self, selection: Selection, *, change_ref: str | None = None, tx: Transaction | None = None
    ) -> PlannedReplay:
        """Say what a selection means now, and what would refuse it; changes nothing.

        Raises GuardError when even looking is refused, and UnknownReplayReasonError for a reason in no vocabulary.
        """
        with reading(self.pipeline.database, tx) as view:
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
        """Freeze a selection and let it run; nothing is let in yet. Raises GuardError when a guard refuses.

        A backfill has days to list instead of records, and Backfills.start raises what refuses them.

        With the overrides that were approved it raises ReviewError where the selection holds others by now.
        """
        decision = self.attributed(selection, decision)
        if selection.spec.mode is Mode.BACKFILL:
            return Backfills(self.pipeline).start_selected(selection, decision).run
        with writing(self.pipeline.database, tx) as change:
            change.run("replay.lock")
            plan = self.plan(selection, change_ref=decision.change_ref, tx=change)
            plan.refuse()
            if approved is not None and plan.overrides != approved:
                raise ReviewError(
                    "the selection holds other overrides than were proposed",
                    observed=f"{sum(map(len, plan.overrides.values()))} units that succeeded or are quarantined",
                    expected=f"the {sum(map(len, approved.values()))} that were proposed, as they stood then",
                    next_step="propose it again",
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
            self._log(GovernanceAction.REPLAY_STARTED, run, decision, change, units=len(plan.units))
        return run

    def attributed(self, selection: Selection, decision: Decision) -> Decision:
        """Return the decision with the reference that the spec names, unless it has one itself."""
        return replace(decision, change_ref=decision.change_ref or selection.change_ref)

    def advance(self, replay_run_id: str) -> Advance:
        """Do the next thing that a running replay needs, at most one batch; harmless to repeat, by anybody.

        A backfill is advanced by Backfills.advance, which knows what is being listed.

        Raises UnknownReplayError.
        """
        with self.pipeline.database.transaction() as tx:
            tx.run("replay.lock")
            run = runs.get(tx, replay_run_id)
            if run.state is not ReplayState.RUNNING or run.selection.spec.mode is Mode.BACKFILL:
                return Advance(replay_run_id=replay_run_id, state=run.state)
            return self._stop_on_mismatch(run, tx) or self._go_on(run, tx)

    def advance_all(self, *, say: Callable[[str], None] = lambda _: None) -> list[Advance]:
        """Advance every running replay by a step, and say what that did."""
        with self.pipeline.database.snapshot() as view:
            replays = runs.running(view)
        steps = [self._advance_or_record(replay_run_id) for replay_run_id in replays]
        for step in steps:
            say(str(step))
        return steps

    def _advance_or_record(self, replay_run_id: str) -> Advance:
        """Advance; a replay that this release cannot carry out keeps nothing else from going on."""
        try:
            return self.advance(replay_run_id)
        except DependencyUnavailableError:
            raise
        except KfmError as error:
            hold = Hold(reason=HoldReason.GUARD, observed=str(error), expected="a replay that can be carried out")
            return Advance(replay_run_id=replay_run_id, state=ReplayState.RUNNING, hold=hold)

    def pause(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """Let nothing more in until it is resumed; what was let in goes on. Raises ReplayStateError."""
        return self._halt(replay_run_id, ReplayState.PAUSED, decision, GovernanceAction.REPLAY_PAUSED)

    def stop(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """End it; what was let in goes on. Raises ReplayStateError."""
        return self._halt(replay_run_id, ReplayState.STOPPED, decision, GovernanceAction.REPLAY_STOPPED)

    def resume(self, replay_run_id: str, decision: Decision) -> ReplayRun:
        """Go on where it was paused or stopped; differing results so far count as seen. Raises ReplayStateError."""
        with self.pipeline.database.transaction() as tx:
            run = self._in_state(tx, replay_run_id, ReplayState.PAUSED, ReplayState.STOPPED)
            seen = len(runs.differing(tx, replay_run_id))
            at = self.pipeline.clock()
            runs.change_state(tx, replay_run_id, run.state, ReplayState.RUNNING, at=at, mismatches_seen=seen)
            self._log(GovernanceAction.REPLAY_RESUMED, run, decision, tx, mismatches_seen=seen)
            return runs.get(tx, replay_run_id)

    def report(self, replay_run_id: str) -> Report:
        """Look at a replay. Raises UnknownReplayError."""
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
        """Tell whether a replay runs that will go on by itself: one that a guard holds waits for a person."""
        with self.pipeline.database.snapshot() as view:
            found = runs.running(view)
        holds = [self.report(replay_run_id).hold for replay_run_id in found]
        return any(hold is None or hold.reason is not HoldReason.GUARD for hold in holds)

    def newest(self, *, limit: int = 20) -> list[ReplayRun]:
        """Return replays, the newest first."""
        with self.pipeline.database.snapshot() as view:
            return runs.newest(view, limit=limit)

    def _stop_on_mismatch(self, run: ReplayRun, tx: Transaction) -> Advance | None:
        found = runs.differing(tx, run.replay_run_id)
        if len(found) <= run.mismatches_seen:
            return None
        reason = f"{len(found)} results differ from the earlier ones, the first of {found[0].wal_id}"
        decision = self._engine(reason, run)
        at = self.pipeline.clock()
        runs.change_state(tx, run.replay_run_id, run.state, ReplayState.STOPPED, at=at, state_reason=reason)
        self._log(GovernanceAction.REPLAY_STOPPED, run, decision, tx, mismatches=len(found))
        return Advance(replay_run_id=run.replay_run_id, state=ReplayState.STOPPED)

    def _go_on(self, run: ReplayRun, tx: Transaction) -> Advance:
        batch = tx.run("replay.next_batch", replay_run_id=run.replay_run_id).scalar_one()
        if batch is None:
            return self._finish_if_done(run, tx)
        if (held := self._hold(run, batch, tx)) is not None:
            return Advance(replay_run_id=run.replay_run_id, state=run.state, hold=held)
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
        runs.record(
            self.pipeline.ledger.log,
            GovernanceAction.REPLAY_FINISHED,
            run,
            self._engine(counts, run),
            tx,
            outcomes=outcomes,
        )
        return Advance(replay_run_id=run.replay_run_id, state=ReplayState.FINISHED)

    def _hold(self, run: ReplayRun, batch: int, tx: Transaction) -> Hold | None:
        datasets = set(tx.run("replay.batch_datasets", replay_run_id=run.replay_run_id, batch=batch).scalars())
        request = self._request(run.selection, run.decision.change_ref)
        off = self.pipeline.ledger.switches.off(datasets, tx=tx)
        for refusal in (*refused_as_asked(request), kill_switch(request, off)):
            if refusal is not None:
                return _held_by(refusal)
        options = run.selection.spec.options
        rate = Rate(
            records_per_second=options.records_per_second or request.limits.records_per_second,
            batches_per_minute=options.batches_per_minute or request.limits.batches_per_minute,
        )
        return pace.hold(self._traffic(tx), rate=rate, limits=request.limits, datasets=datasets)

    def _traffic(self, tx: Transaction) -> Traffic:
        now = self.pipeline.clock()
        known = list(self.pipeline.registry.contracts)
        on = sorted(set(known) - self.pipeline.ledger.switches.off(known, tx=tx))
        waits_since = tx.run("replay.live_waits_since", datasets=on).scalar_one()
        return Traffic(
            now=now,
            in_flight=[(row.replay_run_id, row.batch, row.dataset) for row in tx.run("replay.unfinished")],
            recent=tx.rows(RecentBatch, "replay.recent_batches", since=now - pace.REMEMBERED),
            live_waits_since=waits_since,
        )

    def _log(
        self, action: GovernanceAction, run: ReplayRun, decision: Decision, tx: Transaction, **details: object
    ) -> None:
        runs.record(self.pipeline.ledger.log, action, run, decision, tx, **details)

    def _halt(
        self, replay_run_id: str, to_state: ReplayState, decision: Decision, action: GovernanceAction
    ) -> ReplayRun:
        allowed = [ReplayState.RUNNING, *([ReplayState.PAUSED] if to_state is ReplayState.STOPPED else [])]
        with self.pipeline.database.transaction() as tx:
            run = self._in_state(tx, replay_run_id, *allowed)
            at = self.pipeline.clock()
            runs.change_state(tx, replay_run_id, run.state, to_state, at=at, state_reason=decision.reason)
            self._log(action, run, decision, tx)
            return runs.get(tx, replay_run_id)

    def _in_state(self, tx: Transaction, replay_run_id: str, *allowed: ReplayState) -> ReplayRun:
        tx.run("replay.lock")
        run = runs.get(tx, replay_run_id)
        if run.state not in allowed:
            raise ReplayStateError(
                observed=f"{replay_run_id} is {run.state}",
                expected=" or ".join(allowed),
                next_step=f"kfm replay status {replay_run_id}",
            )
        return run

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
        """Return the decision that the engine itself makes, under the change of the replay."""
        actor = self.pipeline.settings.worker_id
        return Decision(actor=actor, reason=reason, change_ref=run.decision.change_ref)


def _held_by(refusal: Refusal) -> Hold:
    return Hold(
        reason=HoldReason.GUARD,
        observed=f"{refusal.guard}: {refusal.what}, {refusal.observed}",
        expected=str(refusal.expected),
    )
