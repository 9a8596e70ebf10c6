"""Commands that list a view, options of its filter, and groups of options as one argument.

Does not belong here: the form of a table (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET, ERROR_CODE, REJECTED_MESSAGE, UNIT
from kfm_dagster.cli.session import opened_pipeline
from kfm_dagster.cli.tables import list_command
from kfm_dagster.contracts.filters import BadFilterError, Filter, OfDataset, texts
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.plural import counted
from kfm_dagster.settings import Settings
from kfm_dagster.views.view import View

_NAMES = {"code": "--error-code", "message_id": "--message", "since": "--from", "until": "--to"}
_COMPLETED: Mapping[str, click.ParamType[str]] = {
    "dataset": DATASET,
    "code": ERROR_CODE,
    "message": REJECTED_MESSAGE,
    "wal_id": UNIT,
}
limit_option = click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Maximum number of rows."
)


def lists(view: View, *, next_step: str = "") -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Return a decorator that turns a function with only a help text into a view's list command."""

    def decorated(command: Callable[[], None]) -> Callable[..., None]:
        @filter_options(view)
        @limit_option
        @list_command(*view.columns)
        @wraps(command)
        def listed(*, row_filter: Filter, limit: int) -> Sequence[Any]:
            if isinstance(row_filter, OfDataset):
                # Checked before the ledger is opened, so a misspelt dataset is reported even without a ledger.
                require_dataset(row_filter.dataset)
            with opened_pipeline(read_only=True) as pipeline:
                if wal_id := getattr(row_filter, "wal_id", None):
                    row_filter = row_filter.model_copy(update={"wal_id": UNIT.whole_in(pipeline.database, wal_id)})
                rows = view.query(pipeline, row_filter, None, limit + 1).rows
            more = f"the first {counted(limit, 'row')}; more: --limit, or a narrower filter"
            if note := more if len(rows) > limit else next_step if rows else "":
                click.get_current_context().call_on_close(partial(click.echo, note, err=True))
            return rows[:limit]

        return listed

    return decorated


def require_dataset(dataset: str | None) -> None:
    """Raise ContractError for a dataset without a contract; needs no database."""
    if dataset is not None:
        _ = ContractRegistry.load(Settings.load().contracts_dir)[dataset]


def filter_options(view: View) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a view's filter to a command; a wrong value raises BadFilterError."""
    options = [_option(name, schema) for name, schema in view.filter.parameters().items()]
    return partial(option_group, options=options, name="row_filter", value_of=partial(_filter, view.filter))


def _filter(kind: type[Filter], **typed: Any) -> Filter:
    try:
        return kind.of_query(texts(typed).items())
    except BadFilterError as error:
        name, is_value, value = str(error.observed).partition("=")
        observed = f"{_option_name(name)} {value}" if is_value else error.observed
        raise BadFilterError("not a valid filter", observed=observed, expected=error.expected) from None


def _option_name(name: str) -> str:
    return _NAMES.get(name, f"--{name.replace('_', '-')}")


def _option(name: str, schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    option = partial(click.option, _option_name(name), name, help=schema["description"])
    if schema["type"] == "boolean":
        return option(is_flag=True)
    if "enum" in schema:
        return option(type=click.Choice(schema["enum"]))
    if schema["type"] == "integer":
        return option(type=click.IntRange(schema["minimum"], schema["maximum"]))
    return option(type=_COMPLETED.get(name))


def option_group(
    command: Callable[..., Any],
    options: Sequence[Callable[[Any], Any]],
    name: str,
    value_of: Callable[..., Any],
) -> Callable[..., Any]:
    """Add options to a command; `value_of` makes the argument `name` from their values."""

    def bare() -> None: ...

    for option in options:
        option(bare)
    names = [str(parameter.name) for parameter in getattr(bare, "__click_params__", ())]

    @wraps(command)
    def grouped(**arguments: Any) -> Any:
        values = {option_name: arguments.pop(option_name) for option_name in names}
        return command(**{name: value_of(**values)}, **arguments)

    for option in reversed(options):
        option(grouped)
    return grouped
