"""Decisions: what a person who is signed in may do by a form, each as the command line does it, with its log entry.

Belongs here: routes that change something about units and datasets, and who waits for approval. Does not belong here:
who decides (`session.py`), replays (`replays.py`), and the decisions themselves (`recovery/`, `governance/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kfm_dagster.console.operations import record_of
from kfm_dagster.console.pages import Pages, parameters, row_id
from kfm_dagster.console.request_parameters import given, whole_number
from kfm_dagster.console.session import came_from, own_path
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.log import Decision, decision_in
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery import work_orders
from kfm_dagster.recovery.quarantined import open_versions
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.decisions import LOG

DECISIONS = "/decisions"
MOST_ENTRIES = 100
MOST_HOURS = 24 * 365
"""A kill switch that is to last longer has no expiry."""
_DECISION = ("reason", "change_ref")
Take = Callable[[Pipeline, NoddWalRecord, int, Decision, Transaction], str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FormDecision:
    """What a form said, and by whom."""

    decision: Decision
    fields: Mapping[str, str]


def decided(
    pages: Pages,
    request: Request,
    fields: Mapping[str, str],
    *,
    known: tuple[str, ...] = (),
    is_override: bool = True,
) -> FormDecision:
    """Read the decision of a form; an override needs a change reference in prod.

    Raises HTTPException where nobody is signed in, BadRequestError, KfmError.
    """
    actor = pages.sessions.require_actor(request)
    values = given(list(fields.items()), known=(*_DECISION, *known))
    reason, change_ref = values.get("reason", "").strip(), values.get("change_ref", "").strip()
    make = partial(decision_in, pages.pipeline.settings.env) if is_override else Decision
    decision = make(actor=actor, reason=reason, change_ref=change_ref or None)
    return FormDecision(decision=decision, fields=values)


def see(path: str) -> Response:
    """Send a browser on to a page, once a form is done."""
    return RedirectResponse(path, status_code=HTTPStatus.SEE_OTHER)


def routes(pages: Pages) -> list[Route]:
    """Return the routes of signing in, of decisions about units and datasets, and of what waits for approval."""
    return [*_of_session(pages), *_of_units(pages), *_of_datasets(pages), *_of_review(pages)]


def _of_session(pages: Pages) -> list[Route]:
    offered = bool(pages.sessions.tokens)

    def sign_in_page(request: Request) -> Response:
        given(parameters(request), known=())
        return pages.page(request, "sign_in.html", refused=False, offered=offered, to=came_from(request))

    def sign_in(request: Request, fields: Mapping[str, str]) -> Response:
        values = given(list(fields.items()), known=("token", "to"))
        to = own_path(values.get("to", ""))
        answer = see(to)
        if pages.sessions.sign_in(values.get("token", ""), request, answer) is None:
            refused = HTTPStatus.FORBIDDEN
            return pages.page(request, "sign_in.html", status=refused, refused=True, offered=offered, to=to)
        return answer

    def sign_out(_: Request, __: Mapping[str, str]) -> Response:
        answer = see("/")
        pages.sessions.sign_out(answer)
        return answer

    return [
        Route("/sign-in", sign_in_page, methods=["GET"]),
        pages.form("/sign-in", sign_in),
        pages.form("/sign-out", sign_out),
    ]


def _of_units(pages: Pages) -> list[Route]:
    def unit(take: Take) -> Callable[[Request, Mapping[str, str]], Response]:
        def answer(request: Request, fields: Mapping[str, str]) -> Response:
            form = decided(pages, request, fields, known=("version",))
            version = whole_number("version", form.fields.get("version", ""))
            wal_id = str(request.path_params["wal_id"])
            with pages.writing.database.transaction() as tx:
                record = record_of(pages.writing.ledger, wal_id, tx=tx)
                path = take(pages.writing, record, version, form.decision, tx)
            return see(path or f"/units/{wal_id}")

        return answer

    return [
        pages.form("/units/{wal_id:uuid}/release", unit(_release)),
        pages.form("/units/{wal_id:uuid}/discard", unit(_discard)),
    ]


def _of_datasets(pages: Pages) -> list[Route]:
    def switch_off(request: Request, fields: Mapping[str, str]) -> Response:
        form = decided(pages, request, fields, known=("hours",))
        dataset = _dataset(pages.writing.registry, request)
        hours = form.fields.get("hours", "")
        lasts = timedelta(hours=whole_number("hours", hours, most=MOST_HOURS)) if hours else None
        expires_at = pages.writing.clock() + lasts if lasts else None
        pages.writing.ledger.switches.engage(dataset, form.decision, expires_at=expires_at)
        return see(_of_dataset(dataset))

    def switch_on(request: Request, fields: Mapping[str, str]) -> Response:
        form = decided(pages, request, fields)
        dataset = _dataset(pages.writing.registry, request)
        pages.writing.ledger.switches.release(dataset, form.decision)
        return see(_of_dataset(dataset))

    return [
        pages.form("/datasets/{dataset}/switch-off", switch_off),
        pages.form("/datasets/{dataset}/switch-on", switch_on),
    ]


def _of_review(pages: Pages) -> list[Route]:
    def decisions(request: Request) -> Response:
        given(parameters(request), known=())
        ledger = pages.pipeline.ledger
        return pages.page(
            request,
            "decisions.html",
            waiting=ledger.review.waiting(),
            entries=ledger.log.entries(limit=MOST_ENTRIES),
            columns=LOG.columns,
            everything_off=ledger.switches.engaged().get(EVERY_DATASET),
        )

    def approve(request: Request, fields: Mapping[str, str]) -> Response:
        form = decided(pages, request, fields)
        done = work_orders.approve(ReplayEngine(pipeline=pages.writing), row_id(request, "proposal_id"), form.decision)
        return see(f"/replays/{done.replay_run_id}" if done.replay_run_id else DECISIONS)

    def withdraw(request: Request, fields: Mapping[str, str]) -> Response:
        form = decided(pages, request, fields)
        with pages.writing.database.transaction() as tx:
            pages.writing.ledger.review.withdraw(row_id(request, "proposal_id"), form.decision, tx=tx)
        return see(DECISIONS)

    return [
        Route(DECISIONS, decisions, methods=["GET"]),
        pages.form("/proposals/{proposal_id}/approve", approve),
        pages.form("/proposals/{proposal_id}/withdraw", withdraw),
    ]


def _release(
    pipeline: Pipeline, record: NoddWalRecord, version: int, decision: Decision, tx: Transaction
) -> str | None:
    decision.require_change_ref()
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    seen = open_versions(cases, [record], version=version, to_status=Status.PENDING, tx=tx)
    proposal = work_orders.release(
        pipeline.ledger, seen, settings=pipeline.settings, decision=decision, replay_reason=ReplayReason.INCIDENT, tx=tx
    )
    return None if proposal is None else DECISIONS


def _discard(
    pipeline: Pipeline, record: NoddWalRecord, version: int, decision: Decision, tx: Transaction
) -> str | None:
    cases = QuarantineCases(pipeline.database, clock=pipeline.clock)
    seen = open_versions(cases, [record], version=version, to_status=Status.QUARANTINED, tx=tx)
    cases.discard(seen, decision=decision, tx=tx)
    return None


def _dataset(registry: ContractRegistry, request: Request) -> str:
    name = str(request.path_params["dataset"])
    return EVERY_DATASET if name == "all" else registry[name].id


def _of_dataset(dataset: str) -> str:
    return DECISIONS if dataset == EVERY_DATASET else f"/datasets/{dataset}"
