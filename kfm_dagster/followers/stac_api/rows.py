"""Items and Collections in the form that pgstac stores and returns.

pgstac merges the Collection's `item_assets` into each Item, so a member that the Item lacks is marked as absent. All
other members are stored unchanged, even nulls (`proj:code` of a grid without code); pgstac's own functions would drop
nulls.

Pure. Does not belong here: statements (`follower.py`, `comparison.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from kfm_dagster.catalog.changes import ItemChange
from kfm_dagster.catalog.item import canonical
from kfm_dagster.contracts.model import DatasetContract

ABSENT = "𒍟※"
"""Marker of pgstac's hydration for "not in this Item" (pypgstac's DO_NOT_MERGE_MARKER)."""
_COLUMNS = frozenset({"id", "collection", "geometry", "type"})
"""Members of an Item that pgstac stores in separate columns, or does not store because all Items have the same."""
_BASE_ITEM = "pgstac:base_item"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""Escapes of COPY's text format."""
_MADE_BY_THE_API = frozenset({"self", "root", "parent", "child", "collection", "item", "items"})


def api_collection(content: bytes, contract: DatasetContract) -> dict[str, Any]:
    """Return the Collection of the static catalog without links between its files."""
    collection: dict[str, Any] = orjson.loads(content)
    if collection.get("id") != contract.stac.collection:
        raise ValueError(f"the Collection is {collection.get('id')!r}")
    return {**collection, "links": _links(collection)}


def stage_line(change: ItemChange, base: Mapping[str, Any], number: int | None) -> str:
    """Return an Item as a line of COPY for `kfm_stage`.

    `base` has the members that a collection's Items share; `number` is the base's id, None for the first base.
    """
    item = change.item
    if item is None:
        return _line(change.item_id, str(change.change_id), None, None, None, None, None)
    properties = item["properties"]
    geometry = item.get("geometry")
    return _line(
        change.item_id,
        str(change.change_id),
        None if geometry is None else canonical(geometry).decode(),
        properties.get("start_datetime") or properties["datetime"],
        properties.get("end_datetime") or properties["datetime"],
        canonical(kept_content(item, base, number)).decode(),
        canonical({"change_id": change.change_id, "partition": change.partition}).decode(),
    )


def kept_content(item: Mapping[str, Any], base: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    """Return `items.content` of an Item; it contains a geometry only if the geometry is null."""
    content = {name: value for name, value in item.items() if name not in _COLUMNS}
    content["links"] = _links(item)
    if item.get("geometry") is None:
        content["geometry"] = None
    common = {name: value for name, value in base.items() if name not in _COLUMNS}
    marked: dict[str, Any] = _marked(common, content)
    return marked if number is None else {**marked, _BASE_ITEM: number}


def answered_item(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Item that a STAC API builds from pgstac's answer (`content_nonhydrated`)."""
    base = {name: value for name, value in (answer.get(_BASE_ITEM) or {}).items() if value is not None}
    item: dict[str, Any] = _merged(base, {name: value for name, value in answer.items() if name != _BASE_ITEM})
    return item


def as_floats(value: Any) -> Any:
    """Return the same JSON with every number as a float: PostGIS writes -105 for -105.0."""
    if isinstance(value, dict):
        return {name: as_floats(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_floats(member) for member in value]
    return float(value) if type(value) is int else value


def _links(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the links that are valid outside of the catalog's files, except the API's own."""
    return [
        link for link in document["links"] if link["rel"] not in _MADE_BY_THE_API and "://" in str(link.get("href"))
    ]


def _marked(base: Any, value: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(value, Mapping):
        absent = {name: ABSENT for name in base if name not in value}
        return {name: _marked(base.get(name), entry) for name, entry in value.items()} | absent
    if isinstance(base, list) and isinstance(value, list) and len(base) == len(value):
        return [_marked(entry, counterpart) for entry, counterpart in zip(base, value, strict=True)]
    return value


def _merged(base: Any, value: Any) -> Any:
    if isinstance(value, dict):
        common = base if isinstance(base, dict) else {}
        own = {name: _merged(common.get(name), entry) for name, entry in value.items() if entry != ABSENT}
        return {name: entry for name, entry in common.items() if name not in value} | own
    if isinstance(base, list) and isinstance(value, list) and len(base) == len(value):
        return [_merged(entry, counterpart) for entry, counterpart in zip(base, value, strict=True)]
    return value


def _line(*values: str | None) -> str:
    return "\t".join("\\N" if value is None else value.translate(_ESCAPES) for value in values) + "\n"
