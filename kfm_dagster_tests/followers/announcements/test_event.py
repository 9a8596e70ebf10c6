"""What an event says, in each form, held against the published schemas."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.validation import _validators
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.announcements.event import ROOM_BYTES, EventWriter, ItemReference
from kfm_dagster.followers.announcements.plan import AnnouncementPlan
from kfm_dagster.followers.announcements.wis2 import LARGEST_BYTES
from kfm_dagster_tests.catalog.envelopes import box, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.followers.announcements.changes import TEXT, item_of
from kfm_dagster_tests.followers.changes import change
from kfm_dagster_tests.schemas import json_schema

HERE, ROOT = Path(__file__).resolve().parent, Path(__file__).resolve().parents[3]
SOURCE = "urn:kfm:nodd:catalog"
MAX_BYTES = 16 * 1024
WIS2 = TEXT.replace("{name", "{form: wis2, centre: us-example, name")
OVER_THE_ANTIMERIDIAN = goes(0, bbox=(170.0, -10.0, -170.0, 10.0))


def schema(name: str) -> Any:
    content = json.loads((HERE / f"{name}.schema.json").read_text(encoding="utf-8"))
    return jsonschema_rs.validator_for(content, validate_formats=True)


CLOUDEVENT, NOTIFICATION = schema("cloudevents"), schema("wis2-notification-message")


def writer(text: str = TEXT, *, catalog_url: str = "catalog", **more: Any) -> EventWriter:
    plan = AnnouncementPlan.parse(text)
    return EventWriter(plan, plan.subscriptions[0].model_copy(update=more), catalog_url=catalog_url)


def written(one: EventWriter, what: ItemChange, kind: ChangeKind | None = None) -> dict[str, Any]:
    event = one.write("noaa-goes-abi", what, kind or what.kind)
    assert len(event.body) <= one.subscription.max_bytes - ROOM_BYTES
    found: dict[str, Any] = json.loads(event.body)
    return found


@pytest.mark.clause("OPR-22")
@pytest.mark.parametrize("envelope", [goes(0), hrrr(), nexrad(), OVER_THE_ANTIMERIDIAN], ids=lambda one: one.dataset)
@pytest.mark.parametrize("kind", list(ChangeKind))
def test_an_event_is_a_cloudevent_with_the_item_as_the_catalog_has_it(
    contracts: ContractRegistry, envelope: Envelope, kind: ChangeKind
) -> None:
    item = item_of(contracts, envelope)
    event = written(writer(), change(7, item, kind=kind))
    CLOUDEVENT.validate(event)
    assert (event["type"], event["source"]) == (f"kfm.nodd.item.{kind}", SOURCE)
    assert (event["subject"], event["collection"]) == (f"noaa-goes-abi/{item['id']}", "noaa-goes-abi")
    assert (event["time"], event["sequence"]) == ("2025-12-03T12:00:07.000000Z", "0000000000000000007")
    assert uuid.UUID(event["id"]).version == 8
    if kind is ChangeKind.WITHDRAWN:
        assert event["data"] == {"collection": "noaa-goes-abi", "id": item["id"]}
        return
    assert event["datacontenttype"] == "application/geo+json"
    # The profile has the links of the catalog's own files relative.
    _validators()["item"][0].validate(event["data"])
    assert {**event["data"], "links": item["links"]} == item


def test_links_of_an_item_lead_somewhere_from_outside_of_the_catalog(contracts: ContractRegistry) -> None:
    item = item_of(contracts)
    folder = f"https://data.example.org/stac/{item['collection']}"
    own = f"{folder}/2025/2025-12-03/{item['id']}.json"
    links = {one["rel"]: one["href"] for one in written(writer(), change(1, item))["data"]["links"]}
    assert links == {
        "root": "https://data.example.org/stac/catalog.json",
        "collection": f"{folder}/collection.json",
        "parent": f"{folder}/2025/2025-12-03/catalog.json",
        "self": own,
    }
    unplaced = TEXT.replace("catalog: https://data.example.org/stac", "")
    on_s3 = written(writer(unplaced, catalog_url="s3://bucket/stac"), change(1, item))["data"]["links"]
    assert on_s3[-1]["href"] == own.replace("https://data.example.org/stac", "s3://bucket/stac")
    assert written(writer(unplaced), change(1, item))["data"] == item


@pytest.mark.clause("OPR-22")
def test_of_an_item_that_is_too_large_the_event_has_the_address(contracts: ContractRegistry) -> None:
    one = writer(max_bytes=MAX_BYTES)
    empty = writer().write("noaa-goes-abi", change(1, item_of(contracts, filler="")), ChangeKind.CREATED)
    room = MAX_BYTES - ROOM_BYTES - len(empty.body)
    assert written(one, change(1, item_of(contracts, filler="x" * room)))["data"]["type"] == "Feature"
    larger = change(1, item_of(contracts, filler="x" * (room + 1)))
    event = written(one, larger)
    CLOUDEVENT.validate(event)
    assert event["dataschema"] == "urn:kfm:nodd:item-reference:v1"
    assert event["data"]["href"] == f"https://data.example.org/stac/{larger.path}"
    published = json.loads((ROOT / "docs" / "spec" / "item-reference.schema.json").read_text(encoding="utf-8"))
    assert published == json_schema(ItemReference, urn="kfm:nodd:item-reference:v1")
    jsonschema_rs.validator_for(published).validate(event["data"])
    unplaced = TEXT.replace("catalog: https://data.example.org/stac", "")
    huge = change(1, item_of(contracts, filler="x" * MAX_BYTES))
    assert written(writer(unplaced, max_bytes=MAX_BYTES), huge)["data"]["href"] == larger.path


@pytest.mark.clause("OPR-22")
def test_the_same_change_has_the_same_id_for_every_subscription_and_no_other_change_has_it(
    contracts: ContractRegistry,
) -> None:
    item, other = item_of(contracts), item_of(contracts, goes(1))
    base = change(1, item)
    assert writer().event_id("c", base, base.kind) == writer(WIS2).event_id("c", base, base.kind)
    # Pinned: an id that another release makes otherwise would have every receiver take what it has for new.
    assert writer().event_id("c", change(1, {**item, "id": "i"}, kind=ChangeKind.WITHDRAWN), ChangeKind.WITHDRAWN) == (
        "c5f6a551-13fe-8e31-a14b-cb57c668cb01"
    )
    ids = {
        writer().event_id("c", base, ChangeKind.CREATED),
        writer().event_id("c", base, ChangeKind.UPDATED),
        writer().event_id("d", base, ChangeKind.CREATED),
        writer().event_id("c", change(2, item), ChangeKind.CREATED),
        writer().event_id("c", change(1, other), ChangeKind.CREATED),
        writer(TEXT.replace("catalog:", "source: urn:other\ncatalog:")).event_id("c", base, ChangeKind.CREATED),
    }
    assert len(ids) == 6


RELATIONS = [
    (ChangeKind.CREATED, "canonical"),
    (ChangeKind.UPDATED, "http://def.wmo.int/def/rel/wnm/-/update"),
    (ChangeKind.WITHDRAWN, "http://def.wmo.int/def/rel/wnm/-/deletion"),
]


@pytest.mark.clause("OPR-22")
@pytest.mark.parametrize("envelope", [goes(0), hrrr(), nexrad(), OVER_THE_ANTIMERIDIAN], ids=lambda one: one.dataset)
@pytest.mark.parametrize(("kind", "relation"), RELATIONS)
def test_a_wis2_message_is_one_by_its_schema(
    contracts: ContractRegistry, envelope: Envelope, kind: ChangeKind, relation: str
) -> None:
    item = item_of(contracts, envelope)
    what = change(7, item, kind=kind)
    message = written(writer(WIS2), what)
    NOTIFICATION.validate(message)
    assert message["id"] == writer().event_id("noaa-goes-abi", what, kind)
    assert message["properties"]["data_id"] == f"us-example/noaa-goes-abi/{item['id']}"
    own = f"https://data.example.org/stac/{what.path}"
    if kind is ChangeKind.WITHDRAWN:
        assert message["geometry"] is None
        assert message["links"] == [{"rel": relation, "href": own, "type": "application/geo+json"}]
        return
    plain = item["geometry"]["type"] == "Polygon"
    assert message["geometry"] == (item["geometry"] if plain else None)
    first, second = message["links"]
    assert (first["rel"], first["length"]) == (relation, 4_000_123)
    assert first["href"] == item["assets"]["data"]["alternate"]["https"]["href"]
    assert second == {"rel": "describedby", "href": own, "type": "application/geo+json"}


def test_a_wis2_message_has_no_place_for_a_long_outline_and_no_link_that_few_may_follow(
    contracts: ContractRegistry,
) -> None:
    ring = [[-100 + n / 1000, 30.123456] for n in range(200)]
    long = {"type": "Polygon", "coordinates": [[*ring, [-100, 40], ring[0]]]}
    item = item_of(contracts, with_metadata(goes(0), geometry=long))
    found = writer(WIS2).write("c", change(1, item), ChangeKind.CREATED).body
    NOTIFICATION.validate(json.loads(found))
    assert len(found) <= LARGEST_BYTES
    assert json.loads(found)["geometry"] is None
    room = len(found) + len(json.dumps(long, separators=(",", ":"))) - len("null") - LARGEST_BYTES
    assert room > 0
    point = {"type": "Point", "coordinates": [1.5, 2.5]}
    properties = {name: value for name, value in item["properties"].items() if name != "end_datetime"}
    placed = written(writer(WIS2), change(1, {**item, "geometry": point, "properties": properties}))
    assert placed["geometry"] == point
    assert {"datetime", "start_datetime"} & placed["properties"].keys() == {"datetime"}
    closed = {**item, "geometry": box(0, 0, 1, 1), "assets": {"data": {"href": "s3://closed/key"}}}
    message = written(writer(WIS2), change(1, closed))
    assert [link["rel"] for link in message["links"]] == ["canonical"]
    assert "s3://" not in json.dumps(message)
