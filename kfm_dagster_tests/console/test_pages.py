"""Pages of the console: links, units with their history, filters, charts and table cells."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kfm_dagster.console.app import console_app
from kfm_dagster.console.charts import ARROWS, HOUR, bar_chart, line_chart, state_diagram, strip
from kfm_dagster.console.pages import cell, duration, heading, time
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import LEGAL, OVERRIDES, Status
from kfm_dagster.settings import FeedKind
from kfm_dagster_tests.integration.chain import DAY, open_pipeline, put, run_chain, volumes
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.one_database

RUN = "11111111-1111-4111-8111-111111111111"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Open a deployment with four succeeded units."""
    root = tmp_path_factory.mktemp("pages")
    opened = open_pipeline(root / "home", root / "objects")
    put(root / "objects", volumes(4))
    run_chain(opened, "nexrad-l2", DAY.isoformat(), RUN)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def browser(pipeline: Pipeline) -> Iterator[TestClient]:
    application = console_app(pipeline, hosts=["testserver"], depths=lambda: {"kfm-nodd-dlq": 3})
    with TestClient(application, headers={"accept": "text/html"}) as client:
        yield client


def links(page: str) -> list[str]:
    return [unescape(link) for link in re.findall(r'href="(/[^"]*)"', page)]


def test_every_link_of_every_page_leads_to_a_page(browser: TestClient) -> None:
    visited: set[str] = set()
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        answer = browser.get(path)
        assert answer.status_code == 200, (path, answer.text)
        linked = {link.partition("#")[0] for link in links(answer.text)}
        linked |= {unescape(link) for link in re.findall(r'src="(/[^"]*)"', answer.text)}
        # A live view has the same links.
        waiting += [link for link in sorted(linked - visited) if "live=1" not in link]
        visited |= linked
    kinds = {re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", path.partition("?")[0]) for path in visited}
    assert {
        "/units/ID",
        "/units/ID/item.json",
        "/runs/ID",
        "/datasets/nexrad-l2",
        "/gaps.svg",
        "/failures",
        "/states",
    } <= kinds


def test_the_page_of_a_unit_has_its_history_and_its_item(browser: TestClient, pipeline: Pipeline) -> None:
    [record, *_] = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED)
    page = browser.get(f"/units/{record.wal_id}").text
    for text in (record.object_uri, record.stac_item_href, f'href="/runs/{RUN}"', "openlineage"):
        assert str(text) in page
    for entry in own_tx(pipeline.ledger).history(record.wal_id):
        assert f'<td data-label="reason">{entry.reason}</td>' in page
    # The page has the four steps, the footprint, and the object's address.
    assert page.count('<li class="good"><b>') == 4
    assert f'<a class="hue-0" href="/units/{record.wal_id}"><title>nexrad-l2: ' in page
    assert 'href="https://unidata-nexrad-level2.s3.us-east-1.amazonaws.com/' in page
    item = json.loads(browser.get(f"/units/{record.wal_id}/item.json").text)
    [address] = [link["href"] for link in item["links"] if link["rel"] == "self"]
    assert json.loads(Path(address).read_bytes())["id"] == item["id"] == record.stac_item_id
    assert f'kfm.open("{address}")' in unescape(page)


