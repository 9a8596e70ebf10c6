"""Events of alerts, recorded at times that the test sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import SecretStr

from kfm_dagster.alerts.evaluator import AlertEvaluator, Answer, Endpoint
from kfm_dagster.alerts.plan import AlertPlan, AlertRule, Level
from kfm_dagster.alerts.store import AlertMessage
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.stages.audit import AuditEvent, AuditKind
from kfm_dagster.stages.card import ErrorClass, StageState
from kfm_dagster.stages.store import StageStore
from kfm_dagster.storage.database import Database
from kfm_dagster.telemetry.clock.reading import ClockLog, ClockReading, ClockState
from kfm_dagster_tests.followers.announcements.web_server import WebServer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAGE = "nexrad-l2.metadata_extract"
WAY = {
    StageState.PENDING: [],
    StageState.RUNNING: [StageState.RUNNING],
    StageState.SUCCEEDED: [StageState.RUNNING, StageState.SUCCEEDED],
    StageState.FAILED: [StageState.RUNNING, StageState.FAILED],
    StageState.ROLLED_BACK: [StageState.RUNNING, StageState.FAILED, StageState.ROLLED_BACK],
}
"""The transitions by which a stage reaches each state."""


@dataclass
class Record:
    """Records events with the time `at`."""

    database: Database
    at: datetime = NOON

    @property
    def store(self) -> StageStore:
        return StageStore(self.database, clock=lambda: self.at)

    def line(self, kind: AuditKind, event: str, *, stage: str = STAGE, run: str = "run", **details: Any) -> None:
        audit_event = AuditEvent(run_id=run, stage=stage, attempt=1, kind=kind, event=event, details=details)
        with self.database.transaction() as tx:
            self.store.audit.append([audit_event], tx=tx)

    def gate(self, gate: str, outcome: str = "fail_units", *, stage: str = STAGE, run: str = "run") -> None:
        self.line(AuditKind.GATE, gate, stage=stage, run=run, outcome=outcome)

    def stage(
        self, *ends: StageState, stage: str = STAGE, run: str = "run", restricted: Sequence[str] | None = None
    ) -> None:
        """Record attempts of a stage, each up to its final state."""
        for end in ends:
            with self.database.transaction() as tx:
                attempt = self.store.open(run, stage, idempotency_key="a" * 64, input_hashes=[], tx=tx)
                for state in WAY[end]:
                    attempt = self.store.move(
                        attempt,
                        state,
                        error_class=ErrorClass.E_INTERNAL if state is StageState.FAILED else None,
                        compensation={"undone": 0} if state is StageState.ROLLED_BACK else None,
                        restricted=restricted if state is StageState.SUCCEEDED else None,
                        tx=tx,
                    )
            self.at += timedelta(seconds=1)

    def clock(self, state: ClockState, offset: float | None, *, source: str = "kernel", name: str = "one") -> None:
        reading = ClockReading(
            at=self.at,
            source=source,
            offset_seconds=offset,
            uncertainty_seconds=None if offset is None else 0.1,
            state=state,
        )
        ClockLog(self.database, clock=name).record([reading])


@dataclass
class Mailbox:
    """Replaces apprise: accepts every message, except to dead endpoints."""

    sent: list[tuple[int, str]] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)
    dead: set[int] = field(default_factory=set)

    def __call__(self, endpoint: Endpoint, message: AlertMessage) -> Answer:
        if endpoint.number in self.dead:
            return Answer(service="Box", error="gone")
        self.sent.append((endpoint.number, message.title))
        self.bodies.append(message.body)
        return Answer(service="Box")


@dataclass
class Clock:
    """A clock that only a test advances."""

    at: datetime = NOON

    def __call__(self) -> datetime:
        return self.at

    def passes(self, **length: float) -> None:
        self.at += timedelta(**length)


def service_url(server: WebServer, path: str = "", *, user: str = "") -> str:
    """Return apprise's URL of a service on the test's server."""
    return server.url(path).replace("http://", f"json://{user}")


def messages(server: WebServer) -> list[dict[str, Any]]:
    """Return the messages received by the service."""
    return [json.loads(request.body) for request in server.requests]


URLS = "notify=json://127.0.0.1:1/notify page_ops=json://127.0.0.1:1/page open_ticket=json://127.0.0.1:1/ticket"
NOTIFY, PAGE, TICKET = 1, 2, 3
"""The endpoints of URLS."""


def open_alert(
    database: Database, rule: AlertRule, subject: str, *, run_id: str | None = None, at: datetime = NOON
) -> None:
    """Open an alert as an evaluation with one event does."""
    event = {"rule": rule, "subject": subject, "level": Level.WARNING, "observed": 1, "run_id": run_id, "place": STAGE}
    finding = {**event, "last_event_at": rfc3339(at)}
    with database.transaction() as tx:
        tx.run("alerts.open", now=at, findings=[finding])


def evaluator_of(
    database: Database, plan: AlertPlan, clock: Clock, box: Mailbox, *, urls: str | None = URLS
) -> AlertEvaluator:
    return AlertEvaluator(
        plan=plan,
        on_divergence=["page_ops", "open_ticket"],
        max_offset=timedelta(seconds=1),
        tau_calib=timedelta(hours=24),
        database=database,
        clock=clock,
        urls=None if urls is None else SecretStr(urls),
        send=box,
    )
