"""What the JSON API and the MCP server answer: parameters as texts, JSON values, each answer bounded. Only reads.

A wrong parameter raises BadFilterError or BadRequestError, an unknown dataset ContractError. Does not belong here: HTTP
(`api.py`), the protocol of assistants (`mcp_server.py`), finding (`exports/`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import Alert, AlertStore
from kfm_dagster.catalog.publisher import PublishError, open_publisher
from kfm_dagster.console.asking import BadRequestError, whole_number
from kfm_dagster.console.openapi import BASE, MOST_DAYS, MOST_GAPS
from kfm_dagster.errors import DependencyUnavailableError, KfmError
from kfm_dagster.exports.deployment_status import GAPS_SINCE, deployment_status
from kfm_dagster.exports.explanations.unit_history import unit_history
from kfm_dagster.exports.json_rows import json_row
from kfm_dagster.exports.rejection_search import rejection_filter, search_rejections
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import UnitFilter
from kfm_dagster.storage.database import Transaction
from kfm_dagster.views.units import failure_groups, search_units
from kfm_dagster.views.view import MOST_OF_A_PAGE, PAGE

Given = Mapping[str, str]
Answer = Callable[[Pipeline, Given], dict[str, Any]]


class UnknownUnitError(KfmError):
    """There is no such unit, or it has no Item."""


def units(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return a page of units, and the address of the next."""
    limit = whole_number("limit", given.get("limit", str(PAGE)), most=MOST_OF_A_PAGE)
    wanted = UnitFilter.of_query([(name, value) for name, value in given.items() if name not in {"limit", "after"}])
    page = search_units(pipeline, wanted, after=given.get("after"), limit=limit)
    query = [*wanted.query(), ("limit", str(limit)), ("after", page.after or "")]
    return {
        "units": [json_row(row) for row in page.rows],
        "next": f"{BASE}/units?{urlencode(query)}" if page.after else None,
    }


def unit(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return a unit's record with its whole history. Raises UnknownUnitError."""
    record = record_of(pipeline, given.get("wal_id", ""))
    return record.model_dump(mode="json") | unit_history(pipeline, record).as_json()


def failures(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return failures in groups."""
    groups = failure_groups(pipeline, UnitFilter.of_query(given.items()))
    return {"failures": [json_row(group) for group in groups]}


def gaps(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return gaps, MOST_GAPS at most."""
    days = whole_number("days", given.get("days", str(GAPS_SINCE.days)), most=MOST_DAYS)
    closed = given.get("closed", "false")
    if closed not in {"true", "false"}:
        raise BadRequestError(observed=f"closed={closed[:80]!r}", expected="true or false")
    dataset = given.get("dataset")
    found = pipeline.gaps.list(
        since=pipeline.clock() - timedelta(days=days),
        dataset=None if dataset is None else pipeline.registry[dataset].id,
        closed=closed == "true",
        limit=MOST_GAPS + 1,
    )
    return {"gaps": [json_row(gap) for gap in found[:MOST_GAPS]], "complete": len(found) <= MOST_GAPS}


def rejections(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return a page of what came and could not be taken in, and the address of the next."""
    limit = whole_number("limit", given.get("limit", str(PAGE)), most=MOST_OF_A_PAGE)
    page = search_rejections(pipeline, rejection_filter(given), after=given.get("after"), limit=limit)
    return {"rejections": [json_row(row) for row in page.rows], "next": _next("rejections", given, page.after)}


def alerts(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return a page of alerts, and the address of the next."""
    limit = whole_number("limit", given.get("limit", str(PAGE)), most=MOST_OF_A_PAGE)
    page = alert_page(pipeline, given, limit=limit)
    return {"alerts": [alert.row() for alert in page.rows], "next": _next("alerts", given, page.after)}


def datasets(pipeline: Pipeline, _: Given) -> dict[str, Any]:
    """Return the datasets that are ingested here."""
    off = pipeline.ledger.switches.engaged()
    return {
        "datasets": [
            {
                "id": contract.id,
                "title": contract.metadata.title,
                "collection": contract.stac.collection,
                "switched_off": not off.keys().isdisjoint({contract.id, "*"}),
            }
            for contract in pipeline.registry
        ]
    }


def status(pipeline: Pipeline, _: Given) -> dict[str, Any]:
    """Return what waits for somebody, and units by dataset and status."""
    return deployment_status(pipeline).as_json()


def item(pipeline: Pipeline, given: Given) -> dict[str, Any]:
    """Return the STAC Item of a unit. Raises UnknownUnitError where there is none."""
    href = record_of(pipeline, given.get("wal_id", "")).stac_item_href
    try:
        content = open_publisher(pipeline.settings.catalog).read([href]).get(href) if href else None
    except PublishError as error:
        raise DependencyUnavailableError(
            "the catalog's place does not answer", observed=error, next_step="see KFM_CATALOG_URL"
        ) from error
    if content is None:
        raise UnknownUnitError("the unit has no Item in the catalog", observed=given["wal_id"])
    found: dict[str, Any] = json.loads(content)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertPage:
    """Alerts in the order of opening; with `after` there are more."""

    rows: Sequence[Alert]
    after: str | None


def alert_page(pipeline: Pipeline, given: Given, *, limit: int) -> AlertPage:
    """Return what `rule`, `days` (those that resolved within, too) and `after` mean. Raises BadRequestError."""
    rule, days, after = (given.get(name) or None for name in ("rule", "days", "after"))
    if rule is not None and rule not in set(AlertRule):
        raise BadRequestError(observed=f"rule={rule[:80]!r}", expected=" or ".join(AlertRule))
    since = None if days is None else pipeline.clock() - timedelta(days=whole_number("days", days, most=MOST_DAYS))
    found = AlertStore(pipeline.database, clock=pipeline.clock).listed(
        resolved_since=since,
        rule=None if rule is None else AlertRule(rule),
        after=0 if after is None else whole_number("after", after),
        limit=limit + 1,
    )
    return AlertPage(rows=found[:limit], after=str(found[limit - 1].alert_id) if len(found) > limit else None)


def _next(name: str, given: Given, after: str | None) -> str | None:
    """Return the address of the page that begins there, of the same parameters."""
    return f"{BASE}/{name}?{urlencode({**given, 'after': after})}" if after else None


def record_of(pipeline: Pipeline, wal_id: str, *, tx: Transaction | None = None) -> NoddWalRecord:
    """Return the record of a unit. Raises UnknownUnitError."""
    record = pipeline.ledger.get(wal_id, tx=tx)
    if record is None:
        raise UnknownUnitError("there is no such unit", observed=repr(wal_id[:80]), next_step="search units")
    return record
