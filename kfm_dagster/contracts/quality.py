"""A contract's declarations of quality, such as freshness, coverage and citations.

Belongs here: the declarations and how they match; a unit's peer sizes (peers are objects of the same product, whose
sizes predict each other, ADR 030), and the range of sizes that are not suspect; the properties (a member, a grid, a
parameter) that object and key must share. Does not belong here: the gates that apply declarations to a batch
(`stages/gates/`), the effect of a contradiction on the unit (`operators/metadata_extract.py`), the storage of peers
(`ledger/size_peers.py`), nor the rest of the contract (`model.py`).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, PositiveInt, field_validator, model_validator

from kfm_dagster.configs import Strict

FieldPattern = Annotated[str, Field(pattern=r"^(\*:)?[A-Za-z][A-Za-z0-9_:. -]*\*?$", max_length=100)]
"""A field by its path, or a beginning of paths that ends in `*`. `bands` also covers `bands.name`; `*:cycle` covers the
field `cycle` with any prefix, such as `gfs:cycle`.

Native values of the reader are below `native.`. At least one letter is required, because `*` alone would cover all
fields and declare nothing.
"""
_Text = Annotated[str, Field(min_length=1, max_length=200)]


def covers(pattern: str, path: str) -> bool:
    """Return whether a field pattern covers the path of a field."""
    if pattern.startswith("*:"):
        path = "*:" + path.partition(":")[2]
    if pattern.endswith("*"):
        return path.startswith(pattern[:-1])
    return path == pattern or path.startswith(pattern + ".")


@unique
class AnchorKind(StrEnum):
    """Kind of content at an anchor (pipeline card, section II, "unified numbering")."""

    P = "P"
    """Postulate: a definition or convention that is set, not derived. A code table, a register."""
    S = "S"
    """Minimal equation: the rule that computes the values. A projection, a grid."""
    M = "M"
    """Metrology process: how the values were measured, or set for measuring. A scan strategy, an instrument's state."""
    I = "I"  # noqa: E741 - the letter that the card has
    """Implementation binding: place and form of the values. A field of a format, a module."""


class Citation(Strict):
    """Document that defines fields (pipeline card, chapter 7, section II)."""

    fields: list[FieldPattern] = Field(min_length=1)
    volume: _Text = Field(description="The document, with its number.")
    version: _Text = Field(description="Revision or edition of the document.")
    anchor: _Text = Field(description="Section, table or template.")
    kind: AnchorKind = Field(
        description="Kind of anchor: P postulate, S minimal equation, M metrology process, I implementation binding."
    )


class Quantity(Strict):
    """Unit and possible range of a reader's numbers. Units are pint's (stages/gates/units.txt)."""

    fields: list[FieldPattern] = Field(min_length=1)
    unit: str = Field(
        max_length=40,
        description='E.g. "m", "degree", "m/s"; "1" for counts, codes and fractions. If a dataset has grids in several '
        "units, declare a projection's fields once per unit; an object uses the declaration in the unit of its axes.",
    )
    dimension: str | None = Field(
        None,
        pattern=r"^(1|\[[a-z]+\]( ?[*/] ?\[[a-z]+\]| ?\*\* ?-?\d)*)$",
        description='E.g. "[length]", "[length] / [time]", "1" for none. STAC defines the dimension of its own fields.',
    )
    minimum: float | None = Field(None, description="Smallest possible value, in the unit.")
    maximum: float | None = Field(None, description="Largest possible value, in the unit.")

    @model_validator(mode="after")
    def _range_is_one(self) -> Quantity:
        if self.minimum is not None and self.maximum is not None and self.maximum < self.minimum:
            raise ValueError("maximum is less than minimum")
        return self


class Freshness(Strict):
    """Maximum age of a live unit's event when a run claims the unit; bulk work is exempt."""

    budget_seconds: PositiveInt


