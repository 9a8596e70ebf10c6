"""Datacube fields (extension 2.2.0) of a GRIB2 object: cells, valid times, levels.

Belongs here: from a grid and the lines of an index to `cube:dimensions` and `cube:variables`. Does not belong here: the
index (`grib_index.py`), the grid (`grib2_grids.py`).

A variable occurs once, however many messages it has: HRRR's files of native levels have 1,100 messages of some 60
variables. `dimension_domains`, a field of stactools-noaa-hrrr, has the levels of a variable. Levels are the index's own
texts, so that variable, level and step together are the name of a field in `grib:layers`. The probabilities of a
variable are another variable, `TMP prob`, because their values are in percent. Each aerosol of a quantity is a variable
of its own, `MASSDEN aerosol=Dust dry:aerosol_size <2.5e-06`, because several aerosols share a level. `time_bounds` has
begin and end of each window of a variable (accumulation, average or extreme), because the Item's time does not cover
windows that reach back to the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.readers.base import Layer
from kfm_dagster.readers.grib2_grids import Grid
from kfm_dagster.readers.grib2_properties import named
from kfm_dagster.readers.grib2_sections import Span
from kfm_dagster.readers.grib_index import spans_of
from kfm_dagster.readers.stored_values import COLUMNS, ROWS, horizontal

TIME, LEVEL = "valid_time", "level"
"""Names of the dimensions beside rows and columns, as in cfgrib and stactools-noaa-hrrr."""
PROBABILITY = " prob"
"""End of the name of a variable of probabilities; in index lines, the qualifier begins with the same text."""
AEROSOL = "aerosol="
"""Beginning of the qualifier of an aerosol's fields."""
MAX_TIMES = 96
"""Maximum valid times in an Item, and maximum windows of a variable; sub-hourly files have 4, air quality's 72."""
MAX_SHARED = 128
"""Maximum levels and windows of a variable that is cached for the next object. HRRR has 50 native levels; a hostile
index may have thousands."""
MAX_CHARACTERS = 65_536
"""Maximum characters of names and levels in an Item, which must stay small. HRRR's native levels have 20,000."""


def cube(grid: Grid, layers: Sequence[Layer], *, reference: datetime, valid: Collection[datetime]) -> dict[str, Any]:
    """Return an object's datacube fields; `valid` has the valid times, or the ends of windows.

    Without layers there are no variables, because the first message does not describe the other messages.
    """
    dimensions = horizontal(transform=grid.transform, shape=grid.shape, wkt2=grid.wkt2)
    if grid.parallels is not None:
        dimensions[ROWS]["step"] = None  # irregularly spaced (datacube extension 2.2.0)
    steps = {layer.step for layer in layers}
    spans = spans_of(steps, reference)
    dimensions[TIME] = _times(valid, listed=len(spans) == len(steps))
    levels, windows = _levels(layers, spans)
    if sum(len(name) + sum(map(len, level_texts)) for name, level_texts in levels.items()) > MAX_CHARACTERS:
        levels = {}
    if levels:
        dimensions[LEVEL] = {"type": "level", "values": list(dict.fromkeys(chain.from_iterable(levels.values())))}
    variables = {name: _shared(name, tuple(domain), tuple(windows.get(name, ()))) for name, domain in levels.items()}
    return {"cube:dimensions": dimensions} | ({"cube:variables": variables} if variables else {})


def _levels(
    layers: Sequence[Layer], spans: Mapping[str, Span]
) -> tuple[Mapping[str, Iterable[str]], Mapping[str, Iterable[Span]]]:
    """Return the distinct levels and windows of each variable, in their order."""
    levels_of: dict[str, dict[str, None]] = {}
    windows: dict[str, dict[Span, None]] = {}
    for variable, level, step, qualifier, _, _ in layers:
        name = variable + PROBABILITY if qualifier.startswith("prob") else variable
        if qualifier.startswith(AEROSOL):
            name = f"{variable} {qualifier}"
        levels_of.setdefault(name, {})[level] = None
        if (span := spans.get(step)) and span.start < span.end:
            windows.setdefault(name, {})[span] = None
    return levels_of, windows


def _shared(name: str, levels: tuple[str, ...], windows: tuple[Span, ...]) -> Mapping[str, Any]:
    """Return a Variable Object, shared by a product's objects: HRRR's 100 variables take 80 kB."""
    make = _variable if len(levels) + len(windows) <= MAX_SHARED else _variable.__wrapped__
    return make(name, levels, windows)


@lru_cache(maxsize=512)
def _variable(name: str, levels: tuple[str, ...], windows: tuple[Span, ...]) -> Mapping[str, Any]:
    """Return a Variable Object, without unit and description if the table lacks the parameter."""
    variable: dict[str, Any] = {
        "dimensions": [TIME, LEVEL, ROWS, COLUMNS],
        "type": "data",
        "dimension_domains": {LEVEL: [*levels]},
    }
    if bounds := [[_text(window.start), _text(window.end)] for window in windows]:
        variable["time_bounds"] = bounds[:MAX_TIMES]
    quantity_name, _, aerosol = name.partition(f" {AEROSOL}")
    parameter = named(quantity_name.removesuffix(PROBABILITY))
    if name.endswith(PROBABILITY):
        quantity = parameter.name if parameter else name.removesuffix(PROBABILITY)
        return {**variable, "unit": "%", "description": f"Probability of {quantity}"}
    if parameter is None:
        return variable
    description = f"{parameter.name} of {aerosol}" if aerosol else parameter.name
    return {**variable, "unit": parameter.unit, "description": description}


def _times(valid: Collection[datetime], *, listed: bool) -> dict[str, Any]:
    """Return the valid times; only their bounds if they are too many, or if a step is unknown."""
    times = [_text(moment) for moment in sorted(valid)]
    dimension: dict[str, Any] = {"type": "temporal", "extent": [times[0], times[-1]]}
    return {**dimension, "values": times} if listed and len(times) <= MAX_TIMES else dimension


def _text(moment: datetime) -> str:
    return rfc3339(moment, timespec="seconds")
