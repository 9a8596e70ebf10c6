"""Cells of tables: what a column's name and a value's kind make of it."""

from __future__ import annotations

from datetime import UTC, datetime

from kfm_dagster.console.pages import cell, heading
from kfm_dagster.ledger.state_machine import Status

AT = datetime(2026, 1, 31, 6, tzinfo=UTC)
ID = "0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a"


def test_a_cell_is_by_the_column_and_its_value() -> None:
    links = {"code": lambda row: f"/code/{row['code']}", "none": lambda _: None}
    cells: list[tuple[str, object, str]] = [
        ("why", None, "<td></td>"),
        ("why", "<b>", "<td>&lt;b&gt;</td>"),
        ("units", 1200, '<td class="number">1,200</td>'),
        ("exact", False, "<td>no</td>"),
        ("exact", True, "<td>yes</td>"),
        ("at", AT, '<td class="time"><time datetime="2026-01-31T06:00:00Z">2026-01-31 06:00:00</time></td>'),
        ("status", Status.IN_PROGRESS, '<td><span class="badge in_progress">in progress</span></td>'),
        ("dataset", "hrrr", '<td><a href="/datasets/hrrr">hrrr</a></td>'),
        ("dataset", None, "<td></td>"),
        ("wal_id", ID, f'<td><a href="/units/{ID}"><code>{ID[:8]}</code></a></td>'),
        ("next_step", "kfm doctor", "<td><code>kfm doctor</code></td>"),
        ("object_uri", "s3://b/a/c", '<td><code title="s3://b/a/c">c</code></td>'),
        ("code", "x", '<td><a href="/code/x">x</a></td>'),
        ("none", "x", "<td>x</td>"),
    ]
    for name, value, expected in cells:
        assert str(cell({name: value}, name, links)) == expected


def test_a_heading_names_the_zone_of_times_and_is_above_its_numbers() -> None:
    rows = [{"closed_at": None, "units": 1, "looked_at": 2, "ok": True}, {"closed_at": AT, "units": 2, "looked_at": 3}]
    shown = [str(heading(rows, name)) for name in ("closed_at", "units", "looked_at")]
    assert shown == [
        '<th scope="col">closed (UTC)</th>',
        '<th scope="col" class="number">units</th>',
        '<th scope="col" class="number">looked at</th>',
    ]
    assert str(heading(rows[:1], "ok")) == '<th scope="col">ok</th>'
    assert str(heading([], "first_seen")) == '<th scope="col">first seen</th>'
