"""What a query and an Accept header ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.console.asking import BadRequestError, Form, NotAcceptableError, ReportQuery, asked_of
from kfm_dagster.exports.validation import DAYS, MOST_DAYS

FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.JSON),
        ("*/*", Form.JSON),
        ("application/json", Form.JSON),
        ("text/html", Form.HTML),
        (FIREFOX, Form.HTML),
        ("text/*", Form.HTML),
        ("TEXT/HTML; charset=utf-8", Form.HTML),
        ("text/html;q=0.5, application/json;q=0.4", Form.HTML),
        ("text/html;q=0.4, application/json;q=0.5", Form.JSON),
        ("*/*;q=0.9, application/json;q=0.1", Form.HTML),
        ("text/html;q=0, */*", Form.JSON),
        ("text/html;q=0.1, text/*;q=0.9, application/json;q=0.5", Form.JSON),
        ("text/html;q=2, application/json;q=0.1", Form.JSON),
    ],
)
def test_the_form_is_the_one_that_the_client_likes_best(accept: str, form: Form) -> None:
    assert asked_of([], accept=accept) == ReportQuery(days=DAYS, form=form)
    # What the address says wins.
    for named in Form:
        assert asked_of([("format", named.value)], accept=accept).form is named


@pytest.mark.parametrize("accept", ["image/png", "application/json;q=0", "text/html;q=0, application/json;q=0.0"])
def test_a_client_that_takes_neither_is_told_what_there_is(accept: str) -> None:
    with pytest.raises(NotAcceptableError, match="expected application/json or text/html"):
        asked_of([], accept=accept)
    assert asked_of([("format", "json")], accept=accept).form is Form.JSON


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ([("days", "0")], "days='0'; expected a whole number from 1 to 3650"),
        ([("days", str(MOST_DAYS + 1))], "days='3651'"),
        ([("days", "")], "days=''"),
        ([("days", "1.5")], "days='1.5'"),
        ([("days", "-1")], "days='-1'"),
        ([("days", "\u0663")], "days="),
        ([("days", "1\n")], "days='1\\\\n'"),
        ([("days", "9" * 100_000)], "days='9999"),
        ([("days", "1"), ("days", "2")], "a parameter twice"),
        ([("format", "xml")], "format='xml'; expected json or html"),
        ([("since", "2026")], "'since'; expected days, format; each once"),
    ],
)
def test_a_parameter_that_is_wrong_is_one_short_line(parameters: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as refused:
        asked_of(parameters, accept="*/*")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@given(st.lists(st.tuples(st.sampled_from(["days", "format", "x"]), st.text(max_size=20)), max_size=3), st.text())
def test_whatever_is_sent_is_answered_or_refused(parameters: list[tuple[str, str]], accept: str) -> None:
    try:
        asked = asked_of(parameters, accept=accept)
    except (BadRequestError, NotAcceptableError):
        return
    assert 1 <= asked.days <= MOST_DAYS
