"""Names of fields: the part of an object that a field's name and level refer to.

A field of GRIB2 is named as in its index, `TMP:2 m above ground`; a variable of NetCDF by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

from kfm_dagster.catalog.assets import DATA_ASSET
from kfm_dagster.errors import UnknownNameError

Item: TypeAlias = Mapping[str, Any]
REFERENCE = "forecast:reference_datetime"
"""Property of a forecast: the time of its run (STAC forecast extension)."""
MOST_NAMES = 10
"""Maximum names that an error lists."""
_STEP = re.compile(r" (?:anl|[\d-]+ (?:min|hour|day|month|year) .*)$")
"""End of a field's name in its index: the time of the forecast."""


def layers_of(item: Item) -> Mapping[str, Mapping[str, int]]:
    """Return the byte ranges of an Item's GRIB2 fields by name; empty without an index."""
    return item["assets"][DATA_ASSET].get("grib:layers", {})  # type: ignore[no-any-return]


def variables_of(item: Item) -> Mapping[str, Mapping[str, Any]]:
    """Return the variables of an Item by name (STAC datacube extension)."""
    return item["properties"].get("cube:variables", {})  # type: ignore[no-any-return]


def matches(item: Item, field: str | None, level: str | None = None) -> int:
    """Return how many fields of an Item's object a name refers to; 1 without a name."""
    return 1 if field is None else len(_matches(item, field, level))


def layer(item: Item, field: str | None, level: str | None = None) -> str:
    """Return the name of the only layer or variable that a field's name and level refer to.

    `field` None refers to all of them. Raises UnknownNameError with the nearest names unless exactly one matches.
    """
    names = list(layers_of(item) or variables_of(item))
    named = names if field is None else _matches(item, field, level)
    return only(item, None if field is None else _words(field, level), named, names)


def only(item: Item, wanted: str | None, named: Sequence[str], names: Sequence[str]) -> str:
    """Return the only one of the names that `wanted` refers to; None refers to all names.

    Raises UnknownNameError with the nearest of all names if `wanted` refers to none or to several of them.
    """
    if len(named) == 1:
        return named[0]
    near = named or get_close_matches(wanted or "", names, n=5, cutoff=0.4) or names
    count = f"{len(named)} fields{' of this name' if wanted else ''}" if named else "no such field"
    raise UnknownNameError(
        f"{item['id']} has {count}",
        observed=wanted or "no name of a field",
        expected=f"one of {listed(item, near)}" if near else None,
        next_step=f"name a field: field={json.dumps(spelled(item, near[0]))}" if near else None,
    )


def listed(item: Item, names: Sequence[str]) -> str:
    """Return the first MOST_NAMES names of an Item's fields as a text."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(spelled(item, name) for name in names[:MOST_NAMES]) + more


def spelled(item: Item, name: str) -> str:
    """Return a layer's name as `TMP:2 m above ground`, with its forecast time if ambiguous."""
    if name not in layers_of(item):
        return name
    short = _STEP.sub("", name)
    return (short if len(_matches(item, short, None)) == 1 else name).replace(" ", ":", 1)


def opening(item: Item, address: str) -> str:
    """Return the line of Python that opens an Item, or the first of its layers, by address."""
    layers = list(layers_of(item))
    field = f", field={json.dumps(spelled(item, layers[0]))}" if len(layers) > 1 else ""
    return f"kfm.open({json.dumps(address)}{field})"


def _matches(item: Item, field: str, level: str | None) -> list[str]:
    wanted = _words(field, level)
    # `_words` replaces colons in the names of layers, too, because the names of probabilities contain colons.
    if layers := {name: _words(name, None) for name in layers_of(item)}:
        whole = [name for name, words in layers.items() if words == wanted]
        # A layer's whole name continues with its forecast time, and the member of an ensemble.
        return whole or [name for name, words in layers.items() if words.startswith(wanted + " ")]
    return [field] if field in variables_of(item) else []


def _words(field: str, level: str | None) -> str:
    return " ".join((field.replace(":", " "), *([level] if level else [])))
