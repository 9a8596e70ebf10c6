"""Documents that people write: the first error, its path, and the expected value."""

from __future__ import annotations

from datetime import date
from typing import Any, Self

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from kfm_dagster.documents import MOST_LEVELS, MOST_VALUES, DocumentError, checked, compose_yaml, line_of, read_yaml

TEXT = """\
# A plan.
title: a
parts:
  - name: b
    least: 1
  - name: c
"""
UNKNOWN = "unknown key 'mots'"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    least: int = 0
    most: int = 9

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.least > self.most:
            raise ValueError("least is over most")
        return self


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str
    day: date | None = None
    parts: list[Part] = []
    named: dict[str, Part] = {}


def test_the_first_error_is_named_with_its_path() -> None:
    wrong: list[tuple[Any, list[int | str], str | None, str | None, int]] = [
        ({}, ["title"], "nothing", "a value: the key is required", 0),
        ({"title": 3}, ["title"], "3", "a valid string", 0),
        ({"title": ["x" * 200]}, ["title"], f"['{'x' * 118}", "a valid string", 0),
        ({"title": "a", "day": "2025-04-31"}, ["day"], "'2025-04-31'", None, 0),
        ({"titel": "a"}, ["titel"], "unknown key 'titel'", "title", 1),
        ({"title": "a", "xyz": 1}, ["xyz"], "unknown key 'xyz'", "one of title, day, parts, named", 0),
        ({"title": "a", "parts": [{"name": "b"}, {"nam": "c"}]}, ["parts", 1, "nam"], "unknown key 'nam'", "name", 1),
        ({"title": "a", "named": {"k": {"name": "b", "mots": 1}}}, ["named", "k", "mots"], UNKNOWN, "most", 0),
        (
            {"title": "a", "parts": [{"name": "b", "least": 10}]},
            ["parts", 0],
            "least is over most",
            "parts that agree",
            0,
        ),
        ({"title": float("nan")}, [], None, "values that JSON can hold", 0),
        ({"title": "a", "day": {1}}, [], "set '{1}'", "values that JSON can hold", 0),
    ]
    for document, path, observed, expected, more in wrong:
        with pytest.raises(DocumentError) as refused:
            checked(document, Plan)
        error = refused.value
        assert (list(error.path), error.more) == (path, more)
        assert observed is None or error.observed == observed
        assert expected is None or error.expected == expected
        place = ".".join(map(str, path)) or "the document"
        assert error.what == f"{place} is wrong" + (f" ({more} more)" if more else "")


def test_a_date_is_accepted_as_yaml_reads_it_and_no_other_value_is_converted() -> None:
    assert checked({"title": "a", "day": date(2025, 12, 3)}, Plan).day == date(2025, 12, 3)
    with pytest.raises(DocumentError):
        checked({"title": "a", "parts": [{"name": "b", "least": "1"}]}, Plan)


def test_the_line_is_that_of_the_last_part_of_the_path_that_exists() -> None:
    places: list[tuple[list[int | str], int]] = [
        ([], 2),
        (["title"], 2),
        (["parts"], 3),
        (["parts", 0], 4),
        (["parts", 0, "least"], 5),
        (["parts", 1, "name"], 6),
        (["parts", 1, "least"], 6),
        (["parts", 2], 3),
        (["gone", "title"], 2),
    ]
    for path, line in places:
        assert line_of(compose_yaml(TEXT), path) == line, path
    # An empty document begins at its first line.
    assert line_of(compose_yaml(""), ["title"]) == 1


USED_TWICE = f"- &a [{', '.join('x' * (MOST_VALUES // 2 - 2))}]\n- *a\n"
"""A list that has one inner list twice: one value fewer than a document may have."""
SHARED = "a: &a [x]\nb: [*a, *a]\nc: &c x\nd: *c\n"
DOUBLED = "x0: &x0 [1, 1]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 60))
VALUES, LEVELS = f"more than {MOST_VALUES:,} keys and values", f"more than {MOST_LEVELS} levels"


@pytest.mark.clause("SEC-12")
@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (f"{USED_TWICE}- x\n", None),
        (f"{USED_TWICE}- x\n- x\n", VALUES),
        (SHARED, None),
        ("a: &a [*a]\n", VALUES),
        (DOUBLED, VALUES),
        ("[" * MOST_LEVELS + "]" * MOST_LEVELS, None),
        ("[" * (MOST_LEVELS + 1) + "]" * (MOST_LEVELS + 1), LEVELS),
        ("[" * 100_000, LEVELS),
        ("{a: " * 100_000, LEVELS),
        ("- " * 100_000, LEVELS),
    ],
)
def test_a_document_is_bounded_before_it_is_expanded(text: str, refusal: str | None) -> None:
    if refusal is None:
        read_yaml(text)
    else:
        with pytest.raises(yaml.YAMLError, match=refusal):
            read_yaml(text)
