"""A dataset's chain without Dagster, and a run's rollback after a final failure (PCS-03).

A rollback also undoes the run's other stages. Some of them may follow the failed stage, because a re-execution of the
run may fail at an earlier stage than the first execution had reached. One transaction first releases the claims. If the
run has lost a claim, nothing is undone, because another run may rely on that unit's effects. Otherwise the transaction,
in reverse topological order, withdraws lineage, restores Items byte for byte, and revokes each stage's output in
run-state (after the commit if run-state is outside the database). A run whose process died is not rolled back, because
the next attempt of its units completes its effects.

Belongs here: running the nodes, and rolling a run back. Does not belong here: the nodes (`nodes.py`), the run contract
around each (`stages/run_contract.py`), or the failed stage's own compensation (`stages/lifecycle.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.errors import ExitCode, KfmError
from kfm_dagster.idempotent_node.checkpoint import lock_node
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.node import ChainNode, EffectNode
from kfm_dagster.ingest.nodes import MessageParse, chain, operators
from kfm_dagster.ingest.path_arrivals import NODE as PATH_ARRIVAL
from kfm_dagster.ledger.reports import RecoverReport
from kfm_dagster.redaction import error_text, redacted_error
from kfm_dagster.run_state.record import Outcome, RunState
from kfm_dagster.settings import Settings
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.batch import StageBatch
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.failure import at_fault, classify, may_be_of_a_unit
from kfm_dagster.stages.store import StageAttempt
from kfm_dagster.storage.database import Transaction

_LOG = logging.getLogger(__name__)


def run_chain(first: MessageParse, *, pause: Callable[[float], None] | None = None) -> list[StageBatch]:
    """Run the chain over the units of its first node; return each node's output.

    `pause` waits for a number of seconds. With it, a failed stage is retried by the pipeline card's rules, and after
    the last try the run is rolled back, as a run of Dagster is. Without it, the first failure ends the chain, and
    nothing is rolled back. Raises the stage's error: StageFailedError, or the error of the commit.
    """
    shared: dict[str, Any] = {
        "pipeline": first.pipeline,
        "dataset": first.dataset,
        "partition": first.partition,
        "run_id": first.run_id,
        "read_ahead": first.read_ahead,
    }
    outputs: list[StageBatch] = []
    for node in (first, *(kind(**shared) for kind in chain()[1:])):
        outputs.append(_run_stage(node, outputs[-1] if outputs else None, pause))
    return outputs


def _run_stage(node: ChainNode, upstream: StageBatch | None, pause: Callable[[float], None] | None) -> StageBatch:
    stages = node.pipeline.stages
    for tries in count(1):
        # A copy for each try, because a node has state.
        copy = replace(node)
        try:
            return stages.commit(stages.run(copy, run_id=node.run_id, upstream=upstream))
        except Exception as error:
            if pause is None:
                raise
            wait = retry_in(copy, error, tries=tries)
            if wait is None:
                if (rollback := roll_back_or_leave(copy, error)) is not None:
                    _LOG.warning("%s failed for good, its run is rolled back: %s", node.kind, rollback)
                raise
            pause(wait)
    raise AssertionError("tries end by a return or an error")


def read_configuration(settings: Settings) -> Configuration:
    """Read all files that settings name, and refuse a card with unknown stages; create nothing.

    Commands that start servers, daemons or workers call this function first, so that a wrong file is reported once
    and not by every process. Raises ContractError, CardError or ConfigurationError.
    """
    configuration = Configuration.load(settings)
    configuration.card.refuse_unknown_stages((*operators(), PATH_ARRIVAL))
    return configuration


_ROLLED_BACK = "run rolled back"


class ClaimsLostError(KfmError):
    """A run cannot be rolled back, because other runs may rely on its effects."""

    exit_code = ExitCode.REFUSED


class _TakenOverError(Exception):
    """Another process of the run is working on the failed stage, or has completed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollback:
    """A run's undone effects in a dataset, by stage (last stage first), and released claims."""

    compensated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    claims: RecoverReport = field(default_factory=RecoverReport)

    def __str__(self) -> str:
        done = "; ".join(f"{stage}: {_counts(undone)}" for stage, undone in self.compensated.items())
        units = {
            "pending again": len(self.claims.requeued),
            "quarantined": len(self.claims.quarantined),
            "failed": len(self.claims.failed),
        }
        return f"{done}; units: {_counts(units)}" if done else f"units: {_counts(units)}"


