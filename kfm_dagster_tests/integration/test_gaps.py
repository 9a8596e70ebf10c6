"""Gaps in a feed: listed, drawn, repaired by ordinary runs, and closed."""

from __future__ import annotations

import base64
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import dagster as dg
import orjson
import pytest

from kfm_dagster.alerts.plan import AlertRule
from kfm_dagster.alerts.store import AlertState
from kfm_dagster.cli import gaps as gaps_command
from kfm_dagster.cli import reconcile as reconcile_command
from kfm_dagster.contracts.cadence import LEAST_CADENCE
from kfm_dagster.contracts.quality import Coverage, ExpectedProduct
from kfm_dagster.defs.checks import FEED_CHECK
from kfm_dagster.exports.gap_picture import gap_picture
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.feed_watch import FeedWatch
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.gaps import FollowedProduct, GapKind
from kfm_dagster_tests.clocks import reopened
from kfm_dagster_tests.commands import Call, caller
from kfm_dagster_tests.factories import envelope, staged
from kfm_dagster_tests.integration.chain import (
    DATASET,
    DAY,
    Clock,
    StoredObject,
    notify,
    put,
    run_pending,
    volumes,
)
from kfm_dagster_tests.integration.face import Face
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-05")

MIDNIGHT = datetime.combine(DAY, time(), UTC)
WHY = Decision(actor="ada", reason="x")
LATER = MIDNIGHT + timedelta(hours=12, minutes=30)
HOLE = 5


