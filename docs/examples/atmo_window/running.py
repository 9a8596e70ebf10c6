"""Running a window: land, query run-state, run the node, and report the result; and replaying unresolved intents.

Belongs here: the order around the node. Does not belong here: requests for runs (`__main__.py`, `definitions.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from docs.examples.atmo_window.landing import land
from docs.examples.atmo_window.node import AtmoWindow, Tools, checkpoint_of
from docs.examples.atmo_window.sites import read_sites
from docs.examples.atmo_window.window import Window
from kfm_dagster.governance.log import GovernanceLog
from kfm_dagster.idempotent_node import (
    CodeFingerprint,
    IdempotentNodes,
    IntentReplay,
    IntentStatus,
    Output,
    code_fingerprint,
    content_of,
    replay_intents,
    run_node,
)
from kfm_dagster.run_state import Outcome, RelationalRunState, ValidationSummary
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import open_store

HERE = Path(__file__).resolve().parent
SAMPLE = HERE / "sample"
LOCKFILE = HERE.parents[2] / "requirements.lock"


def utc_now() -> datetime:
    """Return the time for records; no transform uses it."""
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRun:
    """The end of a window's run. A skip names the run whose work it reuses."""

    status: IntentStatus
    output: Output
    applied_by: str

    def as_json(self) -> dict[str, Any]:
        """Return the published form."""
        return {
            "status": self.status.value,
            "applied_by": self.applied_by,
            "content_hash": self.output.content_hash,
            **self.output.record,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """The place of the windows: a folder of weather, a home for results, and a database."""

    weather: Path
    salt: bytes
    nodes: IdempotentNodes
    tools: Tools
    database: Database

    def node(self, window: Window, *, run_id: str) -> AtmoWindow:
        """Land the observations of a window, and return the node over them. Raises KfmError if this is impossible."""
        sites = read_sites(self.weather, salt=self.salt)
        landed = land(self.weather, sites, window, self.tools.landing)
        return AtmoWindow(window=window, landed=landed, decisions=sites.decisions, run_id=run_id, tools=self.tools)

    def run(self, window: Window, *, run_id: str, force: str | None = None) -> WindowRun:
        """Run a window unless its content has taken effect. An error is recorded in run-state, and raised again."""
        node = self.node(window, run_id=run_id)
        if (done := self._done_in_this_run(node, force)) is not None:
            return done
        try:
            result = run_node(self.nodes, node, run_id=run_id, code=code(), force=force)
        except Exception:
            self._note(node, Outcome.FAILED, ValidationSummary(checks=0, passed=0, failed=0))
            raise
        if result.status is IntentStatus.SKIPPED:
            extra = {"cause": "CONTENT_APPLIED", "applied_by": result.applied_by.run_id}
            self._note(node, Outcome.SKIPPED, ValidationSummary(checks=0, passed=0, failed=0, extra=extra))
        return WindowRun(status=result.status, output=result.output, applied_by=result.applied_by.run_id)

    def replay(self) -> IntentReplay:
        """Replay every PENDING and FAILED intent, from its payload alone."""
        return replay_intents(self.nodes, lambda intent: AtmoWindow.rebuilt(intent, self.tools))

    def newest(self, window: Window) -> Output | None:
        """Return the newest output of a window."""
        return self.nodes.newest(checkpoint_of(window))

    def _done_in_this_run(self, node: AtmoWindow, force: str | None) -> WindowRun | None:
        state = self.tools.run_states.get(node.dataset_id, node.run_id)
        if state is None or state.outcome is not Outcome.SUCCESS or state.inputs_hash != node.inputs_hash:
            return None
        content = content_of(node, code=code(), run_id=node.run_id, force=force)
        with self.database.snapshot() as tx:
            output = self.nodes.output(content.content_hash, tx=tx)
        if output is None:
            return None  # the same inputs, but other code
        return WindowRun(status=IntentStatus.SKIPPED, output=output, applied_by=node.run_id)

    def _note(self, node: AtmoWindow, outcome: Outcome, summary: ValidationSummary) -> None:
        with self.database.transaction() as tx:
            self.tools.run_states.put(node.state(outcome, summary), tx)


@contextmanager
def open_workspace(
    *,
    home: Path,
    weather: Path = SAMPLE,
    database_url: str | None = None,
    salt: str = "",
    clock: Callable[[], datetime] = utc_now,
    reached: Callable[[str], None] | None = None,
) -> Iterator[Workspace]:
    """Open a home, with SQLite in it unless a database is named. Raises KfmError."""
    database = Database.open(database_url or f"sqlite:///{home.absolute() / 'atmo.db'}")
    try:
        store = open_store(str(home))
        tools = Tools(
            landing=Artifacts(lambda: store, folder="landing"),
            outputs=Artifacts(lambda: store, folder="windows"),
            run_states=RelationalRunState(database),
            log=GovernanceLog(database, clock=clock),
            clock=clock,
        )
        yield Workspace(
            weather=weather,
            salt=salt.encode(),
            nodes=IdempotentNodes(database, clock=clock),
            tools=tools if reached is None else replace(tools, reached=reached),
            database=database,
        )
    finally:
        database.dispose()


def code() -> CodeFingerprint:
    """Return the fingerprint of the code: this folder, and the lockfile that pins its imports."""
    return code_fingerprint(HERE, lockfile=LOCKFILE)