def retry_in(node: ChainNode, error: BaseException, *, tries: int) -> float | None:
    """Return the seconds until the retry of a failed stage; None if its run must be rolled back.

    `tries` is the number of tries so far, as the caller counts them.
    """
    return node.pipeline.stages.lifecycle.retry_in(node.run_id, node.kind, classify(error), tries=tries)


def roll_back(node: ChainNode, because: BaseException) -> Rollback | None:
    """Undo a run's effects in a dataset after `node` failed for good; None if nothing is undone.

    `because` becomes the last error of every unit of the run, so that quarantined units name stage and gate.

    Does nothing if the card has no rollback, the failed stage itself could not be compensated, or the run's first stage
    reused an earlier run's output. Raises ClaimsLostError, and errors of catalog and database; then the database is
    unchanged, and the units' next attempt completes the effects. If run-state is outside the database, and only the
    revocation after the commit fails, the outputs are revoked in a second try.
    """
    states = list(_current_states(node))
    with node.pipeline.database.snapshot() as tx:
        has_failed = _failed(node, tx) is not None
    if not has_failed or not states or states[-1].outcome is Outcome.SKIPPED:
        return None
    claimed = node.pipeline.stages.port.load_output(states[-1].dataset_id, node.run_id)
    rollback: Rollback | None = None
    failed: StageAttempt | None = None
    try:
        with node.pipeline.database.transaction() as tx:
            claims = _release_claims(node, claimed.envelopes if claimed else (), because, tx)
            failed = _still_failed(node, tx)
            compensated = {stage.kind: stage.compensate(tx=tx) or {} for stage in _with_effects(node, states)}
            _revoke_outputs(node, states, tx)
            rollback = Rollback(compensated=compensated, claims=claims)
            _audit(node, failed, rollback, tx)
    except _TakenOverError:
        return None
    except Exception as error:
        if rollback is None or failed is None or not _is_audited(node, failed):
            raise
        _LOG.warning("run %s: run-state was not updated: %s", node.run_id, error_text(error))
        _revoke_remaining_outputs(node)
    return rollback


def roll_back_or_leave(node: ChainNode, because: BaseException) -> Rollback | None:
    """Roll back; an error is only logged and audited, as the next attempt completes the effects."""
    try:
        return roll_back(node, because)
    except Exception as error:
        _LOG.exception(
            "run %s could not be rolled back in %s", node.run_id, node.dataset, exc_info=redacted_error(error)
        )
        _audit_failure(node, "run not rolled back", error)
        return None


def _revoke_remaining_outputs(node: ChainNode) -> None:
    """Revoke the outputs that run-state still has after a rollback; log and audit a failure.

    Otherwise a re-execution of the run would reuse these outputs as current.
    """
    try:
        states = list(_current_states(node))
        with node.pipeline.database.transaction() as tx:
            _revoke_outputs(node, states, tx)
    except Exception as error:
        _LOG.exception(
            "run %s is rolled back in %s, its outputs are not revoked in run-state",
            node.run_id,
            node.dataset,
            exc_info=redacted_error(error),
        )
        _audit_failure(node, "run-state not revoked", error)


def _still_failed(node: ChainNode, tx: Transaction) -> StageAttempt:
    """Lock a stage and return its failed attempt. Raises _TakenOverError if it has none.

    The caller must have locked the claims before. A committing stage also locks claims first, so no deadlock occurs.
    """
    lock_node(node.name, tx=tx)
    failed = _failed(node, tx)
    if failed is None:
        raise _TakenOverError
    return failed


