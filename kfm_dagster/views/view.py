"""A view: rows, filter and query, the source of commands, pages, API and tools.

Belongs here: the common parts of views. Does not belong here: the views (the other modules), or their display.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Protocol, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel, Field

from kfm_dagster.contracts.filters import BadFilterError, Filter
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.storage.database import Database

T = TypeVar("T")

BASE = "/api/v1"
PAGE = 100
MOST_OF_A_PAGE = 1_000


class Parts(Protocol):
    """The inputs of the views' queries."""

    @property
    def database(self) -> Database:
        """The ledger's database."""

    @property
    def registry(self) -> ContractRegistry:
        """The contracts of the datasets."""

    @property
    def clock(self) -> Callable[[], datetime]:
        """The time now, in UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Rows in the view's order; `after` is the start of the next page, None on the last page."""

    rows: Sequence[Any]
    after: str | None = None


class Paging(Filter):
    """Which page of a list."""

    limit: int = Field(PAGE, ge=1, le=MOST_OF_A_PAGE, description="Maximum number of rows.")
    after: str | None = Field(None, description="Start of the page, from the `next` of the page before.")


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A list of rows; `query` takes a filter, the page's start and a limit.

    `name` is the list's path and key in the API. `end` is the answer's member after the rows: the address of the next
    page, or whether the rows are complete. `columns` are the columns of tables, the most important first; `links` are
    the console's pages, by column; `tool` and `operation` are the view's names for assistants and clients. A view
    without a name is only for commands and pages.
    """

    name: str = ""
    operation: str = ""
    tool: str | None = None
    summary: str
    filter: type[Filter] = Filter
    row: type[Any]
    query: Callable[[Parts, Any, str | None, int], Page]
    columns: Sequence[str] = ()
    links: Mapping[str, Callable[[Any], str | None]] = field(default_factory=dict)
    end: Literal["next", "complete"] | None = None

    def answer(self, parts: Parts, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return a page as JSON values. Raises BadFilterError, and KfmError for an unknown dataset."""
        of_page = {
            name: value for name, value in arguments.items() if self.end == "next" and name in Paging.model_fields
        }
        row_filter = self.filter.of_query((name, value) for name, value in arguments.items() if name not in of_page)
        paging = Paging.of_query(of_page.items())
        page = self.query(parts, row_filter, paging.after, paging.limit if self.end == "next" else MOST_OF_A_PAGE)
        answer: dict[str, Any] = {self.name: [json_row(row) for row in page.rows]}
        if self.end == "complete":
            answer["complete"] = page.after is None
        if self.end == "next":
            query = urlencode([*row_filter.query(), ("limit", paging.limit), ("after", page.after or "")])
            answer["next"] = f"{BASE}/{self.name}?{query}" if page.after else None
        return answer

    @property
    def path(self) -> str:
        """Path of the list in the API, below BASE."""
        return f"/{self.name}"

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """The JSON Schema of each parameter, by name."""
        return self.filter.parameters() | (Paging.parameters() if self.end == "next" else {})


def place_of(after: str | None, shape: re.Pattern[str], make: Callable[..., T]) -> T | None:
    """Return a page's start, built by `make` from groups of `shape`; None for the first page.

    Raises BadFilterError.
    """
    if after is None:
        return None
    if match := shape.fullmatch(after):
        with suppress(ValueError):  # a date that does not exist
            return make(*match.groups())
    raise BadFilterError(observed=f"after={after[:80]!r}", expected="the value in the `next` of the page before")


def require_contract(parts: Parts, dataset: str | None) -> None:
    """Raise ContractError for a dataset without a contract."""
    if dataset is not None:
        _ = parts.registry[dataset]


def value_of(row: Any, name: str) -> Any:
    """Return a row's value in a column."""
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def json_row(row: Any) -> dict[str, Any]:
    """Return a mapping, dataclass or model, and nested rows, as JSON values; times by RFC 3339."""
    if isinstance(row, BaseModel):
        return row.model_dump(mode="json")
    values = row if isinstance(row, Mapping) else {field.name: getattr(row, field.name) for field in fields(row)}
    return {name: _json_value(value) for name, value in values.items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping | BaseModel) or is_dataclass(value):
        return json_row(value)
    return [_json_value(part) for part in value] if isinstance(value, list | tuple) else value
