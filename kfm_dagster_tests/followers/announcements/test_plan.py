"""`announcements.yaml`: what is shipped notifies nobody, a wrong file is refused by line, and which Items are meant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pydantic import SecretStr

from kfm_dagster.configs import CardError, own_folder
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.followers.announcements.plan import ANNOUNCEMENTS, AnnouncementPlan
from kfm_dagster.followers.announcements.selection import compiled, within
from kfm_dagster.followers.announcements.source import AnnouncementSource
from kfm_dagster.followers.announcements.webhook import tokens_of
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.settings import Settings
from kfm_dagster_tests.catalog.envelopes import box, goes
from kfm_dagster_tests.followers.announcements.changes import item_of
from kfm_dagster_tests.schemas import json_schema

ROOT = Path(__file__).resolve().parents[3]
HEAD = 'version: "1.0.0"\nsubscriptions:\n'
SQS = "sqs: https://sqs.us-east-1.amazonaws.com/123456789012/q"
SECRET = "s3cr3t-word"


def one(rest: str = "", *, target: str = SQS) -> str:
    return f"{HEAD}  - name: a\n    target: {{{target}}}\n    {rest}\n"


def test_what_is_shipped_tells_nobody_and_shows_how(contracts: ContractRegistry) -> None:
    text = (own_folder() / ANNOUNCEMENTS).read_text(encoding="utf-8")
    assert AnnouncementPlan.load(None, contracts).subscriptions == []
    shown = text.replace("subscriptions: []", "subscriptions:").replace("\n#  ", "\n  ")
    [example] = AnnouncementPlan.parse(shown).subscriptions
    assert example.datasets == ["nexrad-l2"]


def test_the_published_schema_is_the_model_and_takes_what_is_shipped() -> None:
    schema = json.loads((ROOT / "docs" / "spec" / "announcements.schema.json").read_text(encoding="utf-8"))
    assert schema == json_schema(AnnouncementPlan, urn="kfm:nodd:announcements:v1")
    validator = jsonschema_rs.Draft202012Validator(schema)
    document = yaml.safe_load((own_folder() / ANNOUNCEMENTS).read_text(encoding="utf-8"))
    validator.validate(document)
    assert not validator.is_valid({**document, "more": 1})
    assert not validator.is_valid({"version": document["version"]})


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
    (one("form: wis2"), "line 3: subscriptions.0", "has a centre"),
    (one("form: wis2\n    centre: us-x"), "line 5: subscriptions.0.form", "catalog: https://"),
    (one("centre: us-x"), "line 3: subscriptions.0", "no other form"),
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
def test_a_wrong_file_is_refused_by_line_and_reason() -> None:
    for text, where, why in WRONG:
        with pytest.raises(CardError) as refused:
            AnnouncementPlan.parse(text)
        assert where in str(refused.value)
        assert why in str(refused.value)


def configured(folder: Path, announcements: str) -> Path:
    """A folder of the shipped configuration with another plan of announcements."""
    for name in ("state_machine.yaml", "replay_plan.yaml", "alerts.yaml"):
        (folder / name).write_bytes((own_folder() / name).read_bytes())
    (folder / ANNOUNCEMENTS).write_text(announcements, encoding="utf-8")
    return folder


def test_a_dataset_that_there_is_not_is_refused_before_anything_runs(tmp_path: Path) -> None:
    configs_dir = configured(tmp_path, one("datasets: [goes-abi, goes-abj]"))
    with pytest.raises(CardError, match=r"announcements\.yaml line 5: subscriptions\.0\.datasets\.1 .*goes-abj"):
        Configuration.load(Settings(configs_dir=configs_dir))
    wrong = Settings(configs_dir=configured(tmp_path, one()), webhook_tokens=SecretStr(f"b={SECRET}"))
    with pytest.raises(ConfigurationError, match=r"entry 1, subscription b; .*are a") as refused:
        Configuration.load(wrong)
    assert SECRET not in str(refused.value)


PLACES: list[tuple[str, str, dict[str, Any]]] = [
    ("stac-api", "KFM_STAC_API_DSN", {"stac_api_dsn": "postgresql://h/stac"}),
    ("geoparquet", "KFM_GEOPARQUET", {"geoparquet": True}),
    ("virtual-zarr", "KFM_VIRTUAL_URL", {"virtual_url": "virtual"}),
]


def test_a_subscription_after_a_place_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    for place, variable, settings in PLACES:
        configs_dir = configured(tmp_path, one(f"after: [{place}]"))
        with pytest.raises(ConfigurationError, match=rf"^subscription a .*after: {place}; next: set {variable}, or"):
            Configuration.load(Settings(configs_dir=configs_dir, geoparquet=False))
        loaded = Configuration.load(Settings(configs_dir=configs_dir, **{"geoparquet": False, **settings}))
        source = loaded.followers.loaded["announcements"]
        assert isinstance(source, AnnouncementSource)
        assert source.plan.subscriptions[0].after == [place]


def test_without_the_extra_a_filter_is_refused_and_a_box_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
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
    # The bounding box of a triangle meets a corner that the triangle itself does not.
    ((9, 9, 10, 10), {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [0, 10], [0, 0]]]}, False),
    ((0, 0, 10, 10), None, False),
]


def test_a_box_takes_the_footprints_that_meet_it() -> None:
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
    # Nothing is known of what is not there.
    ("nothing = 1", False),
    ("NOT (nothing = 1)", False),
    ("nothing = 1 OR platform = 'goes-19'", True),
    ("nothing IS NULL", True),
]


def test_a_filter_is_cql2(contracts: ContractRegistry) -> None:
    for text, matches in FILTERS:
        assert compiled(text)(item_of(contracts, goes(0))) is matches


def test_what_is_no_cql2_is_refused() -> None:
    for text in ["", "platform =", "platform == 'x'", {"args": []}]:
        with pytest.raises(ValueError, match="CQL2"):
            compiled(text)
