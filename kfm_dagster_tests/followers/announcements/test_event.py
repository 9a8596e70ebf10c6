"""Events are valid by the published schemas; errors in `announcements.yaml` are refused."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from pydantic import SecretStr

from kfm_dagster.catalog.changes import ChangeKind, ItemChange
from kfm_dagster.catalog.validation import _validators
from kfm_dagster.configs import CardError, own_folder
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.followers.announcements.event import ROOM_BYTES, EventWriter, ItemReference
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS, AnnouncementPlan
from kfm_dagster.followers.announcements.selection import compiled, within
from kfm_dagster.followers.announcements.source import AnnouncementSource
from kfm_dagster.followers.announcements.webhook import tokens_of
from kfm_dagster.followers.announcements.wis2 import LARGEST_BYTES
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.settings import Settings
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


def written(event_writer: EventWriter, change_: ItemChange, kind: ChangeKind | None = None) -> dict[str, Any]:
    event = event_writer.write("noaa-goes-abi", change_, kind or change_.kind)
    assert len(event.body) <= event_writer.subscription.max_bytes - ROOM_BYTES
    body: dict[str, Any] = json.loads(event.body)
    return body


@pytest.mark.clause("OPR-22")
@pytest.mark.parametrize(
    "envelope", [goes(0), hrrr(), nexrad(), OVER_THE_ANTIMERIDIAN], ids=lambda envelope: envelope.dataset
)
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
    # The links differ: in the catalog, as its profile requires, links to the catalog's own files are relative.
    _validators()["item"][0].validate(event["data"])
    assert {**event["data"], "links": item["links"]} == item


def test_links_of_an_announced_item_are_absolute(contracts: ContractRegistry) -> None:
    item = item_of(contracts)
    folder = f"https://data.example.org/stac/{item['collection']}"
    own = f"{folder}/2025/2025-12-03/{item['id']}.json"
    links = {link["rel"]: link["href"] for link in written(writer(), change(1, item))["data"]["links"]}
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
def test_an_event_has_only_the_address_of_an_item_that_is_too_large(contracts: ContractRegistry) -> None:
    small_writer = writer(max_bytes=MAX_BYTES)
    empty = writer().write("noaa-goes-abi", change(1, item_of(contracts, filler="")), ChangeKind.CREATED)
    room = MAX_BYTES - ROOM_BYTES - len(empty.body)
    assert written(small_writer, change(1, item_of(contracts, filler="x" * room)))["data"]["type"] == "Feature"
    larger = change(1, item_of(contracts, filler="x" * (room + 1)))
    event = written(small_writer, larger)
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
def test_a_change_has_the_same_id_in_all_subscriptions_and_every_other_change_has_another_id(
    contracts: ContractRegistry,
) -> None:
    item, other = item_of(contracts), item_of(contracts, goes(1))
    base = change(1, item)
    assert writer().event_id("c", base, base.kind) == writer(WIS2).event_id("c", base, base.kind)
    # This id must stay the same: if a release changed ids, receivers would take Items that they have for new Items.
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
@pytest.mark.parametrize(
    "envelope", [goes(0), hrrr(), nexrad(), OVER_THE_ANTIMERIDIAN], ids=lambda envelope: envelope.dataset
)
@pytest.mark.parametrize(("kind", "relation"), RELATIONS)
def test_a_wis2_message_is_valid_by_its_schema(
    contracts: ContractRegistry, envelope: Envelope, kind: ChangeKind, relation: str
) -> None:
    item = item_of(contracts, envelope)
    change_ = change(7, item, kind=kind)
    message = written(writer(WIS2), change_)
    NOTIFICATION.validate(message)
    assert message["id"] == writer().event_id("noaa-goes-abi", change_, kind)
    assert message["properties"]["data_id"] == f"us-example/noaa-goes-abi/{item['id']}"
    own = f"https://data.example.org/stac/{change_.path}"
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


def test_a_wis2_message_omits_long_outlines_and_links_to_objects_without_public_access(
    contracts: ContractRegistry,
) -> None:
    ring = [[-100 + n / 1000, 30.123456] for n in range(200)]
    long = {"type": "Polygon", "coordinates": [[*ring, [-100, 40], ring[0]]]}
    item = item_of(contracts, with_metadata(goes(0), geometry=long))
    body = writer(WIS2).write("c", change(1, item), ChangeKind.CREATED).body
    NOTIFICATION.validate(json.loads(body))
    assert len(body) <= LARGEST_BYTES
    assert json.loads(body)["geometry"] is None
    room = len(body) + len(json.dumps(long, separators=(",", ":"))) - len("null") - LARGEST_BYTES
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


HEAD = 'version: "1.0.0"\nsubscriptions:\n'
SQS = "sqs: https://sqs.us-east-1.amazonaws.com/123456789012/q"
SECRET = "s3cr3t-word"


def one(rest: str = "", *, target: str = SQS) -> str:
    return f"{HEAD}  - name: a\n    target: {{{target}}}\n    {rest}\n"


def test_the_shipped_plan_has_no_subscription_and_a_valid_example(contracts: ContractRegistry) -> None:
    text = (own_folder() / ANNOUNCEMENTS).read_text(encoding="utf-8")
    assert AnnouncementPlan.load(None, contracts).subscriptions == []
    shown = text.replace("subscriptions: []", "subscriptions:").replace("\n#  ", "\n  ")
    [example] = AnnouncementPlan.parse(shown).subscriptions
    assert example.datasets == ["nexrad-l2"]


WRONG = [
    (one("kinds: [deleted]"), "line 5: subscriptions.0.kinds.0", "withdrawn"),
    (one("kinds: []"), "line 5: subscriptions.0.kinds", "at least 1"),
    (one("colour: red"), "line 5: subscriptions.0.colour", "unknown key 'colour'"),
    (one("bbox: [10, 20, 30, 20]"), "line 5: subscriptions.0.bbox", "south below north"),
    *(
        (one(f"bbox: {box}"), "line 5: subscriptions.0.bbox", "in degrees")
        for box in ([10, 20, 190, 30], [-181, 20, 10, 30], [10, -91, 20, 30], [10, 20, 20, 91], [10, 20, 10, 30])
    ),
    (one("after: [pgstac]"), "line 5: subscriptions.0.after.0", "stac-api"),
    (one("max_bytes: 4095"), "line 5: subscriptions.0.max_bytes", "4096"),
    (one(target="webhook: 'https://example.org/x#y'"), "subscriptions.0.target.webhook", "fragment"),
    (one("since: 2026-01-01T00:00:00"), "line 5: subscriptions.0.since", "timezone"),
    (one("max_bytes: 1048577"), "line 5: subscriptions.0.max_bytes", "1048576"),
    (one("filter: 'platform ='"), "line 5: subscriptions.0.filter", "CQL2"),
    (one("form: wis2"), "line 3: subscriptions.0", "without a centre"),
    (one("form: wis2\n    centre: us-x"), "line 5: subscriptions.0.form", "catalog: https://"),
    (one("centre: us-x"), "line 3: subscriptions.0", "with another form"),
    (one(target=f"{SQS}, sns: arn:aws:sns:us-east-1:123456789012:t"), "subscriptions.0.target", "one of sns, sqs"),
    (one(target="sns: my-topic"), "line 4: subscriptions.0.target.sns", "the ARN of a topic"),
    (one(target="eventbridge: 'a bus'"), "line 4: subscriptions.0.target.eventbridge", "event bus"),
    (one(target="webhook: http://example.org/x"), "line 4: subscriptions.0.target.webhook", "https://HOST"),
    (one(target="webhook: https://user:pw@example.org"), "subscriptions.0.target.webhook", "without user"),
    (one(target="sqs: http://sqs.us-east-1.amazonaws.com/1/q"), "subscriptions.0.target.sqs", "https://HOST"),
    (one() + one().removeprefix(HEAD), "line 6: subscriptions.1.name", "a name that no other subscription has"),
    (one().replace("name: a", "name: A b"), "line 3: subscriptions.0.name", "pattern"),
    (one().replace("subscr", "catalog: https://h/?q\nsubscr"), "line 2: catalog", "without a query"),
]


@pytest.mark.clause("OPR-22")
def test_a_wrong_file_is_refused_with_line_and_reason() -> None:
    for text, where, why in WRONG:
        with pytest.raises(CardError) as refused:
            AnnouncementPlan.parse(text)
        assert where in str(refused.value)
        assert why in str(refused.value)


def configured(folder: Path, announcements: str) -> Path:
    """Copy the shipped configuration with another plan of announcements."""
    for name in ("state_machine.yaml", "replay_plan.yaml", "alerts.yaml"):
        (folder / name).write_bytes((own_folder() / name).read_bytes())
    (folder / ANNOUNCEMENTS).write_text(announcements, encoding="utf-8")
    return folder


def test_a_subscription_to_an_unknown_dataset_is_refused_at_start(tmp_path: Path) -> None:
    configs_dir = configured(tmp_path, one("datasets: [goes-abi, goes-abj]"))
    with pytest.raises(CardError, match=r"announcements\.yaml line 5: subscriptions\.0\.datasets\.1 .*goes-abj"):
        Configuration.load(Settings(configs_dir=configs_dir))
    wrong = Settings(configs_dir=configured(tmp_path, one()), webhook_tokens=SecretStr(f"b={SECRET}"))
    with pytest.raises(ConfigurationError, match=r"entry 1, subscription b; .*are a") as refused:
        Configuration.load(wrong)
    assert SECRET not in str(refused.value)


FOLLOWERS: list[tuple[str, str, dict[str, Any]]] = [
    ("stac-api", "KFM_STAC_API_DSN", {"stac_api_dsn": "postgresql://h/stac"}),
    ("geoparquet", "KFM_GEOPARQUET", {"geoparquet": True}),
    ("virtual-zarr", "KFM_VIRTUAL_URL", {"virtual_url": "virtual"}),
]


def test_a_subscription_after_an_unconfigured_follower_is_refused(tmp_path: Path) -> None:
    for follower, variable, settings in FOLLOWERS:
        configs_dir = configured(tmp_path, one(f"after: [{follower}]"))
        with pytest.raises(ConfigurationError, match=rf"^subscription a .*after: {follower}; next: set {variable}, or"):
            Configuration.load(Settings(configs_dir=configs_dir, geoparquet=False))
        loaded = Configuration.load(Settings(configs_dir=configs_dir, **{"geoparquet": False, **settings}))
        source = loaded.followers.loaded["announcements"]
        assert isinstance(source, AnnouncementSource)
        assert source.plan.subscriptions[0].after == [follower]


def test_without_the_extra_a_filter_is_refused_and_a_box_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cql2", None)
    with pytest.raises(CardError, match="the extra announcements"):
        AnnouncementPlan.parse(one("filter: \"platform = 'goes-19'\""))
    assert AnnouncementPlan.parse(one("bbox: [170, 0, -170, 10]")).subscriptions[0].bbox == (170, 0, -170, 10)


def test_credentials_of_targets_and_wrong_tokens_are_never_shown() -> None:
    plan = AnnouncementPlan.parse(one(target=f"webhook: 'https://example.org/x?code={SECRET}'"))
    assert SECRET not in str(plan.subscriptions[0].target)
    assert "https://example.org/x" in str(plan.subscriptions[0].target)
    for text in ["a", "a=", f"c={SECRET}", f"a={SECRET} {SECRET}"]:
        with pytest.raises(ConfigurationError, match="KFM_WEBHOOK_TOKENS is wrong; observed entry") as refused:
            tokens_of(SecretStr(text), ["a", "b"])
        assert SECRET not in str(refused.value)
    tokens = tokens_of(SecretStr("a=x=y b=z"), ["a", "b"])
    assert {name: token.get_secret_value() for name, token in tokens.items()} == {"a": "x=y", "b": "z"}


BOXES: list[tuple[tuple[float, float, float, float], dict[str, Any] | None, bool]] = [
    ((0, 0, 10, 10), box(9, 9, 20, 20), True),
    ((0, 0, 10, 10), box(10, 10, 20, 20), True),
    ((0, 0, 10, 10), box(10.0001, 0, 20, 10), False),
    ((170, -10, -170, 10), box(-175, 0, -160, 5), True),
    ((170, -10, -170, 10), box(172, 0, 176, 5), True),
    ((170, -10, -170, 10), box(-169, 0, 169, 5), False),
    ((170, -10, -170, 10), box(179, 0, -179, 5), True),
    ((0, 0, 10, 10), {"type": "Point", "coordinates": [5, 5]}, True),
    # The triangle's bounding box meets this corner; the triangle does not.
    ((9, 9, 10, 10), {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [0, 10], [0, 0]]]}, False),
    ((0, 0, 10, 10), None, False),
]


def test_a_box_selects_the_footprints_that_intersect_it() -> None:
    for bbox, geometry, meets in BOXES:
        assert within(bbox)({"geometry": geometry}) is meets


FILTERS: list[tuple[str | dict[str, Any], bool]] = [
    ("platform = 'goes-19'", True),
    ("platform = 'goes-18'", False),
    ({"op": "=", "args": [{"property": "platform"}, "goes-19"]}, True),
    ("\"goes:percent-uncorrectable\" < 0.5 AND platform LIKE 'goes-%'", True),
    ("datetime >= TIMESTAMP('2025-12-03T00:00:00Z')", True),
    ("datetime > TIMESTAMP('2025-12-04T00:00:00Z')", False),
    ("S_INTERSECTS(geometry, BBOX(-100, 35, -95, 40))", True),
    ("S_INTERSECTS(geometry, BBOX(10, 35, 20, 40))", False),
    # A comparison with a missing property is unknown, and so is its negation: the Item does not match.
    ("nothing = 1", False),
    ("NOT (nothing = 1)", False),
    ("nothing = 1 OR platform = 'goes-19'", True),
    ("nothing IS NULL", True),
]


def test_a_filter_is_evaluated_as_cql2(contracts: ContractRegistry) -> None:
    for text, matches in FILTERS:
        assert compiled(text)(item_of(contracts, goes(0))) is matches
