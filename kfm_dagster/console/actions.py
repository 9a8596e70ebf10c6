"""Decisions by forms of a signed-in person, carried out and logged as on the command line.

Belongs here: the form of a decision, routes that change a unit, a dataset or an alert, and the proposals that wait for
approval. Does not belong here: signing in (`session.py`), all units of a filter (`replays.py`), and the decisions
themselves (`recovery/`, `governance/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kfm_dagster.alerts.store import AlertStore
from kfm_dagster.console.operations import record_of
from kfm_dagster.console.pages import Pages, query_of, row_id
from kfm_dagster.console.requests import given, whole_number
from kfm_dagster.console.session import came_from, own_path
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.governance.log import Decision, decision_in
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery import work_orders
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.work_orders import open_versions
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.decisions import LOG

DECISIONS = "/decisions"
MOST_ENTRIES = 100
MOST_HOURS = 24 * 365
"""Longest expiry of a kill switch; one that is to last longer has none."""
_DECISION = ("reason", "change_ref")
Fields: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PostedDecision:
    """A decision, the form's other fields, and the pipeline that carries it out."""

    pipeline: Pipeline
    request: Request
    decision: Decision
    fields: Fields

    def of_path(self, name: str) -> str:
        """Return a part of the request's path."""
        return str(self.request.path_params[name])

    @property
    def cases(self) -> QuarantineCases:
        """The cases of units in quarantine."""
        return QuarantineCases(self.pipeline.database, clock=self.pipeline.clock)


Decide: TypeAlias = Callable[[PostedDecision], str]
"""Carries a decision out and returns the page to show next."""


def decision_form(
    pages: Pages, path: str, decide: Decide, *, fields: tuple[str, ...] | None = (), is_override: bool = True
) -> Route:
    """Return the route of a decision's form with further `fields`; None for those of a filter.

    An override needs a change reference in prod. Answers raise HTTPException without a sign-in,
    BadRequestError, KfmError.
    """

    def answer(request: Request, posted: Fields) -> Response:
        actor = pages.sessions.actor_of(request)
        if actor is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, "sign in to decide; the console only reads without a token")
        values = given(list(posted.items()), known=(*_DECISION, *(posted if fields is None else fields)))
        reason, change_ref = (values.pop(name, "").strip() for name in _DECISION)
        make = partial(decision_in, pages.pipeline.settings.env) if is_override else Decision
        decision = make(actor=actor, reason=reason, change_ref=change_ref or None)
        return _see(decide(PostedDecision(pages.writing, request, decision, values)))

    return pages.form(path, answer)


def routes(pages: Pages) -> list[Route]:
    """Return the routes of sign-in, and of decisions about units, datasets, alerts, proposals."""

    def decisions(request: Request) -> Response:
        query_of(request)
        ledger = pages.pipeline.ledger
        with pages.pipeline.database.snapshot() as tx:
            return pages.page(
                request,
                "decisions.html",
                waiting=ledger.review.waiting(tx=tx),
                entries=ledger.log.entries(limit=MOST_ENTRIES, tx=tx),
                columns=LOG.columns,
                everything_off=ledger.switches.engaged(tx=tx).get(EVERY_DATASET),
            )

    return [
        *_of_session(pages),
        Route(DECISIONS, decisions, methods=["GET"]),
        decision_form(pages, "/units/{wal_id:uuid}/release", _release, fields=("version",)),
        decision_form(pages, "/units/{wal_id:uuid}/discard", _discard, fields=("version",)),
        decision_form(pages, "/datasets/{dataset}/switch-off", _switch_off, fields=("hours",)),
        decision_form(pages, "/datasets/{dataset}/switch-on", _switch_on),
        decision_form(pages, "/proposals/{proposal_id}/approve", _approve),
        decision_form(pages, "/proposals/{proposal_id}/withdraw", _withdraw),
        # An acknowledgement needs no change reference, not even in prod.
        decision_form(pages, "/alerts/{alert_id}/acknowledge", _acknowledge, is_override=False),
    ]


