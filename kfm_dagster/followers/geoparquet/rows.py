"""Rows: STAC Items as an Arrow table (stac-geoparquet 1.0.0), and back to the same Items.

Properties are columns, `bbox` is a struct, times are timestamps, an object is a struct of its members. Two more columns
exist only if needed: `kfm:null` names the properties that are null, and `kfm:item` has the Item as text if the columns
cannot hold it exactly (a name with values of several types, a nested null). Pure. Does not belong here: the order of
rows (`order.py`), files (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import shapely

from kfm_dagster.catalog.assets import DATA_ASSET
from kfm_dagster.contracts.identity import rfc3339

Item = Mapping[str, Any]

TIMES = frozenset({
    "datetime", "start_datetime", "end_datetime", "created", "updated", "published", "unpublished", "expires",
})  # fmt: skip
"""Properties that are timestamps (STAC common metadata, timestamps extension)."""
OPEN = frozenset({"grib:layers", "cube:variables"})
"""Objects whose keys are data. They are stored as maps: as structs, HRRR and GFS would have thousands of columns."""
BBOX = ("xmin", "ymin", "xmax", "ymax")
"""Members of the struct `bbox` (GeoParquet 1.1, "Bounding Box Columns")."""
NULLS, WHOLE = "kfm:null", "kfm:item"

_MEMBERS = ("stac_version", "stac_extensions", "id", "collection", "links", "assets")
_KNOWN = frozenset({*_MEMBERS, "type", "bbox", "geometry", "properties"})
_RESERVED = frozenset({*_KNOWN, NULLS, WHOLE})
"""Names that the column of a property cannot have."""
TIME = pa.timestamp("us", tz="UTC")
_UNTYPED = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)
"""Errors that pyarrow raises for values without a common type."""


def to_table(items: Sequence[Item]) -> pa.Table:
    """Return a row for each Item, in their order. `to_items` restores every Item unchanged."""
    lossy: set[int] = set()
    columns: dict[str, pa.Array] = {
        "stac_version": pa.array([item.get("stac_version") for item in items], pa.string()),
        "stac_extensions": pa.array([item.get("stac_extensions") for item in items], pa.list_(pa.string())),
        "id": pa.array([item["id"] for item in items], pa.string()),
        "collection": pa.array([item.get("collection") for item in items], pa.string()),
        "bbox": pa.array(
            [None if (bbox := item.get("bbox")) is None else dict(zip(BBOX, bbox, strict=True)) for item in items],
            pa.struct([(name, pa.float64()) for name in BBOX]),
        ),
        "geometry": _geometries([item.get("geometry") for item in items], lossy),
        "links": _column([item.get("links") for item in items], lossy),
        "assets": _assets([item["assets"] for item in items], lossy),
    }
    for name, values in _by_name([item["properties"] for item in items]).items():
        if name in _RESERVED:
            lossy |= {position for position, value in enumerate(values) if value is not None}
        elif name in TIMES:
            columns[name] = _times(values, lossy)
        else:
            columns[name] = _field(name, values, lossy)
    nulls = [[name for name, value in item["properties"].items() if value is None] for item in items]
    texts = [orjson.dumps(item, option=orjson.OPT_SORT_KEYS) for item in items]
    lossy |= {
        position
        for position, (item, text) in enumerate(zip(items, texts, strict=True))
        if item.keys() - _KNOWN or text.count(b":null") > len(nulls[position]) + (item.get("geometry") is None)
    }
    if any(nulls):
        columns[NULLS] = pa.array([names or None for names in nulls], pa.list_(pa.string()))
    if lossy:
        columns[WHOLE] = pa.array(
            [text.decode() if position in lossy else None for position, text in enumerate(texts)], pa.string()
        )
    return pa.table(columns)


def to_items(table: pa.Table) -> list[dict[str, Any]]:
    """Return the Items of a table, in row order."""
    rows = table.drop_columns(["geometry"]).to_pylist(maps_as_pydicts="strict")
    shapes = shapely.to_geojson(shapely.from_wkb(table["geometry"].to_numpy()))
    items: list[dict[str, Any]] = []
    for row, shape in zip(rows, shapes, strict=True):
        whole = row.pop(WHOLE, None)
        if whole is not None:
            items.append(orjson.loads(whole))
        else:
            items.append(_item(row, None if shape is None else orjson.loads(shape)))
    return items


def merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables; the result has each column of any table."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except _UNTYPED:
        # A column has values of several types: convert the Items again.
        return to_table([item for table in tables for item in to_items(table)])


def without(table: pa.Table, item_ids: pa.Array) -> pa.Table:
    """Return the table without the Items of these ids."""
    return table.filter(pc.invert(pc.is_in(table["id"], value_set=item_ids)))


def _item(row: dict[str, Any], geometry: Any) -> dict[str, Any]:
    box, nulls = row.pop("bbox"), row.pop(NULLS, None) or ()
    members = {name: row.pop(name) for name in _MEMBERS}
    item = {
        "type": "Feature",
        "geometry": geometry,
        **{name: _present(value) for name, value in members.items() if value is not None},
        "properties": {
            **{name: _present(value) for name, value in row.items() if value is not None},
            **dict.fromkeys(nulls),
        },
    }
    return item if box is None else {**item, "bbox": [box[name] for name in BBOX]}


def _present(value: Any) -> Any:
    """Remove the null members that a struct adds to an object."""
    match value:
        case dict():
            return {name: _present(member) for name, member in value.items() if member is not None}
        case list():
            return [_present(member) for member in value]
        case datetime():
            return rfc3339(value)
        case _:
            return value


def _by_name(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, list[Any]]:
    """Turn objects into columns: the values of each name, None for objects without the name."""
    columns: dict[str, list[Any]] = {}
    for position, row in enumerate(rows):
        for name, value in (row or {}).items():
            if name not in columns:
                columns[name] = [None] * len(rows)
            columns[name][position] = value
    return columns


def _assets(values: Sequence[Mapping[str, Any]], lossy: set[int]) -> pa.Array:
    # Parquet has no struct without members. If no Item has an asset, the struct gets the member DATA_ASSET.
    by_key = _by_name(values) or {DATA_ASSET: [None] * len(values)}
    return _structs({key: _asset(rows, lossy) for key, rows in by_key.items()}, [False] * len(values))


def _asset(rows: Sequence[Mapping[str, Any] | None], lossy: set[int]) -> pa.Array:
    by_name = _by_name(rows) or {"href": [None] * len(rows)}
    fields = {name: _field(name, values, lossy) for name, values in by_name.items()}
    return _structs(fields, [row is None for row in rows])


def _structs(fields: Mapping[str, pa.Array], absent: Sequence[bool]) -> pa.Array:
    return pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=pa.array(absent, pa.bool_()))


def _field(name: str, values: Sequence[Any], lossy: set[int]) -> pa.Array:
    if name in OPEN and all(value is None or isinstance(value, dict) for value in values):
        try:
            kind = _kind([member for value in values for member in (value or {}).values()])
            pairs = [None if value is None else list(value.items()) for value in values]
            return pa.array(pairs, pa.map_(pa.string(), kind))
        except _UNTYPED:
            pass
    return _column(values, lossy)


def _column(values: Sequence[Any], lossy: set[int]) -> pa.Array:
    """Return values in their common type; without one, as JSON, with their positions in `lossy`."""
    try:
        return pa.array(values, _kind(values))
    except _UNTYPED:
        lossy |= {position for position, value in enumerate(values) if value is not None}
        return pa.array([None if value is None else orjson.dumps(value).decode() for value in values], pa.string())


def _kind(values: Sequence[Any]) -> pa.DataType:
    return _storable(pa.infer_type(values))


def _storable(kind: pa.DataType) -> pa.DataType:
    """Return the type in Parquet, which is text for a column of nulls.

    Raises ArrowInvalid for an object without members.
    """
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_storable(kind.value_type))
    if pa.types.is_struct(kind):
        if kind.num_fields == 0:
            raise pa.ArrowInvalid("an object without members")
        return pa.struct([pa.field(member.name, _storable(member.type)) for member in kind])
    return kind


def _times(values: Sequence[Any], lossy: set[int]) -> pa.Array:
    moments: list[datetime | None] = []
    for position, value in enumerate(values):
        moment = None
        if value is not None:
            try:
                moment = datetime.fromisoformat(value)
                exact = rfc3339(moment) == value
            except (ValueError, TypeError):
                moment, exact = None, False
            if not exact:
                lossy.add(position)
        moments.append(moment)
    return pa.array(moments, TIME)


def _geometries(values: Sequence[Any], lossy: set[int]) -> pa.Array:
    """Return geometries as ISO WKB. Equal geometries, which most Items have, are converted once."""
    texts = [None if value is None else orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for value in values]
    unique = list(dict.fromkeys(text for text in texts if text is not None))
    shapes = shapely.from_geojson(unique, on_invalid="ignore")
    binary = dict(zip(unique, shapely.to_wkb(shapes, flavor="iso"), strict=True))
    back = dict(zip(unique, shapely.to_geojson(shapes), strict=True))
    differing = {text for text in unique if back[text] is None or orjson.loads(back[text]) != orjson.loads(text)}
    lossy |= {position for position, text in enumerate(texts) if text in differing}
    return pa.array([None if text is None else binary[text] for text in texts], pa.binary())
