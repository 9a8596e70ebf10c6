"""Types of arguments: names with shell completion, ids by a prefix, and whole numbers.

Belongs here: the types of the arguments and options that name a dataset, an error code or an id. Does not belong here:
whether the typed name exists (each command checks this); whether a prefix is long enough (`contracts/identity.py`); the
ids of Dagster's runs (`exports/explanations/explanation.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.contracts.identity import MATCHES_ASKED, whole_id
from kfm_dagster.contracts.issues import ERROR_CODES
from kfm_dagster.errors import KfmError
from kfm_dagster.storage.database import Database, Transaction
from kfm_dagster.typed_numbers import LARGEST

MOST_OFFERED = 50
"""Ids offered at a time: a longer list helps less than another typed character."""
_TYPED = re.compile(r"[0-9A-Za-z-]{1,64}")


class Named(click.types.StringParamType):
    """Text that completes to a name; `known` gets the typed text and returns possible names."""

    def __init__(self, name: str, known: Callable[[str], Iterable[str]]) -> None:
        self.name = name
        self.known = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Offer matching names; none if settings or database fail, which the command reports."""
        with suppress(KfmError, SQLAlchemyError, OSError):
            return [CompletionItem(name) for name in self.known(incomplete) if name.startswith(incomplete)]
        return []


class Id(Named):
    """An id of the database, typed as a prefix; `query` returns the ids that match."""

    def __init__(self, name: str, query: str) -> None:
        super().__init__(name, partial(_ids, query=query))
        self.query = query

    def whole(self, tx: Transaction, typed: str) -> str:
        """Return the id that begins with `typed`, or `typed` if no id does; several raise KfmError."""
        if not _TYPED.fullmatch(typed):
            return typed
        matches = tx.run(self.query, prefix=typed, limit=MATCHES_ASKED).scalars().all()
        return whole_id(typed, matches, what=self.name) or typed

    def whole_in(self, database: Database, typed: str) -> str:
        """Return the same as `whole`, in a snapshot of its own."""
        with database.snapshot() as tx:
            return self.whole(tx, typed)


def _ids(incomplete: str, *, query: str) -> list[str]:
    """Return the ids that begin with `incomplete`."""
    # Imported here, because only the shell's completion calls this function, and these imports are slow.
    from kfm_dagster.cli.session import opened_database  # noqa: PLC0415
    from kfm_dagster.settings import Settings  # noqa: PLC0415

    with opened_database(Settings.load()) as database, database.snapshot() as tx:
        return [str(row) for row in tx.run(query, prefix=incomplete, limit=MOST_OFFERED).scalars()]


def _datasets(_: str) -> Iterable[str]:
    from kfm_dagster.contracts.loader import ContractRegistry  # noqa: PLC0415 - see above
    from kfm_dagster.settings import Settings  # noqa: PLC0415

    return ContractRegistry.load(Settings.load().contracts_dir).contracts


class UtcDay(click.ParamType):  # type: ignore[type-arg]
    """A UTC day."""

    name = "YYYY-MM-DD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        """Return the day."""
        try:
            return date.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a day (2025-12-04)", param, ctx)


DAY = UtcDay()
DATASET = Named("dataset", _datasets)
DATASET_OR_ALL = Named("dataset", lambda incomplete: ["all", *_datasets(incomplete)])
ERROR_CODE = Named("error_code", lambda _: ERROR_CODES)
UNIT = Id("wal_id", "ids.wal_ids")
RUN = Named("run", lambda incomplete: ["latest", *_ids(incomplete, query="explanation.runs_beginning")])
REPLAY = Id("replay_id", "ids.replay_ids")
BACKFILL = Named("backfill_id", lambda incomplete: _ids(incomplete or "bf-", query="ids.replay_ids"))
REJECTED_MESSAGE = Id("message_id", "ids.rejected_message_ids")
COUNT = click.IntRange(0, LARGEST)
POSITIVE = click.IntRange(1, LARGEST)
"""Whole numbers without an upper bound other than LARGEST."""