class ExpectedProduct(Strict):
    """A product whose objects are due in some or all hours; `groups` selects the objects."""

    name: str = Field(min_length=1, max_length=80)
    groups: dict[str, str] = Field(
        {},
        description="Extension fields of the ledger, each with the value that an object must have. `a|b` declares a "
        "product for each value; {field} in `name` stands for the value.",
    )
    per_hour: PositiveInt = Field(
        description="Objects whose time begins within a UTC hour; if their number varies, the usual minimum."
    )
    every_seconds: PositiveInt | None = Field(
        None,
        description="Seconds from a scan, frame or run to the next. After twice that time without an announcement the "
        "product is silent. Default: the longest time between two `hours`; without `hours`, 3600 / per_hour.",
    )
    hours: list[Annotated[int, Field(ge=0, le=23)]] = Field(
        [], description="UTC hours in which the product is due. Default: all."
    )
    since: date | None = Field(None, description="First day on which the product is due. Default: always.")
    until: date | None = Field(None, description="First day on which the product is no longer due. Default: never.")

    @model_validator(mode="after")
    def _hours_of_a_slow_product(self) -> ExpectedProduct:
        if not self.hours and (self.every_seconds or 0) > 3600:
            raise ValueError(
                f"the product {self.name!r} is due in every hour, because it has no `hours`, but its every_seconds is "
                f"{self.every_seconds}"
            )
        return self

    def of_each_value(self) -> Iterator[ExpectedProduct]:
        """Yield a product per combination of group values; raise ValueError for an unknown {field}."""
        for values in itertools.product(*(value.split("|") for value in self.groups.values())):
            groups = dict(zip(self.groups, values, strict=True))
            try:
                name = self.name.format_map(groups)
            except KeyError as error:
                raise ValueError(f"the product {self.name!r} names {error}, which is not in groups") from None
            yield self.model_copy(update={"name": name, "groups": groups})

    @property
    def cadence(self) -> timedelta:
        """Time from a scan, frame or run to the next."""
        if self.every_seconds is not None:
            return timedelta(seconds=self.every_seconds)
        if not self.hours:
            return timedelta(hours=1) / self.per_hour
        hours = sorted(set(self.hours))
        return timedelta(hours=max(b - a for a, b in itertools.pairwise([*hours, hours[0] + 24])))

    def is_due(self, hour: datetime) -> bool:
        """Return whether the product is due in an hour (its beginning, UTC)."""
        day = hour.date()
        return (
            (self.since is None or day >= self.since)
            and (self.until is None or day < self.until)
            and (not self.hours or hour.hour in self.hours)
        )

    @model_validator(mode="after")
    def _period_is_one(self) -> ExpectedProduct:
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise ValueError("until is not after since")
        return self


class Coverage(Strict):
    """Content of a complete partition."""

    settles_after_seconds: int = Field(
        ge=0, le=604_800, description="Seconds from an hour's end until it is expected to be complete."
    )
    products: list[ExpectedProduct] = Field(min_length=1)

    @field_validator("products")
    @classmethod
    def _one_for_each_value(cls, products: list[ExpectedProduct]) -> list[ExpectedProduct]:
        return [product for declared in products for product in declared.of_each_value()]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Coverage:
        names = [product.name for product in self.products]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"products {twice} are declared twice")
        return self


PEERS_KEPT = 24
"""Recent peers kept per product. Even if five of 24 are truncated, a truncated size does not count as usual."""
FAR_OUT = 3
"""Distance from the quartiles, in interquartile ranges, beyond which a value is "far out" (Tukey, Exploratory Data
Analysis, 1977)."""


class Peers(Strict):
    """Grouping of objects into products, and the distance from peers at which a size is suspect."""

    groups: list[str] = Field(
        description="Groups of the key grammar that distinguish products of different sizes: a lead, a band, a site."
    )
    factor: float = Field(
        gt=1,
        le=1000,
        description="A size within this factor of its peers' middle half is not suspect; if the peers vary much, the "
        "factor is larger.",
    )
    minimum: int = Field(8, ge=4, le=PEERS_KEPT, description="Least number of peers for a comparison.")


class PeerSizes(NamedTuple):
    """Sizes of a unit's peers: their number, and the quartiles in bytes."""

    number: int
    lower: int
    upper: int

    @classmethod
    def of(cls, sizes: Iterable[int]) -> PeerSizes | None:
        """Return the quartiles, each of which is one of the sizes (all above 0); None without sizes."""
        ordered = sorted(sizes)
        if not ordered:
            return None
        quarter = (len(ordered) - 1) // 4
        return cls(len(ordered), ordered[quarter], ordered[-1 - quarter])

    def expected(self, factor: float) -> tuple[int, int]:
        """Return the smallest and the largest size in bytes that is not suspect.

        The bounds are Tukey's outer fences over the logarithms of the sizes, but at least `factor` away from the
        quartiles.
        """
        margin = max(factor, (self.upper / self.lower) ** FAR_OUT)
        return math.ceil(self.lower / margin), math.floor(self.upper * margin)


Scalar = int | float | str | None


class ValueRange(Strict):
    """Range of accepted numbers, for corners and extents, which files round."""

    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.minimum} to {self.maximum}"


Expected = Scalar | ValueRange | list[Scalar | ValueRange]
"""A value, a range, or a list of which one element must agree; null means that the object lacks the field. In a text,
`\\1` is the first group of the pattern.
"""


def _compilable(by_text: dict[str, Expected]) -> dict[str, Expected]:
    for pattern, expected in by_text.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
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
    """Describe each value of the object that contradicts the key; `values_of` reads a field."""
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
                    yield f"{field} is {value}, the key has {group} {match[0]}, which requires {choices}"


def _agrees(value: object, expected: Scalar | ValueRange) -> bool:
    if isinstance(expected, ValueRange):
        return isinstance(value, int | float) and expected.minimum <= value <= expected.maximum
    if isinstance(expected, str):
        return str(value) == expected
    return value == expected
