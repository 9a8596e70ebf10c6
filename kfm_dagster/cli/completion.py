"""What the shell completes beside commands and options: datasets, error codes, and the ids that the database has.

Belongs here: the types of the arguments and options that name such a thing. Does not belong here: whether what was
typed in the end exists; each command asks that itself, and says what it expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import click
from click.shell_completion import CompletionItem
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster.errors import KfmError

MOST_OFFERED = 50
"""Ids offered at a time: more is not a choice; another character narrows it down."""


class Named(click.ParamType[str]):
    """Text that names one of what `known` returns for its beginning."""

    def __init__(self, name: str, known: Callable[[str], Iterable[str]]) -> None:
        self.name = name
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        """Take the text as it is."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Offer what begins so; nothing where settings or database cannot be read: the command itself says why."""
        with suppress(KfmError, SQLAlchemyError, OSError):
            return [CompletionItem(one) for one in self.known(incomplete) if one.startswith(incomplete)]
        return []


def _ids(incomplete: str, *, query: str, beginning: str = "prefix") -> list[str]:
    """Run a statement that returns the ids which begin with what its parameter `beginning` gets."""
    # Only here: who types a command to the end does not wait for a database.
    from kfm_dagster.cli.session import opened_database  # noqa: PLC0415
    from kfm_dagster.settings import Settings  # noqa: PLC0415

    with opened_database(Settings.load()) as database, database.snapshot() as tx:
        return [str(one) for one in tx.run(query, **{beginning: incomplete}, limit=MOST_OFFERED).scalars()]


def _datasets(_: str) -> Iterable[str]:
    from kfm_dagster.contracts.loader import ContractRegistry  # noqa: PLC0415 - see above
    from kfm_dagster.settings import Settings  # noqa: PLC0415

    return ContractRegistry.load(Settings.load().contracts_dir).contracts


def _error_codes(_: str) -> Iterable[str]:
    from kfm_dagster.contracts.issues import ERROR_CODES  # noqa: PLC0415 - see above

    return ERROR_CODES


def _runs(incomplete: str) -> Iterable[str]:
    return ["latest", *_ids(incomplete, query="explanation.runs_beginning", beginning="beginning")]


DATASET = Named("dataset", _datasets)
DATASET_OR_ALL = Named("dataset", lambda incomplete: ["all", *_datasets(incomplete)])
ERROR_CODE = Named("error_code", _error_codes)
UNIT = Named("wal_id", partial(_ids, query="ids.wal_ids"))
RUN = Named("run", _runs)
REPLAY = Named("replay_id", partial(_ids, query="ids.replay_ids"))
BACKFILL = Named("backfill_id", lambda incomplete: _ids(incomplete or "bf-", query="ids.replay_ids"))
REJECTED_MESSAGE = Named("message_id", partial(_ids, query="ids.rejected_message_ids"))