def _of_session(pages: Pages) -> list[Route]:
    offered = bool(pages.sessions.tokens)

    def sign_in_page(request: Request) -> Response:
        query_of(request)
        return pages.page(request, "sign_in.html", refused=False, offered=offered, to=came_from(request))

    def sign_in(request: Request, fields: Fields) -> Response:
        values = given(list(fields.items()), known=("token", "to"))
        to = own_path(values.get("to", ""))
        answer = _see(to)
        if pages.sessions.sign_in(values.get("token", ""), request, answer) is None:
            refused = HTTPStatus.FORBIDDEN
            return pages.page(request, "sign_in.html", status=refused, refused=True, offered=offered, to=to)
        return answer

    def sign_out(_: Request, __: Fields) -> Response:
        answer = _see("/")
        pages.sessions.sign_out(answer)
        return answer

    return [
        Route("/sign-in", sign_in_page, methods=["GET"]),
        pages.form("/sign-in", sign_in),
        pages.form("/sign-out", sign_out),
    ]


def _see(path: str) -> Response:
    """Redirect a browser to a page after a form."""
    return RedirectResponse(path, status_code=HTTPStatus.SEE_OTHER)


def _release(posted: PostedDecision) -> str:
    posted.decision.require_change_ref()
    pipeline = posted.pipeline
    with pipeline.database.transaction() as tx:
        proposal = work_orders.release(
            pipeline.ledger,
            _seen(posted, Status.PENDING, tx),
            settings=pipeline.settings,
            decision=posted.decision,
            replay_reason=ReplayReason.INCIDENT,
            tx=tx,
        )
    return f"/units/{posted.of_path('wal_id')}" if proposal is None else DECISIONS


def _discard(posted: PostedDecision) -> str:
    with posted.pipeline.database.transaction() as tx:
        seen = _seen(posted, Status.QUARANTINED, tx)
        posted.cases.discard(seen, decision=posted.decision, tx=tx)
    return f"/units/{posted.of_path('wal_id')}"


def _seen(posted: PostedDecision, to_status: Status, tx: Transaction) -> dict[WalId, int]:
    """Return the path's unit at the version of the form. Raises KfmError if it has changed."""
    version = whole_number("version", posted.fields.get("version", ""))
    record = record_of(posted.pipeline.ledger, posted.of_path("wal_id"), tx=tx)
    return open_versions(posted.cases, [record], version=version, to_status=to_status, tx=tx)


def _switch_off(posted: PostedDecision) -> str:
    dataset = _dataset(posted)
    hours = posted.fields.get("hours", "")
    duration = timedelta(hours=whole_number("hours", hours, most=MOST_HOURS)) if hours else None
    expires_at = posted.pipeline.clock() + duration if duration else None
    posted.pipeline.ledger.switches.engage(dataset, posted.decision, expires_at=expires_at)
    return _of_dataset(dataset)


def _switch_on(posted: PostedDecision) -> str:
    dataset = _dataset(posted)
    posted.pipeline.ledger.switches.release(dataset, posted.decision)
    return _of_dataset(dataset)


def _approve(posted: PostedDecision) -> str:
    proposal_id = row_id(posted.request, "proposal_id")
    replay_run_id = work_orders.approve(ReplayEngine(pipeline=posted.pipeline), proposal_id, posted.decision)[1]
    return f"/replays/{replay_run_id}" if replay_run_id else DECISIONS


def _withdraw(posted: PostedDecision) -> str:
    with posted.pipeline.database.transaction() as tx:
        posted.pipeline.ledger.review.withdraw(row_id(posted.request, "proposal_id"), posted.decision, tx=tx)
    return DECISIONS


def _acknowledge(posted: PostedDecision) -> str:
    alerts = AlertStore(posted.pipeline.database, clock=posted.pipeline.clock)
    alerts.acknowledge(row_id(posted.request, "alert_id"), posted.decision)
    return "/alerts"


def _dataset(posted: PostedDecision) -> str:
    name = posted.of_path("dataset")
    return EVERY_DATASET if name == "all" else posted.pipeline.registry[name].id


def _of_dataset(dataset: str) -> str:
    return DECISIONS if dataset == EVERY_DATASET else f"/datasets/{dataset}"
