"""Options of commands that list a view: those of its filter, which the command gets as `wanted`. Nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

from kfm_dagster.cli.completion import DATASET, ERROR_CODE, REJECTED_MESSAGE
from kfm_dagster.cli.option_groups import option_group
from kfm_dagster.contracts.filters import Filter
from kfm_dagster.views.view import View

_NAMES = {"code": "--error-code"}
_COMPLETED: Mapping[str, click.ParamType[str]] = {
    "dataset": DATASET,
    "code": ERROR_CODE,
    "message": REJECTED_MESSAGE,
}
limit_option = click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many."
)
rows_as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")


def filter_options(view: View) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a view's filter; a wrong value raises BadFilterError."""
    options = [_option(name, schema) for name, schema in view.filter.parameters().items()]
    return partial(option_group, options=options, name="wanted", value_of=partial(_filter, view.filter))


def _filter(kind: type[Filter], **given: Any) -> Filter:
    texts = {name: str(value).lower() if value is True else str(value) for name, value in given.items() if value}
    return kind.of_query(texts.items())


def _option(name: str, schema: Mapping[str, Any]) -> Callable[[Any], Any]:
    option = partial(click.option, _NAMES.get(name, f"--{name.replace('_', '-')}"), name, help=schema["description"])
    if schema["type"] == "boolean":
        return option(is_flag=True)
    if "enum" in schema:
        return option(type=click.Choice(schema["enum"]))
    if schema["type"] == "integer":
        return option(type=click.IntRange(schema["minimum"], schema["maximum"]))
    return option(type=_COMPLETED.get(name))
