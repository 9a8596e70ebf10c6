"""Forms for a signed-in person's decisions, carried out and logged like commands.

Belongs here: the form of a decision, routes that change a unit, a dataset or an alert, the proposals that wait for
approval, and replays and discards of all units of a filter. A dry run counts the eligible units before a start. People
pause, resume and stop a replay here, but the deployment's daemon admits its batches. A discard takes all of its units
or none. Does not belong here: signing in (`session.py`), and the decisions themselves (`recovery/`, `governance/`,
`ledger/cases.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from kfm_dagster.alerts.store import AlertStore
from kfm_dagster.console.pages import Pages, parameters, query_of, row_id
from kfm_dagster.console.requests import parameters_by_name, whole_number
from kfm_dagster.console.session import came_from, own_path
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision, decision_in
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.policy import ReplayReason
from kfm_dagster.ledger.search import Budget, UnitFilter, walk
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery import work_orders
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.limits import LIMITS
from kfm_dagster.recovery.replay.runs import ReplayRun
from kfm_dagster.recovery.replay.selection import Mode, Selection, selection_from
from kfm_dagster.recovery.work_orders import open_versions, plan_discard
from kfm_dagster.settings import Environment
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.decisions import LOG
from kfm_dagster.views.units import record_of
from kfm_dagster.views.view import Parts, require_contract

DECISIONS = "/decisions"
MOST_ENTRIES = 100
MOST_SHOWN = 20
"""Maximum units that a dry run names; it counts all units by dataset and code."""
MOST_HOURS = 24 * 365
"""Maximum hours until a kill switch expires; without a number of hours it does not expire."""
MOST_NAMED = 10_000
"""Maximum units in a selection by ids; a selection by dataset, code and time has no ids."""
MOST_EXAMINED = 200_000
"""Maximum rows that the search for a filter's unit ids examines; so many rows take some seconds."""
_IN_THE_DECISION = "follows with the decision"
_DECISION = ("reason", "change_ref")
Fields: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PostedDecision:
    """A decision, the form's other fields, and the pipeline that carries it out."""

    pipeline: Pipeline
    request: Request
    decision: Decision
    fields: Fields

    @property
    def cases(self) -> QuarantineCases:
        """The cases of units in quarantine."""
        return QuarantineCases(self.pipeline.database, clock=self.pipeline.clock)


Decide: TypeAlias = Callable[[PostedDecision], str]
"""Carries a decision out and returns the page to show next."""


def decision_form(
    pages: Pages, path: str, decide: Decide, *, fields: tuple[str, ...] | None = (), is_override: bool = True
) -> Route:
    """Return the route of a decision's form, with `fields` besides reason and change reference.

    `fields` is None for the form of a filter, which can have any field. An override (any decision but an
    acknowledgement) needs a change reference in prod. The route's handler raises BadRequestError, KfmError and, without
    a sign-in, HTTPException.
    """

    def answer(request: Request, posted: Fields) -> Response:
        actor = pages.sessions.actor_of(request)
        if actor is None:
            raise HTTPException(HTTPStatus.FORBIDDEN, "sign in to decide; without a token, the console is read-only")
        values = parameters_by_name(list(posted.items()), known=(*_DECISION, *(posted if fields is None else fields)))
        reason, change_ref = (values.pop(name, "").strip() for name in _DECISION)
        make = partial(decision_in, pages.pipeline.settings.env) if is_override else Decision
        decision = make(actor=actor, reason=reason, change_ref=change_ref or None)
        return _see(decide(PostedDecision(pages.writing, request, decision, values)))

    return pages.form(path, answer)


def routes(pages: Pages) -> list[Route]:
    """Return the routes of sign-in and of decisions."""

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
        *_of_filters(pages),
    ]