def _failed(node: ChainNode, tx: Transaction) -> StageAttempt | None:
    """Return the newest attempt if it failed for good (rolled back, or not allowed to start)."""
    card, store = node.pipeline.card.machine, node.pipeline.stages.lifecycle.store
    newest = store.newest(node.run_id, node.kind, tx=tx)
    if newest is None or card.condition(StageState.FAILED, StageState.ROLLED_BACK) is None:
        return None
    return newest if newest.state in {StageState.ROLLED_BACK, StageState.PENDING} else None


def _others(node: ChainNode) -> Iterator[type[ChainNode]]:
    return (other for other in reversed(chain()) if other is not type(node))


def _current_states(node: ChainNode) -> Iterator[RunState]:
    """Yield the records of the run's other stages with a current output, last first."""
    for other in _others(node):
        state = node.pipeline.stages.run_states.get(f"{node.dataset}.{other.operator}", node.run_id)
        if state is not None and state.artifact_uri is not None:
            yield state


def _with_effects(node: ChainNode, states: Sequence[RunState]) -> Iterator[EffectNode]:
    current = {state.dataset_id for state in states}
    for other in _others(node):
        if issubclass(other, EffectNode) and f"{node.dataset}.{other.operator}" in current:
            yield other(pipeline=node.pipeline, dataset=node.dataset, partition=node.partition, run_id=node.run_id)


def _release_claims(
    node: ChainNode, claimed: Sequence[Envelope], because: BaseException, tx: Transaction
) -> RecoverReport:
    """Release a run's claims; quarantine the units at fault if a person must see the error.

    The card's `human_review` has the classes of such errors. Raises ClaimsLostError if the run has lost a claim.
    """
    why = str(because) if isinstance(because, KfmError) else f"{node.kind}: {error_text(because)}"
    units = {unit.wal_id for unit in claimed}
    is_compensable = classify(because) not in node.pipeline.card.machine.human_review
    report = node.pipeline.ledger.release_rolled_back(
        run_id=node.run_id,
        dataset=node.dataset,
        because=why,
        not_compensable=() if is_compensable else at_fault(because, units),
        bisect=may_be_of_a_unit(because),
        tx=tx,
    )
    released = {*report.requeued, *report.quarantined, *report.failed}
    lost = units - released
    if lost:
        raise ClaimsLostError(
            observed=f"{len(lost)} of {len(claimed)} claims of run {node.run_id} in {node.dataset} are lost, "
            f"the first is that of {min(lost)}",
            expected="every unit still claimed by the run",
            next_step="none: the run that holds them completes the effects",
        )
    return report


def _revoke_outputs(node: ChainNode, states: Iterable[RunState], tx: Transaction) -> None:
    """Revoke each stage's output in run-state, after the commit if it is outside the database."""
    for state in states:
        node.pipeline.stages.port.revoke(state, by=node.kind, tx=tx)


def _audit(node: ChainNode, failed: StageAttempt, rollback: Rollback, tx: Transaction) -> None:
    store = node.pipeline.stages.lifecycle.store
    lines = []
    for stage, undone in rollback.compensated.items():
        attempt = store.newest(node.run_id, stage, tx=tx)
        if attempt is not None:
            lines.append(attempt.event(AuditKind.COMPENSATION, "done", {**undone, "because": failed.stage}))
    claims = {name: len(getattr(rollback.claims, name)) for name in ("requeued", "quarantined", "failed")}
    lines.append(failed.event(AuditKind.COMPENSATION, _ROLLED_BACK, claims))
    store.audit.append(lines, tx=tx)


def _is_audited(node: ChainNode, failed: StageAttempt) -> bool:
    """Return whether the database has the audit line of a committed rollback."""
    lines = node.pipeline.stages.lifecycle.store.audit.of_stage(failed.run_id, failed.stage)
    return any((line["attempt"], line["event"]) == (failed.attempt, _ROLLED_BACK) for line in lines)


def _audit_failure(node: ChainNode, event: str, error: Exception) -> None:
    store = node.pipeline.stages.lifecycle.store
    with node.pipeline.database.transaction() as tx:
        if (failed := store.newest(node.run_id, node.kind, tx=tx)) is not None:
            line = failed.event(AuditKind.COMPENSATION, event, {"error": type(error).__name__})
            store.audit.append([line], tx=tx)


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing"
