"""Alerts, quarantine cases, kill switches that are on, and the governance log. Only reads."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

from pydantic import Field

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import Alert, AlertStore
from kfm_dagster.contracts.filters import Days, Filter, OfDataset
from kfm_dagster.governance.log import GovernanceAction, GovernanceEntry, GovernanceLog
from kfm_dagster.governance.switches import EVERY_DATASET, KillSwitch, KillSwitches
from kfm_dagster.ledger.cases import CaseState, QuarantineCase, QuarantineCases
from kfm_dagster.views.view import Page, Parts, View, place_of, require_contract

_CURSOR = re.compile(r"([0-9]{1,9})")


class AlertFilter(Filter):
    """Open alerts, and with `days` also resolved alerts."""

    rule: AlertRule | None = Field(None, description="Only alerts of this rule.")
    days: Days | None = Field(None, description="Also alerts that were resolved within this number of days.")


def alerts(parts: Parts, row_filter: AlertFilter, after: str | None, limit: int) -> Page:
    """Return a page of alerts; `after` is the last id of the page before. Raises BadFilterError."""
    rows = AlertStore(parts.database, clock=parts.clock).listed(
        resolved_since=None if row_filter.days is None else parts.clock() - timedelta(days=row_filter.days),
        rule=row_filter.rule,
        after=place_of(after, _CURSOR, int) or 0,
        limit=limit + 1,
    )
    return Page(rows=rows[:limit], after=str(rows[limit - 1].alert_id) if len(rows) > limit else None)


ALERTS = View(
    name="alerts",
    operation="listAlerts",
    tool="alerts",
    summary="Alerts that fire or are acknowledged, in the order of opening.",
    filter=AlertFilter,
    row=Alert,
    query=alerts,
    columns=("alert_id", "level", "state", "rule", "subject", "opened_at", "observed", "last_event_at", "undelivered"),
    end="next",
)


ALL = "all"
"""The word for every dataset, including datasets that are added after the decision."""


class CaseFilter(OfDataset):
    """Quarantine cases of a state."""

    state: CaseState = Field(CaseState.OPEN, description="Only cases of this state; open cases by default.")
    reason: str | None = Field(None, description="Only cases of this reason, e.g. attempts_exhausted.")


class LogFilter(Filter):
    """Entries of the governance log."""

    action: GovernanceAction | None = Field(None, description="Only this action.")
    dataset: str | None = Field(None, description="Only this dataset (* for switches of all datasets).")
    wal_id: str | None = Field(None, description="Only this unit.")


def _cases(parts: Parts, row_filter: CaseFilter, _: str | None, limit: int) -> Page:
    return Page(rows=QuarantineCases(parts.database, clock=parts.clock).find(**dict(row_filter), limit=limit))


def _switches(parts: Parts, _: Filter, __: str | None, ___: int) -> Page:
    with parts.database.snapshot() as tx:
        engaged = KillSwitches(parts.database, clock=parts.clock).engaged(tx=tx).values()
    return Page(rows=[replace(row, dataset=ALL) if row.dataset == EVERY_DATASET else row for row in engaged])


def _entries(parts: Parts, row_filter: LogFilter, _: str | None, limit: int) -> Page:
    with parts.database.snapshot() as tx:
        entries = GovernanceLog(parts.database, clock=parts.clock).entries(**dict(row_filter), limit=limit, tx=tx)
    if not entries and row_filter.dataset != EVERY_DATASET:
        # Decisions remain when a dataset's contract is removed; a name without contract and decisions is misspelt.
        require_contract(parts, row_filter.dataset)
    return Page(rows=entries)


CASES = View(
    summary="Cases of quarantined units, the newest first.",
    filter=CaseFilter,
    row=QuarantineCase,
    query=_cases,
    columns=("wal_id", "dataset", "error_code", "object_uri", "reason", "attempts", "opened_at"),
)
SWITCHES = View(
    summary="Kill switches that are on.",
    row=KillSwitch,
    query=_switches,
    columns=("dataset", "engaged_at", "engaged_by", "reason", "expires_at", "change_ref"),
)
LOG = View(
    summary="Decisions in the governance log, the newest first.",
    filter=LogFilter,
    row=GovernanceEntry,
    query=_entries,
    columns=("entry_id", "at", "actor", "action", "dataset", "wal_id", "reason", "change", "approved_by", "change_ref"),
)
