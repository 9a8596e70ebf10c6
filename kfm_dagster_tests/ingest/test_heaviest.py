"""A tick over SQS's largest messages accounts for every record within its memory limit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import ParseIssue
from kfm_dagster.operators.message_parse import MAX_REJECTIONS
from kfm_dagster_tests.ingest.heaviest import KINDS, heaviest
from kfm_dagster_tests.programs import printed_by

MAX_MIB = 512
"""The allowed peak of a process; a third of it is the program itself."""


def _tick(kind: str, home: Path, *, messages: int, dsn: str = "") -> dict[str, Any]:
    program = (sys.executable, "-m", "kfm_dagster_tests.ingest.heaviest")
    return json.loads(printed_by(*program, kind, home, str(messages), dsn))


@pytest.mark.clause("SEC-08")
@pytest.mark.parametrize(
    ("kind", "messages"),
    [("foreign", 10), ("units", 10), ("escapes", 10), ("sidecars", 10), ("numbers", 2), ("versions", 2)],
)
def test_a_tick_over_the_heaviest_messages_stays_below_its_limit(kind: str, messages: int, tmp_path: Path) -> None:
    report = _tick(kind, tmp_path / "home", messages=messages)
    assert report["peak_mib"] < MAX_MIB
    assert (report["received"], report["residual"]) == (messages, 0)
    records = sum(len(json.loads(message.body)["Records"]) for message in heaviest(kind, messages))
    assert report["created"] + report["rejected"] + report["ignored"] == records
    assert report["rows"] <= messages * (MAX_REJECTIONS + len(ParseIssue))


@pytest.mark.clause("SEC-08")
def test_the_heaviest_messages_are_stored_on_postgresql_too(tmp_path: Path, postgres_url: str) -> None:
    for kind, messages in (("foreign", 10), ("versions-without-order", 2)):
        report = _tick(kind, tmp_path / kind, messages=messages, dsn=postgres_url)
        assert report["peak_mib"] < MAX_MIB
        assert (report["received"], report["residual"]) == (messages, 0)


def test_every_kind_of_record_fills_a_message() -> None:
    for kind in KINDS:
        [message] = heaviest(kind, 1)
        assert 2**20 - 1_000 < len(message.body) <= 2**20
