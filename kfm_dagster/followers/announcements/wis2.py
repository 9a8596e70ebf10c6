"""WIS2 Notification Messages (Manual on WIS, WMO-No. 1060, volume II).

Pure. Belongs here: the message of an Item. Does not belong here: MQTT topics, which the broker defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfm_dagster.catalog.assets import DATA_ASSET
from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.item import canonical
from kfm_dagster.catalog.layout import GEOJSON
from kfm_dagster.contracts.identity import rfc3339

CONFORMS_TO = "http://wis.wmo.int/spec/wnm/1/conf/core"
RELATIONS = {
    ChangeKind.CREATED: "canonical",
    ChangeKind.UPDATED: "http://def.wmo.int/def/rel/wnm/-/update",
    ChangeKind.WITHDRAWN: "http://def.wmo.int/def/rel/wnm/-/deletion",
}
"""Link relations of the kinds of change (the standard's requirement /req/core/links, E to G)."""
_GEOMETRIES = frozenset({"Point", "Polygon"})
"""Geometry types that the standard's schema accepts. Another type, and a geometry that is too long, become null."""


LARGEST_BYTES = 4096
"""Maximum bytes of a message (requirement /req/core/message_size)."""


def notification(
    change: ItemChange, *, kind: ChangeKind, event_id: str, collection: str, centre: str, href: str
) -> bytes:
    """Return the message; `href` is the Item's own address.

    The link with the relation of `kind` leads to the data if they have a public https address, otherwise to the Item.
    """
    item = change.item
    geometry = None if item is None else item["geometry"]
    message: dict[str, Any] = {
        "id": event_id,
        "type": "Feature",
        "conformsTo": [CONFORMS_TO],
        "geometry": geometry if geometry is not None and geometry["type"] in _GEOMETRIES else None,
        "properties": {
            "pubtime": rfc3339(change.changed_at),
            "data_id": f"{centre}/{collection}/{change.item_id}",
            "metadata_id": f"urn:wmo:md:{centre}:{collection}",
            # The objects remain in NOAA's buckets, so WIS2's caches need no copy of them.
            "cache": False,
            **_times(item),
        },
        "links": list(_links(item, RELATIONS[kind], href)),
    }
    body = canonical(message)
    return body if len(body) <= LARGEST_BYTES else canonical({**message, "geometry": None})


def _times(item: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Item's interval or, without one, its single time, None for a withdrawn Item."""
    properties = {} if item is None else item["properties"]
    interval = {name: properties.get(name) for name in ("start_datetime", "end_datetime")}
    return interval if all(interval.values()) else {"datetime": properties.get("datetime")}


def _links(item: Mapping[str, Any] | None, relation: str, href: str) -> Iterator[dict[str, Any]]:
    data = {} if item is None else item["assets"].get(DATA_ASSET, {})
    public = data.get("alternate", {}).get("https", {}).get("href")
    if public is None:
        yield {"rel": relation, "href": href, "type": GEOJSON}
        return
    size = {"length": data["file:size"]} if "file:size" in data else {}
    yield {"rel": relation, "href": public, "type": data["type"], **size}
    yield {"rel": "describedby", "href": href, "type": GEOJSON}
