"""Issues: what they say is fit for a terminal, and their repairs are those of the runbook."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import REPAIRS, Issue, Repair, Severity


@given(message=st.text())
def test_an_issue_says_what_it_quotes_in_printable_signs_once_and_for_all(message: str) -> None:
    issue = Issue(code="time_mismatch", severity=Severity.FAILED, message=message)
    assert issue.message.isprintable()
    assert dataclasses.replace(issue) == issue
    if message.isprintable():
        assert issue.message == message


RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbooks" / "validation-errors.md"
LINK = re.compile(r" \(\[[^\]]*\]\([^)]*\)\)")


def test_the_runbook_says_of_each_code_what_the_console_says() -> None:
    table = re.search(r"\| error code \|.*?\n\n", RUNBOOK.read_text(encoding="utf-8"), re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:] if line]
    written = {
        code: Repair(usually=LINK.sub("", usually), repair=repair)
        for codes, usually, repair in rows
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert written == {str(code): repair for code, repair in REPAIRS.items()}