def hourly(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the contract expect one volume an hour, as many as the samples of a day have."""
    coverage = Coverage(settles_after_seconds=0, products=[ExpectedProduct(name="volumes", per_hour=1)])
    contract = pipeline.registry[DATASET].model_copy(update={"coverage": coverage})
    monkeypatch.setitem(pipeline.registry.contracts, DATASET, contract)


def at(pipeline: Pipeline, now: datetime) -> None:
    """Set the pipeline's clock."""
    pipeline.clock.now = now


def ingested(pipeline: Pipeline, items: list[StoredObject], run_id: str) -> None:
    """Announce objects and ingest them in a run."""
    notify(pipeline, *items, name=run_id, event_time=pipeline.clock())
    run_pending(pipeline, run_id)


def holed(pipeline: Pipeline, objects: Path) -> None:
    """Follow a feed from midnight on, in which one object is never announced."""
    items = volumes(12)
    put(objects, items, written=MIDNIGHT)
    at(pipeline, MIDNIGHT + timedelta(minutes=30))
    ingested(pipeline, items[:1], "first")
    at(pipeline, LATER)
    ingested(pipeline, [item for number, item in enumerate(items) if number not in {0, HOLE}], "second")


@pytest.fixture
def call(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Run `kfm ...` over `pipeline`."""
    for command in (gaps_command, reconcile_command):
        monkeypatch.setattr(command, "opened_pipeline", lambda *_, **__: nullcontext(pipeline))
    return caller(capfd)


def drawn(svg: str) -> tuple[int, str]:
    """Return the number of hatched bars and the picture's description."""
    root = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    description = root.find(f"{space}desc")
    return sum(rect.get("class") == "m" for rect in root.iter(f"{space}rect")), str(description.text)


def test_an_unannounced_object_is_listed_drawn_fetched_and_then_no_longer_missing(
    pipeline: Pipeline, objects: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    holed(pipeline, objects)
    days = ("--dataset", DATASET, "--from", DAY.isoformat(), "--to", DAY.isoformat())
    picture = tmp_path / "gaps.svg"

    code, out, _ = call("gaps", "--json", "--svg", str(picture))
    assert code == 0
    [gap] = map(orjson.loads, out.splitlines())
    assert {name: gap[name] for name in ("dataset", "product", "hour", "kind", "expected", "seen", "closed_at")} == {
        "dataset": DATASET, "product": "volumes", "hour": f"{DAY}T05:00:00.000000Z", "kind": "hole", "expected": 1,
        "seen": 0, "closed_at": None,
    }  # fmt: skip
    with monkeypatch.context() as patched:
        for most, cut in ((1, ""), (0, "only the first 0 gaps are shown; give a dataset or fewer days\n")):
            patched.setattr(gaps_command, "MOST_GAPS", most)
            assert call("gaps", "--json").err == cut
    bars, description = drawn(picture.read_text())
    assert (bars, description) == (
        1, f"{DATASET}: 1 of 11 hours are short, the worst has 0%, the first is {DAY} 05 UTC",
    )  # fmt: skip

    code, out, _ = call("reconcile", *days, "--json")
    assert code == 4
    [row] = map(orjson.loads, out.splitlines())
    missing = volumes(12)[HOLE].uri
    assert (row["objects"], row["units"], row["items"]) == (12, 11, 11)
    assert row["names"] == {"object_without_unit": [missing]}
    code, out, _ = call("reconcile", *days, "--repair", "--reason", "lost message", "--actor", "ada", "--json")
    assert (code, orjson.loads(out)["entered"], orjson.loads(out)["left"]) == (0, 1, 0)
    [entry] = own_tx(pipeline.ledger.log).entries(dataset=DATASET)
    assert (entry.action, entry.actor, entry.reason) == ("reconciled", "ada", "lost message")
    # The unit that the repair recorded is pending in the bulk lane.
    [waiting] = pipeline.ledger.pending_by_partition()
    assert (waiting.lane, waiting.units) == ("bulk", 1)
    run_pending(pipeline, "repair")

    code, out, _ = call("gaps", "--closed", "--json", "--svg", str(picture))
    [gap] = map(orjson.loads, out.splitlines())
    assert (gap["seen"], gap["repaired_by"], gap["closed_at"] is None) == (1, "repair", False)
    assert drawn(picture.read_text()) == (0, "Nothing is missing.")
    assert call("gaps").out.strip() == "none"
    assert call("reconcile", *days).code == 0


def test_the_output_distinguishes_a_feed_without_gaps_from_one_without_expectations(
    pipeline: Pipeline, objects: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*arguments: str) -> tuple[str, bool]:
        printed = call("gaps", *arguments)
        return printed.out.strip(), "Nothing is expected until" in printed.err

    assert listed() == ("none", True)
    hourly(pipeline, monkeypatch)
    holed(pipeline, objects)
    assert not listed()[1]
    assert listed("--dataset", "hrrr") == ("none", True)


def test_a_product_is_expected_from_its_first_announced_unit_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    at(pipeline, LATER)

    def since(*minutes: int, listed: tuple[int, ...] = ()) -> datetime | None:
        starts = [MIDNIGHT + timedelta(minutes=number) for number in (*minutes, *listed)]
        units = [envelope(number, time_range_start=start) for number, start in enumerate(starts)]
        for number in range(len(minutes), len(units)):
            units[number] = units[number].evolve(raw=replace(units[number].raw, sqs_message_id=None))
        noted: dict[str, datetime] = {}
        monkeypatch.setattr(type(pipeline.gaps), "follow", lambda self, dataset, first, *, tx: noted.update(first))
        with pipeline.database.transaction() as tx:
            FeedWatch(pipeline).follow(pipeline.registry[DATASET], units, tx)
        return noted.get("volumes")

    # The last hour whose announcements are due is from 11:00 to 12:00.
    assert since(700, 680, 720) == MIDNIGHT + timedelta(minutes=680)
    assert since(700, 659) == since(3) == MIDNIGHT + timedelta(hours=11)
    assert since(700, listed=(670,)) == MIDNIGHT + timedelta(minutes=700)
    assert since(listed=(670,)) is None


def test_the_gap_of_an_hour_without_any_run_is_found_by_the_next_check(
    pipeline: Pipeline, objects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    holed(pipeline, objects)
    ingested(pipeline, [volumes(12)[HOLE]], "third")
    assert pipeline.gaps.list(since=MIDNIGHT) == []
    assert FeedWatch(pipeline).look().changed == 0
    at(pipeline, LATER + timedelta(minutes=29, seconds=59))
    assert FeedWatch(pipeline).look().changed == 0
    at(pipeline, LATER + timedelta(minutes=30))
    assert FeedWatch(pipeline).look().changed == 1
    assert [gap.hour.hour for gap in pipeline.gaps.list(since=MIDNIGHT)] == [12]
    # A late announcement closes the gap in any run.
    item = volumes(13)[12]
    put(objects, [item], written=MIDNIGHT)
    ingested(pipeline, [item], "late")
    assert pipeline.gaps.list(since=MIDNIGHT) == []


@pytest.mark.clause("BEY-18")
def test_a_tick_detects_a_silence_and_checks_again_only_when_another_can_have_begun(
    pipeline: Pipeline, objects: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    assert FeedWatch(pipeline).watch() is not None
    holed(pipeline, objects)
    for minutes, silent in ((0, False), (119, False), (120, True)):
        at(pipeline, LATER + timedelta(minutes=minutes))
        due = FeedWatch(pipeline).watch()
        # The next silence cannot begin before one interval of the feed has passed.
        assert FeedWatch(pipeline).watch(due) == due
        kinds = {gap.kind for gap in pipeline.gaps.list(since=MIDNIGHT)}
        assert (GapKind.SILENCE in kinds) is silent
        assert silent_feeds(pipeline) == ([(DATASET, AlertState.FIRING)] if silent else [])
    # A dataset that is switched off or not ingested is not checked.
    pipeline.ledger.switches.engage(DATASET, WHY)
    FeedWatch(pipeline).watch()
    assert silent_feeds(pipeline) == []
    pipeline.ledger.switches.release(DATASET, WHY)
    FeedWatch(pipeline).watch()
    assert silent_feeds(pipeline) == [(DATASET, AlertState.FIRING)]
    everything, pipeline.registry = pipeline.registry, pipeline.registry.only(["hrrr"])
    FeedWatch(pipeline).watch()
    assert silent_feeds(pipeline) == []
    pipeline.registry = everything
    FeedWatch(pipeline).watch()
    assert silent_feeds(pipeline) == [(DATASET, AlertState.FIRING)]
    # From the day of its retirement on, a dataset can be silent without an alert.
    living = pipeline.registry[DATASET]
    for since, silent in ((pipeline.clock().date(), False), (pipeline.clock().date() + timedelta(days=1), True)):
        ended = staged(living, "retired", since=since.isoformat())
        monkeypatch.setitem(pipeline.registry.contracts, DATASET, ended)
        FeedWatch(pipeline).watch()
        assert bool(silent_feeds(pipeline)) is silent
        assert f"no more objects of {DATASET} are expected. Retired since {since}: It ended." in call("gaps").err
    assert [row.label for row in gap_picture(pipeline, days=1).rows] == [f"{DATASET} (retired)"]
    monkeypatch.setitem(pipeline.registry.contracts, DATASET, living)
    FeedWatch(pipeline).watch()
    # An announcement ends silence and alert.
    item = volumes(16)[15]
    put(objects, [item], written=MIDNIGHT)
    ingested(pipeline, [item], "again")
    FeedWatch(pipeline).watch()
    assert silent_feeds(pipeline) == []


def silent_feeds(pipeline: Pipeline) -> list[tuple[str, AlertState]]:
    """Evaluate the alerts; return subject and state of the open ones on silent feeds."""
    evaluator = pipeline.alert_evaluator()
    evaluator.evaluate()
    return [(alert.subject, alert.state) for alert in evaluator.store.listed() if alert.rule is AlertRule.SILENT_FEED]


def test_silences_are_checked_only_for_feeds_that_are_followed_and_active(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    at(pipeline, LATER)
    [volumes_of] = pipeline.registry[DATASET].coverage.products
    checked: list[str] = []
    monkeypatch.setattr(
        type(pipeline.gaps), "look_at", lambda self, windows, *, at: checked.extend(w.product for w in windows)
    )

    def watched(*products: ExpectedProduct, followed: tuple[str, ...]) -> tuple[list[str], timedelta]:
        coverage = Coverage(settles_after_seconds=0, products=list(products))
        contract = pipeline.registry[DATASET].model_copy(update={"coverage": coverage})
        monkeypatch.setitem(pipeline.registry.contracts, DATASET, contract)
        feeds = [
            FollowedProduct(dataset=DATASET, product=name, followed_since=MIDNIGHT, looked_until=None)
            for name in followed
        ]
        monkeypatch.setattr(type(pipeline.gaps), "feeds", lambda self: feeds)
        checked.clear()
        due = FeedWatch(pipeline).watch()
        return sorted(checked), due - LATER

    def product(name: str, per_hour: int = 1, **more: Any) -> ExpectedProduct:
        return volumes_of.model_copy(update={"name": name, "per_hour": per_hour, **more})

    five = timedelta(minutes=5)
    assert watched(product("a"), followed=()) == ([], five)
    assert watched(product("a"), product("b"), followed=("b",)) == (["b"], five)
    over = product("a", until=LATER.date())
    assert watched(over, product("b", until=LATER.date() + timedelta(days=1)), followed=("a", "b")) == (["b"], five)
    # The next check is due after the interval of the most frequent product, but not before LEAST_CADENCE.
    assert watched(product("a"), product("b", 30), product("c"), followed=("a", "b", "c"))[1] == timedelta(minutes=2)
    assert watched(product("a", 3600), followed=("a",))[1] == LEAST_CADENCE
    # No feed is checked before the due time; at the due time the feeds are checked.
    for when, looked in ((timedelta(microseconds=-1), False), (timedelta(), True)):
        checked.clear()
        at(pipeline, LATER + LEAST_CADENCE + when)
        FeedWatch(pipeline).watch(LATER + LEAST_CADENCE)
        assert bool(checked) is looked
    at(pipeline, LATER)
    pipeline.ledger.switches.engage(DATASET, WHY)
    assert watched(product("a"), followed=("a",))[0] == []


def test_days_since_the_last_check_and_days_with_gaps_are_checked_up_to_eight_days_back(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourly(pipeline, monkeypatch)
    queried_since: list[datetime] = []

    def days(now: datetime, *looked: timedelta, holes: tuple[int, ...] = ()) -> int:
        feeds = [
            FollowedProduct(dataset=DATASET, product="volumes", followed_since=now - ago, looked_until=None)
            for ago in looked
        ]

        def open_days(_: object, dataset: str, *, since: datetime) -> list[date]:
            queried_since.append(since)
            return [(now - timedelta(days=ago)).date() for ago in holes]

        monkeypatch.setattr(type(pipeline.gaps), "feeds", lambda _: feeds)
        monkeypatch.setattr(type(pipeline.gaps), "open_days", open_days)
        at(pipeline, now)
        return FeedWatch(pipeline).look().days

    hour, noon = timedelta(hours=1), MIDNIGHT + timedelta(hours=12)
    assert (days(noon, hour), days(noon, timedelta(0))) == (1, 0)
    # At midnight the new day has no hour to check.
    assert days(MIDNIGHT, hour) == 1
    assert days(noon, hour, timedelta(days=2)) == 3
    assert days(noon, timedelta(days=30)) == 9
    assert days(noon, timedelta(0), holes=(3, 5)) == 2
    assert days(noon, hour, holes=(0, 5)) == 2
    assert queried_since[-1] == noon - timedelta(days=8)


def test_the_schedule_skips_without_a_followed_feed_and_shows_the_picture_of_gaps(
    face: Face, objects: Path, dagster_home: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(MIDNIGHT)
    monkeypatch.setattr(face.pipeline, "clock", clock)
    hourly(face.pipeline, monkeypatch)
    storage = dagster_home.event_log_storage

    def tick() -> str:
        tick_data = face.tick_schedule("nodd_gaps", dagster_home)
        assert not tick_data.run_requests
        return str(tick_data.skip_message)

    assert tick() == "no feed is followed yet"
    assert storage.get_latest_asset_check_execution_by_key([FEED_CHECK]) == {}
    reopened(face.pipeline, "ledger", "gaps", "deliveries")
    holed(face.pipeline, objects)
    clock.now = LATER + timedelta(hours=1)
    assert tick() == (
        f"2 gaps open, 0 closed: {DATASET}: 2 of 12 hours are short, the worst has 0%, the first is {DAY} 05 UTC"
    )
    shown = storage.get_latest_asset_check_execution_by_key([FEED_CHECK])[FEED_CHECK].event
    evaluation = shown.dagster_event.event_specific_data
    assert (evaluation.passed, evaluation.severity) == (False, dg.AssetCheckSeverity.WARN)
    picture = str(evaluation.metadata["picture"].value)
    assert drawn(base64.b64decode(picture.partition("base64,")[2].rstrip(")")).decode())[0] == 2
    # An unchanged state is not reported again.
    before = storage.get_latest_asset_check_execution_by_key([FEED_CHECK])[FEED_CHECK].id
    tick()
    assert storage.get_latest_asset_check_execution_by_key([FEED_CHECK])[FEED_CHECK].id == before
