"""Discards: all that a filter means is closed for good, all or none, once a dry run has counted what is eligible.

Does not belong here: one unit's discard (`actions.py`), what discarding does (`ledger/cases.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kfm_dagster.console.actions import decided, see
from kfm_dagster.console.pages import Pages, parameters
from kfm_dagster.console.replays import named_units
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.ledger.cases import QuarantineCases
from kfm_dagster.ledger.search import UnitFilter
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.quarantined import plan_discard

_OF_DECISION = ("reason", "change_ref", "seen")


def routes(pages: Pages) -> list[Route]:
    """Return the routes of discarding all that a filter means."""
    pipeline = pages.pipeline

    def dry_run(request: Request) -> Response:
        wanted = _quarantined(parameters(request))
        plan = plan_discard(pipeline.database, named_units(pipeline, wanted))
        breakdown = [
            {"dataset": dataset, "error_code": code, "units": units}
            for (dataset, code), units in plan.breakdown.items()
        ]
        return pages.page(request, "discard_plan.html", query=wanted.query(), plan=plan, breakdown=breakdown)

    def discard(request: Request, fields: Mapping[str, str]) -> Response:
        filters = {name: value for name, value in fields.items() if name not in _OF_DECISION}
        form = decided(pages, request, fields, known=("seen", *filters))
        wanted = _quarantined(list(filters.items()))
        wal_ids = named_units(pages.writing, wanted)
        with pages.writing.database.transaction() as tx:
            plan = plan_discard(pages.writing.database, wal_ids, tx=tx)
            plan.require_seen(form.fields.get("seen", ""))
            cases = QuarantineCases(pages.writing.database, clock=pages.writing.clock)
            cases.discard(plan.versions, decision=form.decision, tx=tx)
        return see(f"/units?{urlencode(wanted.query())}")

    return [Route("/discards/dry-run", dry_run, methods=["GET"]), pages.form("/discards", discard)]


def _quarantined(pairs: list[tuple[str, str]]) -> UnitFilter:
    wanted = UnitFilter.of_query(pairs)
    if wanted.status is not Status.QUARANTINED:
        raise BadFilterError(observed=f"status {wanted.status or 'of any kind'}", expected=Status.QUARANTINED)
    return wanted
