"""Explanation: resolves a run id and returns the run's records. Read-only.

Run-state and intents are kept under the root run's id; only Dagster knows re-executions.
Belongs here: run ids, root runs and re-executions, and the queries. Does not belong here: Dagster's answers
(`defs/reexecutions.py`), the meaning of the records (`run_report.py`), or their display (`cli/runs.py`,
`defs/display.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from kfm_dagster.contracts.identity import MATCHES_ASKED, SHORTEST_PREFIX, whole_id
from kfm_dagster.errors import UnknownNameError
from kfm_dagster.exports.explanations import run_report
from kfm_dagster.idempotent_node.wal import run_uuid
from kfm_dagster.ingest.nodes import MessageParse
from kfm_dagster.ingest.pipeline import utc_now
from kfm_dagster.run_state.store import RunStateStore
from kfm_dagster.stages.audit import AuditKind, AuditLog
from kfm_dagster.stages.batch import SkipCause
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster.storage.database import Database


@dataclass(frozen=True, kw_only=True, slots=True)
class Reexecution:
    """A re-execution of a run. `started_at` None: queued; `ended_at` None: running."""

    run_id: str
    root_run_id: str
    started_at: datetime | None
    ended_at: datetime | None


class Reexecutions(Protocol):
    """Dagster's runs; raises DatabaseUnavailableError if their store exists but is unreadable."""

    def beginning(self, beginning: str, *, limit: int) -> Sequence[Reexecution]:
        """Return at most `limit` re-executions whose id has this prefix, in the order of their ids."""

    def of(self, root_run_id: str) -> Sequence[Reexecution]:
        """Return the re-executions of a run, oldest first."""


LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class Explanations:
    """Explains the runs of a database."""

    database: Database
    run_states: RunStateStore
    reexecutions: Reexecutions | None = None

    def explain(self, run: str) -> run_report.RunReport:
        """Return the report of a run, named by its id, a unique prefix of its id, or `latest`.

        A wal_id means the run that last changed the unit; an Item's id means the run that wrote the current Item.
        Raises UnknownNameError for a run without records, KfmError for an ambiguous or too short prefix.
        """
        run_id, reexecution = self._resolve(run)
        root = reexecution.root_run_id if reexecution else run_id
        window = run_report.Window()
        if reexecution:
            # A queued re-execution has not worked yet.
            since, until = reexecution.started_at or run_report.AFTER_ALL, reexecution.ended_at or run_report.AFTER_ALL
            window = run_report.Window(since=since, until=until)
        accounts = run_report.node_accounts(self.run_states.of_run(root), self._intents(root), window)
        audit = AuditLog(self.database, clock=utc_now)
        lines = {account.stage: audit.of_stage(root, account.stage) for account in accounts}
        nodes = [_audited(node, lines[node.stage], window) for node in accounts]
        return run_report.RunReport(
            run_id=run_id,
            root_run_id=root,
            reexecutions=[account.run_id for account in (self.reexecutions.of(root) if self.reexecutions else ())],
            nodes=nodes,
            units=run_report.units_by_end(nodes),
            failing_gates=[gate for stage, entries in lines.items() for gate in _failing_gates(stage, entries)],
        )

    def root_of(self, run: str) -> str:
        """Return the id of a run's root, which has the records. Names and errors: as in `explain`."""
        run_id, reexecution = self._resolve(run)
        return reexecution.root_run_id if reexecution else run_id

    def node(self, dataset_id: str, run_id: str) -> run_report.NodeAccount:
        """Return a node's account under a root run's id."""
        state = self.run_states.get(dataset_id, run_id)
        intents = [row for row in self._intents(run_id) if row.node.partition("@")[0] == dataset_id]
        return run_report.node_account(dataset_id, state, intents, run_report.Window())

    def _intents(self, run_id: str) -> list[Any]:
        with self.database.snapshot() as tx:
            return list(tx.run("explanation.intents", run_id=run_uuid(run_id)))

    def _resolve(self, run: str) -> tuple[str, Reexecution | None]:
        """Return the id that `run` names, and the Reexecution if that run is a re-execution."""
        if run == LATEST:
            return self._latest(), None
        limit = MATCHES_ASKED
        with self.database.snapshot() as tx:
            rows = tx.run("explanation.runs_beginning", prefix=run, limit=limit)
            candidates: dict[str, Reexecution | None] = {row.run_id: None for row in rows}
            of_unit = tx.run("explanation.runs_of_unit", name=run).scalars().all()
        for reexecution in self.reexecutions.beginning(run, limit=limit) if self.reexecutions else ():
            # If the root run has no records, the re-execution has none either.
            if self.run_states.of_run(reexecution.root_run_id) or self._intents(reexecution.root_run_id):
                candidates[reexecution.run_id] = reexecution
        run_id = whole_id(run, candidates.keys(), what="run id")
        if run_id is None and of_unit:
            return str(of_unit[0]), None
        if run_id is None:
            raise UnknownNameError(
                "nothing is recorded of such a run",
                observed=run,
                expected=f"a run id, the first {SHORTEST_PREFIX} characters of one, a wal_id, an Item's id, or latest",
                next_step="copy the id from the Runs page of the UI, or ask for latest",
            )
        return run_id, candidates[run_id]

    def _latest(self) -> str:
        with self.database.snapshot() as tx:
            row = tx.run("explanation.latest_run", stage=f".{MessageParse.operator}@").one_or_none()
        if row is None:
            raise UnknownNameError("no run has ingested anything yet", next_step="ingest something (kfm demo)")
        return str(row.run_id)


def _audited(
    node: run_report.NodeAccount, lines: Sequence[Mapping[str, Any]], window: run_report.Window
) -> run_report.NodeAccount:
    """Add the audit's facts: the attempts, or that an earlier success was with other inputs."""
    within = [line for line in lines if window.holds(datetime.fromisoformat(line["at"]))]
    attempts = len({line["attempt"] for line in within})
    if node.fate is run_report.StepResult.RAN and attempts > 1:
        return replace(node, attempts=attempts, did=f"{node.did}, in {attempts} attempts")
    if node.cause is SkipCause.ALREADY_SUCCEEDED and any(line["event"] == SkipCause.OTHER_INPUTS for line in within):
        return replace(node, cause=SkipCause.OTHER_INPUTS, why=run_report.UNDER_OTHER_INPUTS)
    return node


def _failing_gates(stage: str, lines: Sequence[Mapping[str, Any]]) -> Iterator[run_report.FailingGate]:
    """Yield the gates that did not pass in the last attempt of a stage."""
    for line in lines:
        details, last = line["details"], lines[-1]["attempt"]
        if (line["kind"], line["attempt"]) == (AuditKind.GATE, last) and details["outcome"] != "passed":
            yield run_report.FailingGate(
                stage=stage,
                gate=f"{line['event']} {Gate(line['event']).words}",
                outcome=details["outcome"],
                units=details["units_at_fault"],
                observed=details["observed"],
                expected=details["expected"],
            )
