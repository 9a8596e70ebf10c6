"""A view: which rows, by which filter and query. Commands, pages, the JSON API and the assistant's tools come of it.

Belongs here: what all views have in common. Does not belong here: the views (the other modules), how a face shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database

PAGE = 100
MOST_OF_A_PAGE = 1_000
MOST_DAYS = 366


class Parts(Protocol):
    """What the queries of views read."""

    @property
    def database(self) -> Database:
        """The ledger's."""

    @property
    def registry(self) -> ContractRegistry:
        """The contracts of the datasets."""

    @property
    def clock(self) -> Callable[[], datetime]:
        """The time now, in UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Rows in the view's order; with `after`, where the next page begins, there may be more."""

    rows: Sequence[Any]
    after: str | None = None