def test_units_are_listed_in_pages_by_the_filter_in_the_url(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kfm_dagster.console.pages.PAGE", 3)
    first = browser.get("/units?dataset=nexrad-l2&status=succeeded&text=_V06").text
    for shown in ("4 units", ">Key or Item id\n", f'data-label="day">{DAY}<'):
        assert shown in first
    [following] = [link for link in links(first) if "after=" in link]
    assert following.startswith("/units?dataset=nexrad-l2&status=succeeded&text=_V06&after=")
    unit_link = re.compile(r"/units/([0-9a-f-]{36})")
    pages = [set(unit_link.findall(text)) for text in (first, browser.get(following).text)]
    assert [len(page) for page in pages] == [3, 1]
    assert not pages[0] & pages[1]
    assert "<option selected>succeeded</option>" in first


def test_the_front_page_has_the_pulse_of_each_feed_and_its_newest_items(browser: TestClient) -> None:
    page = browser.get("/").text
    assert 'aria-label="4 objects in 24 hours"' in page
    # The lag is shown for live units only; these units are in the bulk lane.
    assert '<td data-label="lag"></td>' in page
    assert len(set(re.findall(r'<a class="hue-0" href="(/units/[^"]*)"><title>nexrad-l2: \w+</title><path', page))) > 1


def test_runs_are_linked_to_the_dagster_ui_and_samples_have_no_link_to_aws(
    pipeline: Pipeline,
) -> None:
    settings = pipeline.settings.model_copy(update={"dagster_url": "https://dagster.example/", "feed": FeedKind.SAMPLE})
    known = Pipeline(settings=settings, registry=pipeline.registry, database=pipeline.database, clock=pipeline.clock)
    client = TestClient(console_app(known, hosts=["testserver"]), headers={"accept": "text/html"})
    assert f'href="https://dagster.example/runs/{RUN}"' in client.get(f"/runs/{RUN}").text
    [record, *_] = own_tx(pipeline.ledger).find(status=Status.SUCCEEDED)
    assert "amazonaws.com" not in client.get(f"/units/{record.wal_id}").text


def test_the_diagram_has_every_transition_of_the_state_machine() -> None:
    assert set(ARROWS) == {edge for edge in LEGAL if edge[0]} | {
        (rule.from_status, rule.to_status) for rule in OVERRIDES
    }
    drawn = state_diagram({status: number for number, status in enumerate(Status, 1001)})
    for number, status in enumerate(Status, 1001):
        assert f'<a href="/units?status={status}"' in drawn
        assert f">{number:,}</text>" in drawn


def test_a_duration_has_its_two_largest_units() -> None:
    times = {
        0.999: "999 ms", 1: "1.0 s", 9.9: "9.9 s", 10: "10 s", 59: "59 s", 60: "1 min", 3599: "59 min 59 s",
        3600: "1 h", 48 * 3600 - 1: "47 h 59 min", 49 * 3600: "2 d 1 h",
    }  # fmt: skip
    assert {seconds: duration(seconds) for seconds in times} == times
    assert {seconds: duration(timedelta(seconds=seconds)) for seconds in times} == times


def test_each_chart_has_a_label_with_the_values() -> None:
    hours = [datetime(2026, 1, 1, tzinfo=UTC) + number * HOUR for number in range(48)]
    bars = bar_chart("Units", hours, {hours[0]: (1200, 900), hours[47]: (0, 1)})
    assert 'aria-label="Units: 1,200 succeeded, 901 did not"' in bars
    # The two counts of an hour are stacked, below the chart's top; the lowest bar is still visible.
    assert re.findall(r'width="[\d.]+" height="([\d.]+)"', bars) == ["46.4", "34.8", "1.0"]
    assert re.findall(r' height="([\d.]+)"', bar_chart("Units", hours, {hours[0]: (1, 0)})) == ["58.0"]
    assert "<rect" not in bar_chart("Units", hours, {})
    assert re.findall(r'end">([\d,]+)<', bars) == ["3,000", "0"]
    assert 'aria-label="2,101 objects in 48 hours"' in strip(hours, {hours[0]: (1200, 900), hours[47]: (0, 1)})
    lines = line_chart("Time", hours, {"median": {hours[1]: 2.0, hours[2]: 90.0}, "most": {}})
    assert 'aria-label="Time, newest hour: median 1 min 30 s"' in lines
    assert line_chart("Time", hours, {"median": {}}).count("<circle") == 0
    # A single value and a value of zero also have a scale.
    for seconds, scale in (
        (0.0, ["10 ms", "1 ms"]), (1.0, ["10 s", "1.0 s"]), (90.0, ["10 min", "1 min"]), (86_399.0, ["24 h", "10 h"])
    ):  # fmt: skip
        chart = line_chart("Time", hours, {"median": {hours[1]: seconds}})
        assert re.findall(r'text-anchor="end">([^<]*)<', chart) == scale


AT = datetime(2026, 1, 31, 6, tzinfo=UTC)
NOW = {"at": AT + timedelta(days=3)}
ID = "0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a"


def test_a_cell_depends_on_column_and_value() -> None:
    links = {"code": lambda row: f"/code/{row['code']}", "none": lambda _: None}
    title = "2026-01-31 06:00:00 UTC"
    cells: list[tuple[str, object, str]] = [
        ("why", None, "<td></td>"),
        ("why", "<b>", "<td>&lt;b&gt;</td>"),
        ("units", 1200, '<td class="number">1,200</td>'),
        ("exact", False, "<td>no</td>"),
        ("exact", True, "<td>yes</td>"),
        ("at", AT, f'<td class="whole"><time datetime="2026-01-31T06:00:00Z" title="{title}">{title}</time></td>'),
        ("status", Status.IN_PROGRESS, '<td><span class="badge in_progress">in progress</span></td>'),
        ("dataset", "hrrr", '<td class="whole"><a href="/datasets/hrrr">hrrr</a></td>'),
        ("dataset", None, '<td class="whole"></td>'),
        ("wal_id", ID, f'<td class="whole"><a href="/units/{ID}"><code>{ID[:8]}</code></a></td>'),
        ("next_step", "kfm doctor", "<td><code>kfm doctor</code></td>"),
        ("object_uri", "s3://b/a/c", '<td><code title="s3://b/a/c">c</code></td>'),
        ("code", "x", '<td><a href="/code/x">x</a></td>'),
        ("none", "x", "<td>x</td>"),
    ]
    for name, value, expected in cells:
        headings = {"exact": "all counted", "next_step": "in a terminal", "object_uri": "object", "wal_id": "unit"}
        label = f' data-label="{headings.get(name, name.replace("_", " "))}">'
        assert str(cell(NOW, {name: value}, name, links)) == expected.replace(">", label, 1)


def test_a_time_within_two_days_is_shown_as_an_age_with_the_time_as_title() -> None:
    two_days = timedelta(days=2)
    ages = {
        timedelta(0): "now",
        timedelta(seconds=1): "1.0 s ago",
        timedelta(minutes=61): "1 h ago",
        two_days - timedelta(seconds=1): "47 h ago",
    }
    title = "2026-01-31 06:00:00 UTC"
    for age, shown in {**ages, two_days: title, -timedelta(seconds=1): title}.items():
        text = str(time({"at": AT + age}, AT))
        assert text == f'<time datetime="2026-01-31T06:00:00Z" title="{title}">{shown}</time>'


def test_a_heading_is_the_name_of_the_column_aligned_like_the_values_below() -> None:
    rows = [{"closed_at": None, "units": 1, "looked_at": 2, "ok": True}, {"closed_at": AT, "units": 2, "looked_at": 3}]
    shown = [str(heading(rows, name)) for name in ("closed_at", "units", "looked_at")]
    assert shown == [
        '<th scope="col">closed at</th>',
        '<th scope="col" class="number">units</th>',
        '<th scope="col" class="number">looked at</th>',
    ]
    assert str(heading(rows[:1], "ok")) == '<th scope="col">ok</th>'
    assert str(heading([], "first_seen")) == '<th scope="col">first seen</th>'
