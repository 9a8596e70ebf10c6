"""Feeds: the datasets ingested here, and their gaps. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlencode

from pydantic import Field

from kfm_dagster.contracts.filters import MOST_DAYS, Days, Filter, Flag, OfDataset
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.switches import EVERY_DATASET, KillSwitches
from kfm_dagster.ledger.gaps import Gap, Gaps
from kfm_dagster.views.view import Page, Parts, View, require_contract

GAP_DAYS = 3


class GapFilter(OfDataset):
    """Gaps of the last days, and silences and drops that last, however long."""

    days: Days = Field(GAP_DAYS, description=f"Of hours so many days back, {MOST_DAYS} at most.")
    closed: Flag = Field(default=False, description="Those that are closed, too.")


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestedDataset:
    """A dataset that is ingested here, and whether a kill switch stops it."""

    id: str
    title: str
    collection: str
    switched_off: bool


def gaps(parts: Parts, wanted: GapFilter, _: str | None, limit: int) -> Page:
    """Return gaps; `after` is set if there are more. Raises ContractError for an unknown dataset."""
    require_contract(parts, wanted.dataset)
    since = parts.clock() - timedelta(days=wanted.days)
    rows = Gaps(database=parts.database).list(
        since=since, dataset=wanted.dataset, closed=wanted.closed, limit=limit + 1
    )
    return Page(rows=rows[:limit], after="more" if len(rows) > limit else None)


def _datasets(parts: Parts, _: Filter, __: str | None, ___: int) -> Page:
    with parts.database.snapshot() as tx:
        off = KillSwitches(parts.database, clock=parts.clock).engaged(tx=tx)
    return Page(
        rows=[
            IngestedDataset(
                id=contract.id,
                title=contract.metadata.title,
                collection=contract.stac.collection,
                switched_off=not off.keys().isdisjoint({contract.id, EVERY_DATASET}),
            )
            for contract in parts.registry
        ]
    )


GAPS = View(
    name="gaps",
    operation="listGaps",
    tool="gaps",
    summary="Hours that lack objects, and products that are silent or slow now; `complete` unless there are more.",
    filter=GapFilter,
    row=Gap,
    query=gaps,
    columns=("dataset", "product", "hour", "kind", "expected", "seen", "first_seen"),
    links={"hour": lambda gap: f"/units?{urlencode({'dataset': gap.dataset, 'since': rfc3339(gap.hour)})}"},
    end="complete",
)
DATASETS = View(
    name="datasets",
    operation="listDatasets",
    tool="datasets",
    summary="The datasets that are ingested here.",
    filter=Filter,
    row=IngestedDataset,
    query=_datasets,
)
