"""Tables: a row is one line within the terminal's width; in tables of whole values no id or URI is folded."""

from __future__ import annotations

import io
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import product

import pytest
from rich.console import Console

from kfm_dagster.cli import progress_bar
from kfm_dagster.cli.tables import LEAST_ID, LEAST_PROSE, show_fields, show_rows
from kfm_dagster.contracts.identity import SHORTEST_PREFIX
from kfm_dagster.governance.switches import KillSwitch
from kfm_dagster.ingest.acknowledgement import Progress

IDS = ["0b2f0c1e-5d7a-8c11-9a40-7f3e1d2c4b5a", "0b2f0c1e-ffff-8c11-9a40-7f3e1d2c4b5a"]
URI = "s3://unidata-nexrad-level2/2025/04/02/KTLX/KTLX20250402_000412_V06"
ROWS = [
    {
        "wal_id": wal_id,
        "status": "quarantined",
        "object_uri": URI,
        "why": "the object was [red]cut[/red]: 12 of 24 records",
    }
    for wal_id in IDS
]
COLUMNS = ("wal_id", "status", "object_uri", "why")


def shown(
    columns: int | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    whole: bool = False,
) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    show_rows(ROWS, COLUMNS, whole=whole)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_in_a_pipe_each_row_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(None, monkeypatch, capsys)[2:]
    assert [line.split(maxsplit=3) for line in lines] == [list(row.values()) for row in ROWS]


def test_a_narrow_list_cuts_ids_to_distinct_prefixes_uris_in_the_middle_and_prose_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (80, 100, 120):
        heading, _, *lines = shown(columns, monkeypatch, capsys)
        assert max(map(len, [heading, *lines])) <= columns
        assert len(lines) == len(ROWS)
        for line, row in zip(lines, ROWS, strict=True):
            wal_id, status, uri, why = line.split(maxsplit=3)
            assert wal_id == row["wal_id"][: SHORTEST_PREFIX + 2]  # the ids share their first eight characters
            assert status == row["status"]
            assert len(uri) >= LEAST_ID
            head, _, tail = uri.partition("…")
            assert len(head) == (len(uri) - 1) // 3 or not tail
            assert URI.startswith(head)
            assert URI.endswith(tail)
            assert len(why) >= LEAST_PROSE
            assert row["why"].startswith(why.removesuffix("…"))


def test_a_list_leaves_out_empty_columns_then_the_last_columns_and_names_them_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"key": "x" * 30, "zero": 0, "status": "failed", "none": None, "at": "2026-01-31T06:00:00.123456Z", "last": 7}
    for columns, left_out in ((81, []), (80, ["none"]), (74, ["none", "zero"]), (68, ["none", "zero", "last"])):
        monkeypatch.setenv("COLUMNS", str(columns))
        show_rows([row], tuple(row))
        printed = capsys.readouterr()
        kept_columns = [name for name in row if name not in left_out]
        assert printed.out.split()[: len(kept_columns)] == kept_columns
        assert "2026-01-31T06:00:00Z" in printed.out
        assert max(map(len, printed.out.splitlines())) <= columns
        named = sorted(left_out, key=list(row).index)
        assert printed.err == (
            f"columns left out at a width of {columns} characters: {', '.join(named)}\n" if left_out else ""
        )


def test_no_id_is_folded_at_any_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for columns, whole in product((20, 40, 60, 79, 100, 140, 200), (False, True)):
        text = " ".join(shown(columns, monkeypatch, capsys, whole=whole))
        for wal_id in IDS:
            assert re.search(rf"\b{wal_id[: SHORTEST_PREFIX + 2]}", text), columns
            assert columns < 200 or wal_id in text, columns
        # Tables with whole values show the full URI and all words of prose.
        assert not whole or {URI, *str(ROWS[0]["why"]).split()} <= set(text.split())


def test_a_prose_column_is_never_narrower_than_its_minimum_width_or_its_longest_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for prose, columns, widest in (("one two three four five six", 10, LEAST_PROSE), (f"{'x' * 30} is a word", 20, 30)):
        monkeypatch.setenv("COLUMNS", str(columns))
        show_rows([{"why": prose}], ("why",), whole=True)
        *_, rule = (line for line in capsys.readouterr().out.splitlines() if set(line.strip()) == {"─"})
        assert len(rule.strip()) in {widest, widest + 1, widest + 2}


def test_the_widest_prose_is_folded_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    row = {"short": "one two three four five", "long": "one two three four five six seven eight nine ten"}
    show_rows([row], ("short", "long"), whole=True)
    assert capsys.readouterr().out.count(row["short"]) == 2


def test_nested_values_are_printed_as_lines_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    message = {"id": "m-1", "body": {"Records": [{"why": "x" * 300}], "escape": "\x1b[31m"}}
    show_fields({"message": message, "run_id": "run-1", "none": {}})
    table, _, below = capsys.readouterr().out.partition("message:\n")
    assert [line.split() for line in table.splitlines() if "run" in line or "{}" in line] == [
        ["run_id", "run-1"],
        ["none", "{}"],
    ]
    assert below.splitlines()[:2] == ["  id: m-1", "  body:"]
    assert f"why: {'x' * 300}" in below
    assert "\x1b" not in below


def test_an_empty_list_is_the_line_none_as_a_table_and_no_output_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json, expected in ((False, "none\n"), (True, "")):
        show_rows(iter([]), COLUMNS, as_json=as_json)
        assert capsys.readouterr().out == expected


def test_a_row_is_a_line_of_a_table_or_a_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    at = datetime(2026, 1, 31, 6, tzinfo=UTC)
    row = KillSwitch(dataset="hrrr", engaged_at=at, engaged_by="anna", reason="why", change_ref=None, expires_at=None)
    show_rows([row], ("engaged_at", "dataset", "expires_at"))
    assert capsys.readouterr().out.splitlines()[-2].split() == ["2026-01-31T06:00:00Z", "hrrr"]
    show_rows([row, {"all": [row], "by": {"x": row}}], (), as_json=True)
    whole, holder = map(json.loads, capsys.readouterr().out.splitlines())
    assert whole == {**asdict(row), "engaged_at": "2026-01-31T06:00:00.000000Z"}
    assert holder == {"all": [whole], "by": {"x": whole}}


def test_without_a_terminal_progress_is_printed_as_a_line_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Progress(queued=12_345_678, units=30, terminal=12, in_flight=16, waiting=2)
    line = "ingesting 12/30 units, 12345678 messages queued, 2 units waiting for a retry\n"
    for interval, expected in ((0.0, 2 * line), (600.0, "")):
        monkeypatch.setattr(progress_bar, "LINE_SECONDS", interval)
        output = io.StringIO()
        with progress_bar.drain_bar(Console(file=output)) as report:
            report(now)
            report(now)
        assert output.getvalue() == expected