def _of_session(pages: Pages) -> list[Route]:
    offered = bool(pages.sessions.tokens)

    def sign_in_page(request: Request) -> Response:
        query_of(request)
        return pages.page(request, "sign_in.html", refused=False, offered=offered, to=came_from(request))

    def sign_in(request: Request, fields: Fields) -> Response:
        values = parameters_by_name(list(fields.items()), known=("token", "to"))
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
    """Release units as `kfm retry` does; in prod a second person approves the release."""
    posted.decision.require_change_ref()
    versions, page = _seen(posted, Status.PENDING)
    with posted.pipeline.database.transaction() as tx:
        proposal_id = work_orders.release(
            posted.pipeline.ledger,
            versions(tx),
            settings=posted.pipeline.settings,
            decision=posted.decision,
            replay_reason=ReplayReason.INCIDENT,
            tx=tx,
        )
    return page if proposal_id is None else DECISIONS


def _discard(posted: PostedDecision) -> str:
    versions, page = _seen(posted, Status.QUARANTINED)
    with posted.pipeline.database.transaction() as tx:
        posted.cases.discard(versions(tx), decision=posted.decision, tx=tx)
    return page


def _seen(posted: PostedDecision, to_status: Status) -> tuple[Callable[[Transaction], Mapping[WalId, int]], str]:
    """Return a function that reads the units' versions, and the page to show next.

    The function raises KfmError if the units have changed since the person saw the page.
    """
    if wal_id := posted.request.path_params.get("wal_id"):
        version = whole_number("version", posted.fields.get("version", ""))

        def of_unit(tx: Transaction) -> Mapping[WalId, int]:
            record = record_of(posted.pipeline.ledger, str(wal_id), tx=tx)
            return open_versions(posted.cases, [record], version=version, to_status=to_status, tx=tx)

        return of_unit, f"/units/{wal_id}"
    filters = ((name, value) for name, value in posted.fields.items() if name != "seen")
    unit_filter = filter_of(Status.QUARANTINED, filters)
    wal_ids = named_units(posted.pipeline, unit_filter)

    def of_filter(tx: Transaction) -> Mapping[WalId, int]:
        plan = plan_discard(wal_ids, tx=tx)
        plan.require_seen(posted.fields.get("seen", ""))
        return plan.versions

    # Released units wait for a run; the live view shows how many are left.
    waiting = unit_filter.model_copy(update={"status": to_status, "operator": None}).query()
    return of_filter, f"/units?{urlencode([*waiting, ('live', '1')])}" if to_status is Status.PENDING else DECISIONS


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
    name = str(posted.request.path_params["dataset"])
    return EVERY_DATASET if name == "all" else posted.pipeline.registry[name].id


def _of_dataset(dataset: str) -> str:
    return DECISIONS if dataset == EVERY_DATASET else f"/datasets/{dataset}"


def _of_filters(pages: Pages) -> list[Route]:
    pipeline = pages.pipeline

    def listed(request: Request) -> Response:
        query_of(request)
        return pages.page(
            request, "replays.html", replays=[run.as_json() for run in ReplayEngine(pipeline=pipeline).newest()]
        )

    def shown(request: Request) -> Response:
        query_of(request)
        replay_run_id = str(request.path_params["replay_run_id"])
        return pages.page(request, "replay.html", report=ReplayEngine(pipeline=pipeline).report(replay_run_id))

    def dry_run(request: Request) -> Response:
        unit_filter = filter_of(Status.FAILED, parameters(request))
        plan = ReplayEngine(pipeline=pipeline).plan(selection_for(pipeline, unit_filter), change_ref=_IN_THE_DECISION)
        first = plan.units[:MOST_SHOWN]
        return pages.page(request, "replay_plan.html", query=unit_filter.query(), plan=plan, first=first)

    def quarantined_dry_run(request: Request) -> Response:
        unit_filter = filter_of(Status.QUARANTINED, parameters(request))
        with pipeline.database.snapshot() as tx:
            plan = plan_discard(named_units(pipeline, unit_filter), tx=tx)
            first = [record_of(pipeline.ledger, wal_id, tx=tx) for wal_id in islice(plan.versions, MOST_SHOWN)]
        return pages.page(request, "quarantined_plan.html", query=unit_filter.query(), plan=plan, first=first)

    return [
        Route("/replays", listed, methods=["GET"]),
        Route("/replays/dry-run", dry_run, methods=["GET"]),
        decision_form(pages, "/replays", _begin, fields=None),
        decision_form(pages, "/units/{wal_id:uuid}/retry", _begin),
        Route("/replays/{replay_run_id:uuid}", shown, methods=["GET"]),
        *(
            decision_form(pages, f"/replays/{{replay_run_id:uuid}}/{change.__name__}", partial(_change, change))
            for change in (ReplayEngine.pause, ReplayEngine.resume, ReplayEngine.stop)
        ),
        *(Route(f"{path}/dry-run", quarantined_dry_run, methods=["GET"]) for path in ("/discards", "/releases")),
        decision_form(pages, "/discards", _discard, fields=None),
        decision_form(pages, "/releases", _release, fields=None),
    ]


