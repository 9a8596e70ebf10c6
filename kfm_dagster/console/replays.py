"""Decisions on all units of a filter: a replay with guards, pace and report, or a discard.

A dry run counts the eligible units before a start. The deployment's daemon admits a replay's batches, and a
replay is paused, resumed and stopped here; a discard takes all of its units or none. Does not belong here: the engine
(`recovery/replay/`), decisions about one unit (`actions.py`), the discard itself (`ledger/cases.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.actions import DECISIONS, PostedDecision, decision_form
from kfm_dagster.console.pages import Pages, parameters, query_of
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import Decision
from kfm_dagster.governance.switches import EVERY_DATASET
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.search import UnitFilter
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.replay.engine import ReplayEngine
from kfm_dagster.recovery.replay.limits import LIMITS
from kfm_dagster.recovery.replay.runs import ReplayRun
from kfm_dagster.recovery.replay.selection import Mode, Selection, selection_from
from kfm_dagster.recovery.work_orders import plan_discard, start
from kfm_dagster.settings import Environment
from kfm_dagster.views.units import search_units
from kfm_dagster.views.view import Parts

MOST_NAMED = 10_000
"""Units that a selection names; a selection by dataset, code and time names none."""
PAGE, MOST_PAGES = 1_000, 20
"""Pages of the search for these units; each examines a bounded number of rows, so that all take some seconds."""
_TO_BE_GIVEN = "to be given with the decision"
_MODES = {Status.FAILED: Mode.FAILED_ONLY, Status.QUARANTINED: Mode.REPAIR_AND_REPLACE}


def routes(pages: Pages) -> list[Route]:
    """Return the routes of replays and of discarding all units of a filter."""
    pipeline = pages.pipeline

    def listed(request: Request) -> Response:
        query_of(request)
        return pages.page(
            request, "replays.html", replays=[run.as_json() for run in ReplayEngine(pipeline=pipeline).newest()]
        )

    def one(request: Request) -> Response:
        query_of(request)
        replay_run_id = str(request.path_params["replay_run_id"])
        return pages.page(request, "replay.html", report=ReplayEngine(pipeline=pipeline).report(replay_run_id))

    def dry_run(request: Request) -> Response:
        unit_filter = UnitFilter.of_query(parameters(request))
        plan = ReplayEngine(pipeline=pipeline).plan(selection_for(pipeline, unit_filter), change_ref=_TO_BE_GIVEN)
        return pages.page(request, "replay_plan.html", wanted=unit_filter, query=unit_filter.query(), plan=plan)

    def discard_dry_run(request: Request) -> Response:
        unit_filter = _quarantined(parameters(request))
        with pipeline.database.snapshot() as tx:
            plan = plan_discard(named_units(pipeline, unit_filter), tx=tx)
        breakdown = [
            {"dataset": dataset, "error_code": code, "units": units}
            for (dataset, code), units in plan.breakdown.items()
        ]
        return pages.page(request, "discard_plan.html", query=unit_filter.query(), plan=plan, breakdown=breakdown)

    return [
        Route("/replays", listed, methods=["GET"]),
        Route("/replays/dry-run", dry_run, methods=["GET"]),
        decision_form(pages, "/replays", _begin, fields=None),
        decision_form(pages, "/units/{wal_id:uuid}/retry", _retry),
        Route("/replays/{replay_run_id:uuid}", one, methods=["GET"]),
        *(
            decision_form(pages, f"/replays/{{replay_run_id:uuid}}/{change.__name__}", partial(_change, change))
            for change in (ReplayEngine.pause, ReplayEngine.resume, ReplayEngine.stop)
        ),
        Route("/discards/dry-run", discard_dry_run, methods=["GET"]),
        decision_form(pages, "/discards", _discard, fields=None),
    ]


def _begin(posted: PostedDecision) -> str:
    selection = selection_for(posted.pipeline, UnitFilter.of_query(posted.fields.items()))
    started = start(ReplayEngine(pipeline=posted.pipeline), selection, posted.decision)
    if started.proposal_id is not None:
        return DECISIONS
    return f"/replays/{started.replay_run_id}" if started.replay_run_id else "/replays"


def _retry(posted: PostedDecision) -> str:
    wal_id = posted.of_path("wal_id")
    selection = _selection(posted.pipeline.settings.env, Status.FAILED, {"wal_ids": [wal_id]})
    started = start(ReplayEngine(pipeline=posted.pipeline), selection, posted.decision)
    return f"/replays/{started.replay_run_id}" if started.replay_run_id else f"/units/{wal_id}"


def _change(by: Callable[[ReplayEngine, str, Decision], ReplayRun], posted: PostedDecision) -> str:
    replay_run_id = posted.of_path("replay_run_id")
    by(ReplayEngine(pipeline=posted.pipeline), replay_run_id, posted.decision)
    return f"/replays/{replay_run_id}"


def _discard(posted: PostedDecision) -> str:
    unit_filter = _quarantined((name, value) for name, value in posted.fields.items() if name != "seen")
    wal_ids = named_units(posted.pipeline, unit_filter)
    with posted.pipeline.database.transaction() as tx:
        plan = plan_discard(wal_ids, tx=tx)
        plan.require_seen(posted.fields.get("seen", ""))
        posted.cases.discard(plan.versions, decision=posted.decision, tx=tx)
    return f"/units?{urlencode(unit_filter.query())}"


def _quarantined(pairs: Iterable[tuple[str, str]]) -> UnitFilter:
    unit_filter = UnitFilter.of_query(pairs)
    if unit_filter.status is not Status.QUARANTINED:
        raise BadFilterError(observed=f"status {unit_filter.status or 'of any kind'}", expected=Status.QUARANTINED)
    return unit_filter


def selection_for(pipeline: Pipeline, wanted: UnitFilter) -> Selection:
    """Return a filter as a replay's selection: its first units, as many as one replay may have.

    Raises BadFilterError where the filter is not for failed or quarantined units, or has more than a selection names.
    """
    if wanted.status is None or wanted.status not in _MODES:
        raise BadFilterError(observed=f"status {wanted.status or 'of any kind'}", expected=" or ".join(_MODES))
    # A selection has no filters by text or operator: it names the units.
    by_name = wanted.text or wanted.operator
    filters = {"wal_ids": named_units(pipeline, wanted)} if by_name else _ranges(pipeline.clock(), wanted)
    return _selection(pipeline.settings.env, wanted.status, filters)


def _selection(env: Environment, status: Status, filters: Mapping[str, Any]) -> Selection:
    return selection_from(
        env,
        "the console",
        name="console",
        mode=_MODES[status].value,
        status=[status.value],
        max_records=LIMITS[env].max_selection_records,
        allow_repair_and_replace=status is Status.QUARANTINED,
        **filters,
    )


def _ranges(now: datetime, wanted: UnitFilter) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "datasets": [wanted.dataset or EVERY_DATASET],
        "error_codes": wanted.code and [wanted.code],
    }
    times = {"event_time_start": wanted.since, "event_time_end": wanted.until}
    if not any(times.values()):
        # Units created from now on are excluded.
        times = {"created_before": now}
    return parts | {name: at and rfc3339(at) for name, at in times.items()}


def named_units(parts: Parts, wanted: UnitFilter) -> list[str]:
    """Return a filter's unit ids. Raises BadFilterError for none and for more than MOST_NAMED."""
    wal_ids: list[str] = []
    after: str | None = None
    for _ in range(MOST_PAGES):
        page = search_units(parts, wanted, after, PAGE)
        wal_ids += [row["wal_id"] for row in page.rows]
        after = page.after
        if after is None or len(wal_ids) > MOST_NAMED:
            break
    if after is not None or len(wal_ids) > MOST_NAMED:
        raise BadFilterError(
            observed=f"more than {MOST_NAMED} units, or too many to look through",
            expected="a dataset, a code or a time that means fewer",
        )
    if not wal_ids:
        raise BadFilterError("no unit is meant", observed="none", expected="one unit or more")
    return wal_ids
