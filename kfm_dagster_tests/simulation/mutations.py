"""Mutations: each breaks one rule of the product, and the named invariant must detect this.

An invariant that no mutation violates proves nothing. Each mutation removes one guard (a condition of a statement,
a trigger, a call); where the database has a second guard, both are removed, with a comment. Does not belong here:
searching the seed that detects a mutation (`test_simulation.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sqlalchemy import Executable, text

from kfm_dagster.catalog import item, outcomes, store
from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.ingest import chain, evidence
from kfm_dagster.ledger import verdicts
from kfm_dagster.ledger.changes import LedgerChanges
from kfm_dagster.ledger.leases import Leases
from kfm_dagster.ledger.reports import RecoverReport
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.run_state.record import RunState
from kfm_dagster.run_state.store import RelationalRunState
from kfm_dagster.stages import lifecycle
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.port import RunStatePort
from kfm_dagster.storage import database
from kfm_dagster.storage.database import Transaction
from kfm_dagster.storage.fence import Fence
from kfm_dagster.storage.statements import statement, typed
from kfm_dagster_tests.simulation.faults import CALM, Fault
from kfm_dagster_tests.simulation.history import SURPRISE
from kfm_dagster_tests.simulation.memory import RewrittenTrigger

Breakage = Callable[[ExitStack], None]


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One rule that is broken. `invariant` detects this first; `under` has the faults that the detection needs.

    `first` is the first seed to try, for a mutation that few seeds detect.
    """

    name: str
    invariant: str
    breakages: Sequence[Breakage] = ()
    triggers: Sequence[RewrittenTrigger] = ()
    under: Mapping[Fault, float] = field(default_factory=dict)
    first: int = 0

    def __str__(self) -> str:
        return self.name

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the mutation within the context."""
        with ExitStack() as stack:
            for breakage in self.breakages:
                breakage(stack)
            yield


def _sql(name: str, old: str, new: str) -> Breakage:
    """Replace a part of a named statement."""

    def apply(stack: ExitStack) -> None:
        inner = database.typed_statement
        original = statement("sqlite", name).text
        if old not in original:
            raise AssertionError(f"{name} has no {old!r}: the mutation is out of date")
        broken = typed(text(original.replace(old, new)))

        def mutated(dialect: str, statement_name: str) -> Executable:
            return broken if statement_name == name else inner(dialect, statement_name)

        stack.enter_context(patch.object(database, "typed_statement", mutated))

    return apply


def _call(owner: Any, name: str, replacement: Any) -> Breakage:
    """Replace a function."""
    return lambda stack: stack.enter_context(patch.object(owner, name, replacement))


def _undecided(self: LedgerChanges, versions: Any, from_status: Any, *more: Any) -> list[Any]:
    # Units that leave quarantine keep their decision, because the database requires it, too.
    return sorted(versions) if from_status == "succeeded" else _DECIDE(self, versions, from_status, *more)


def _fence_without(ignored: FenceIssue) -> Callable[[Leases, str], Fence]:
    def broken(self: Leases, run_id: str) -> Fence:
        fence = _FENCE(self, run_id)
        return lambda tx, attempts: {
            wal_id: issue for wal_id, issue in fence(tx, attempts).items() if issue is not ignored
        }

    return broken


def _put_later(self: RelationalRunState, record: RunState, tx: Transaction) -> None:
    def put() -> None:
        with self._database.transaction() as later:
            _PUT(self, record, later)

    tx.after_commit(put)


_PUT = RelationalRunState.put
_EXECUTED_AGAIN = _call(RunStatePort, "skip", lambda *_, **__: None)
"""Without skips a repeated run claims again, so it holds a unit by two attempts."""
_HASTE = {
    Fault.HASTE: 0.9,
    Fault.TWIN: 0.9,
    Fault.STALL_IN_RUN: 0.05,
    Fault.JUMP: 0.05,
    Fault.KILL: 0.0,
    Fault.KILL_IN_STATEMENT: 0.0,
}
_FENCE = Leases.fence
_DECIDE = LedgerChanges._decide
_ATTEMPT = " AND record.attempts = unit.attempt"
"""The attempt's number alone identifies a claim of a unit, without the run's id (`ledger/test_ledger_store.py`)."""
_NO_LEGAL_TRANSITIONS = RewrittenTrigger(name="nodd_wal_records_transition_is_legal")

MUTATIONS = (
    Mutation(
        name="a settlement does not check the attempt, and a repeated run skips no step",
        invariant="only_the_holder_settles",
        breakages=[_sql("ledger.settle", _ATTEMPT, ""), _EXECUTED_AGAIN],
        under=_HASTE,
        first=119,
    ),
    Mutation(
        name="a fence does not check the claim",
        invariant="only_the_holder_writes",
        breakages=[_call(Leases, "fence", _fence_without(FenceIssue.CLAIM_LOST))],
        first=6,
    ),
    Mutation(
        name="a fence does not check the kill switch",
        invariant="switched_off_datasets_stay_unchanged",
        breakages=[_call(Leases, "fence", _fence_without(FenceIssue.KILL_SWITCH))],
    ),
    Mutation(
        name="recovery releases claims whose leases have not expired",
        invariant="claims_are_taken_only_when_lost",
        breakages=[_sql("ledger.fail_claims", "lease.expires_at < :expired_at", "TRUE")],
    ),
    Mutation(
        name="recovery releases no claims",
        invariant="every_unit_ends",
        breakages=[_call(Ledger, "release_lost", lambda *_, **__: RecoverReport())],
        under={Fault.KILL: 0.01},
        first=1,
    ),
    Mutation(
        name="the number of attempts has no limit",
        invariant="attempts_are_bounded",
        breakages=[
            _sql("ledger.requeue", "attempts < coalesce(CAST(policy", "0 < coalesce(CAST(policy"),
            _call(verdicts, "quarantine_reason", lambda *_, **__: None),
        ],
        under={Fault.OBJECT_SILENT: 0.5, Fault.KILL: 0.0},
    ),
    Mutation(
        name="a requeue readmits superseded units",
        invariant="superseded_units_stay_out",
        breakages=[_sql("ledger.requeue", "link.older_wal_id = nodd_wal_records.wal_id", "link.older_wal_id IS NULL")],
        first=1,
    ),
    Mutation(
        name="older versions are not marked as superseded",
        invariant="older_versions_are_superseded",
        breakages=[_sql("ledger.supersede", "WHERE newer IS NOT NULL AND", "WHERE FALSE AND")],
    ),
    Mutation(
        name="a message is deleted although one of its units can be retried",
        invariant="deleted_messages_are_done",
        breakages=[
            _sql(
                "deliveries.due_for_deletion", "('succeeded', 'quarantined')", "('succeeded', 'quarantined', 'failed')"
            )
        ],
    ),
    Mutation(
        name="a delivery is recorded without its units",
        invariant="nothing_is_lost",
        breakages=[_sql("deliveries.record_units", "WHERE TRUE", "WHERE FALSE")],
    ),
    Mutation(
        name="an older version that is ingested late replaces the Item",
        invariant="items_are_the_newest_version",
        breakages=[_call(outcomes, "is_older", lambda *_: False)],
        first=10,
    ),
    Mutation(
        name="the content hash of an Item depends on the run that wrote the Item",
        invariant="repetitions_give_equal_results",
        breakages=[_call(item, "_VOLATILE_PROPERTIES", frozenset())],
        first=14,
    ),
    Mutation(
        name="a claim is not counted, and the trigger that refuses this is removed",
        invariant="attempts_count_claims",
        breakages=[_sql("ledger.claim", "nodd_wal_records.attempts + 1", "nodd_wal_records.attempts")],
        triggers=[RewrittenTrigger(name="nodd_wal_records_attempts_count_claims")],
    ),
    Mutation(
        name="a claim is not counted",
        invariant=SURPRISE,
        breakages=[_sql("ledger.claim", "nodd_wal_records.attempts + 1", "nodd_wal_records.attempts")],
    ),
    Mutation(
        name="a unit in progress is quarantined, and the trigger that refuses this is removed",
        invariant="transitions_are_legal",
        breakages=[_sql("ledger.quarantine", "('pending', 'failed')", "('pending', 'failed', 'in_progress')")],
        triggers=[_NO_LEGAL_TRANSITIONS],
        first=1,
    ),
    Mutation(
        name="a unit in progress is quarantined",
        # The trigger refuses the transition, so the message whose intake quarantines the unit is rejected.
        invariant="nothing_sound_is_refused",
        breakages=[_sql("ledger.quarantine", "('pending', 'failed')", "('pending', 'failed', 'in_progress')")],
        first=1,
    ),
    Mutation(
        name="an override is not logged, and the trigger that refuses this is removed",
        invariant="overrides_are_decided",
        breakages=[_call(LedgerChanges, "_decide", _undecided)],
        triggers=[_NO_LEGAL_TRANSITIONS],
        first=1,
    ),
    Mutation(
        name="a gate stops neither its own stage nor the stages that receive the batch",
        invariant="nothing_unexpected_is_published",
        breakages=[
            _call(lifecycle, "ending", lambda *_: StageState.SUCCEEDED),
            _call(lifecycle, "may_start", lambda *_, **__: True),
        ],
        under={Fault.POISONOUS: 0.3},
    ),
    Mutation(
        name="run-state is written after the commit",
        invariant="run_state_has_the_output_of_its_stage",
        breakages=[_call(RelationalRunState, "put", _put_later)],
    ),
    Mutation(
        name="a rollback does not release the claims",
        invariant="rollbacks_leave_nothing",
        breakages=[_call(chain, "_release_claims", lambda *_: RecoverReport())],
        under={Fault.STORE_REFUSES: 0.03},
    ),
    Mutation(
        name="the documents that link to an Item are not published",
        invariant="nothing_is_missing",
        breakages=[_call(store, "publish", lambda *_: None)],
    ),
    Mutation(
        name="the Item of a unit that is given up without lineage stays",
        invariant="every_item_has_its_lineage",
        breakages=[_call(evidence, "withdraw_orphans", lambda *_: 0)],
        # A unit is given up with its Item in place if its run dies before lineage and its object is gone afterwards.
        under={**CALM, Fault.KILL: 0.006, Fault.OBJECT_GONE: 0.8},
        first=3,
    ),
    Mutation(
        name="a history row names the previous run",
        invariant="history_matches_the_records",
        triggers=[
            RewrittenTrigger(
                name="nodd_wal_records_write_history",
                old="NEW.ingest_run_id, NEW.attempts,",
                new="OLD.ingest_run_id, NEW.attempts,",
            )
        ],
    ),
    Mutation(
        name="a history row lacks the error",
        invariant="histories_rebuild_the_records",
        triggers=[
            RewrittenTrigger(
                name="nodd_wal_records_write_history",
                old="'last_error_code', NEW.last_error_code,",
                new="'last_error_code', NULL,",
            )
        ],
    ),
)
