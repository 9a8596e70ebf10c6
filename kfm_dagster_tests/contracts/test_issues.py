"""Issues: printable messages, and the same repairs as in the runbook."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import REPAIRS, Issue, Repair, Severity


@given(message=st.text())
def test_an_issue_s_message_is_printable_and_escaped_once(message: str) -> None:
    issue = Issue(code="time_mismatch", severity=Severity.FAILED, message=message)
    assert issue.message.isprintable()
    assert dataclasses.replace(issue) == issue
    if message.isprintable():
        assert issue.message == message


RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbooks" / "validation-errors.md"
LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")


def test_the_runbook_has_the_console_s_repair_of_each_code() -> None:
    table = re.search(r"\| error code \|.*?\n\n", RUNBOOK.read_text(encoding="utf-8"), re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:] if line]
    written = {
        code: Repair(usually=LINK.sub("", usually), repair=repair)
        for codes, usually, repair in rows
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert written == {str(code): repair for code, repair in REPAIRS.items()}