def _begin(posted: PostedDecision) -> str:
    pipeline, wal_id = posted.pipeline, posted.request.path_params.get("wal_id")
    if wal_id:
        page, selection = f"/units/{wal_id}", _selection(pipeline.settings.env, {"wal_ids": [str(wal_id)]})
    else:
        page, selection = "/replays", selection_for(pipeline, filter_of(Status.FAILED, posted.fields.items()))
    started = work_orders.start(ReplayEngine(pipeline=pipeline), selection, posted.decision)
    return f"/replays/{started.replay_run_id}" if started.replay_run_id else page


def _change(by: Callable[[ReplayEngine, str, Decision], ReplayRun], posted: PostedDecision) -> str:
    replay_run_id = str(posted.request.path_params["replay_run_id"])
    by(ReplayEngine(pipeline=posted.pipeline), replay_run_id, posted.decision)
    return f"/replays/{replay_run_id}"


def filter_of(status: Status, pairs: Iterable[tuple[str, str]]) -> UnitFilter:
    """Return a filter of units with this status, or raise BadFilterError for another status."""
    unit_filter = UnitFilter.of_query(pairs)
    if unit_filter.status is not status:
        raise BadFilterError(observed=f"status {unit_filter.status or 'of any kind'}", expected=status)
    return unit_filter


def selection_for(pipeline: Pipeline, unit_filter: UnitFilter) -> Selection:
    """Return a replay's selection: the first failed units of a filter, at most a replay's limit.

    A filter by text or operator needs the units' ids, and raises BadFilterError as `named_units` does.
    """
    # A selection cannot filter by text or operator, so for such a filter it names the units.
    by_name = unit_filter.text or unit_filter.operator
    filters = {"wal_ids": named_units(pipeline, unit_filter)} if by_name else _ranges(pipeline.clock(), unit_filter)
    return _selection(pipeline.settings.env, filters)


def _selection(env: Environment, filters: Mapping[str, Any]) -> Selection:
    return selection_from(
        env,
        "the console",
        name="console",
        mode=Mode.FAILED_ONLY.value,
        status=[Status.FAILED.value],
        max_records=LIMITS[env].max_selection_records,
        **filters,
    )


def _ranges(now: datetime, unit_filter: UnitFilter) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "datasets": [unit_filter.dataset or EVERY_DATASET],
        "error_codes": unit_filter.code and [unit_filter.code],
    }
    times = {"event_time_start": unit_filter.since, "event_time_end": unit_filter.until}
    if not any(times.values()):
        # Exclude units that are created from now on.
        times = {"created_before": now}
    return parts | {name: at and rfc3339(at) for name, at in times.items()}


def named_units(parts: Parts, unit_filter: UnitFilter) -> list[str]:
    """Return a filter's unit ids.

    Raises BadFilterError for no unit, for more than MOST_NAMED, or if the search examines more than MOST_EXAMINED rows.
    """
    require_contract(parts, unit_filter.dataset)
    wal_ids: list[str] = []
    with parts.database.snapshot() as tx:
        for _, row in walk(tx, unit_filter, budget=Budget(rows=MOST_EXAMINED)):
            if row is not None and row["is_match"]:
                wal_ids.append(row["wal_id"])
            if row is None or len(wal_ids) > MOST_NAMED:
                raise BadFilterError(
                    observed=f"more than {MOST_NAMED} units, or too many to look through",
                    expected="a dataset, a code or a time that matches fewer",
                )
    if not wal_ids:
        raise BadFilterError("the filter matches no unit", observed="none", expected="one unit or more")
    return wal_ids
