"""Key values: properties (a member, a grid, a parameter) on which object and key must agree.

Belongs here: the declarations, and whether a value agrees. Does not belong here: reading an object (`readers/`), and
the effect of a contradiction on the unit (`operators/metadata_extract.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from kfm_dagster.configs import Strict
from kfm_dagster.contracts.quality import FieldPattern

Scalar = int | float | str | None


class ValueRange(Strict):
    """Numbers from `minimum` to `maximum`: corners and extents, which files round."""

    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum}"


Expected = Scalar | ValueRange | list[Scalar | ValueRange]
"""A value, a range, or a list with at least one that must agree; null means that the object lacks the field.

In a text, `\\1` is the first group of the pattern.
"""


def _compilable(by_text: dict[str, Expected]) -> dict[str, Expected]:
    for pattern, expected in by_text.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        numbers = {int(number) for number in re.findall(r"\\(\d)", str(expected))}
        if max(numbers, default=0) > groups:
            raise ValueError(f"{expected!r} names a group that the pattern {pattern!r} does not have")
    return by_text


ByText = Annotated[dict[str, Expected], Field(min_length=1), AfterValidator(_compilable)]
"""Expected value by pattern of the group's text; the first match counts, and a text without a match is not compared."""
KeyValues = dict[FieldPattern, dict[str, ByText]]
"""By field (`native.` before the reader's native values), then by group of the key grammar."""


def contradictions(
    declared: KeyValues, groups: Mapping[str, str], values_of: Callable[[str], Iterable[object]]
) -> Iterator[str]:
    """Describe each value of the object (`values_of` a field) that contradicts its key."""
    for field, by_group in declared.items():
        for group, by_text in by_group.items():
            text = groups.get(group)
            matches = (re.fullmatch(pattern, text, re.ASCII) for pattern in by_text) if text is not None else ()
            match = next(filter(None, matches), None)
            if match is None:
                continue
            declared_values = by_text[match.re.pattern]
            expected = [
                match.expand(candidate) if isinstance(candidate, str) else candidate
                for candidate in (declared_values if isinstance(declared_values, list) else [declared_values])
            ]
            for value in values_of(field):
                if not any(_agrees(value, candidate) for candidate in expected):
                    choices = " or ".join(map(str, expected))
                    yield f"{field} is {value}, the key has {group} {match[0]}, which asks for {choices}"


def _agrees(value: object, expected: Scalar | ValueRange) -> bool:
    if isinstance(expected, ValueRange):
        return isinstance(value, int | float) and expected.minimum <= value <= expected.maximum
    if isinstance(expected, str):
        return str(value) == expected
    return value == expected
