"""Issues: what they say is fit for a terminal, whatever object or message it quotes."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.issues import Issue, Severity


@given(message=st.text())
def test_an_issue_says_what_it_quotes_in_printable_signs_once_and_for_all(message: str) -> None:
    issue = Issue(code="time_mismatch", severity=Severity.FAILED, message=message)
    assert issue.message.isprintable()
    assert dataclasses.replace(issue) == issue
    if message.isprintable():
        assert issue.message == message


def test_an_escape_sequence_of_an_object_is_shown_not_obeyed() -> None:
    issue = Issue(code="time_mismatch", severity=Severity.FAILED, message="it says \x1b[2J\u202e\n")
    assert issue.message == r"it says \x1b[2J\u202e\n"
