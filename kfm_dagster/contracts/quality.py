"""What a contract says for the gates of the pipeline card: citations, units, freshness and coverage.

Belongs here: the declarations and what they match. Does not belong here: the gates that hold a batch against them
(`stages/gates/`), nor the rest of the contract (`model.py`).
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from enum import StrEnum, unique
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, Field, PositiveInt, model_validator

FieldPattern = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_:. -]*\*?$", max_length=100)]
"""A field by its path, or a beginning of paths that ends in `*`; `bands` also covers `bands.name`.

Native values of the reader are below `native.`. At least one letter is asked for: `*` alone would cover whatever a
reader comes to extract, and declare nothing.
"""
_Text = Annotated[str, Field(min_length=1, max_length=200)]


class Declaration(BaseModel, extra="forbid", frozen=True):
    """Base of the parts below, as strict as the rest of a contract."""


def covers(pattern: str, path: str) -> bool:
    """Tell whether a field pattern covers the path of a field."""
    if pattern.endswith("*"):
        return path.startswith(pattern[:-1])
    return path == pattern or path.startswith(pattern + ".")


@unique
class AnchorKind(StrEnum):
    """What stands at an anchor (P/S/M/I of the pipeline card's section II; its library's "unified numbering")."""

    P = "P"
    """Postulate: a definition or convention that is set, not derived. A code table, a register."""
    S = "S"
    """Minimal equation: what the values are computed by. A projection, a grid."""
    M = "M"
    """Metrology process: how the values were measured, or set for measuring. A scan strategy, an instrument's state."""
    I = "I"  # noqa: E741 - the letter that the card has
    """Implementation binding: where and in which form they are. A field of a format, a module."""


class Citation(Declaration):
    """Where fields are defined: volume, version and anchor of the source (pipeline card, chapter 7, section II)."""

    fields: list[FieldPattern] = Field(min_length=1)
    volume: _Text = Field(description="The document, with its number.")
    version: _Text = Field(description="Revision or edition of the document.")
    anchor: _Text = Field(description="Section, table or template.")
    kind: AnchorKind = Field(
        description="What is there: P postulate, S minimal equation, M metrology process, I implementation binding."
    )


class Quantity(Declaration):
    """The unit that a reader gives numbers in, and what they can be. Units are pint's (stages/gates/units.txt)."""

    fields: list[FieldPattern] = Field(min_length=1)
    unit: str = Field(max_length=40, description='E.g. "m", "degree", "m/s"; "1" for counts, codes and fractions.')
    dimension: str | None = Field(
        None,
        pattern=r"^(1|\[[a-z]+\]( ?[*/] ?\[[a-z]+\]| ?\*\* ?-?\d)*)$",
        description='E.g. "[length]", "[length] / [time]", "1" for none. STAC says it for its own fields.',
    )
    minimum: float | None = Field(None, description="Smallest possible value, in the unit.")
    maximum: float | None = Field(None, description="Largest possible value, in the unit.")

    @model_validator(mode="after")
    def _range_is_one(self) -> Quantity:
        if self.minimum is not None and self.maximum is not None and self.maximum < self.minimum:
            raise ValueError("maximum is less than minimum")
        return self


class Freshness(Declaration):
    """How old a live unit's event may be when a run takes the unit up; bulk work is exempt."""

    budget_seconds: PositiveInt


class ExpectedProduct(Declaration):
    """Objects that every hour of a partition must have, told by the groups of their keys that the ledger keeps."""

    name: str = Field(min_length=1, max_length=80)
    groups: dict[str, str] = Field({}, description="Extension fields of the ledger with the value that counts.")
    per_hour: PositiveInt = Field(
        description="Objects that begin within one UTC hour; where their number varies, the least that is usual."
    )
    every_seconds: PositiveInt | None = Field(
        None,
        description="Seconds between one scan, frame or run and the next: after two of them without an announcement "
        "the product is silent. Default: the longest time between two of `hours`, else an hour by per_hour.",
    )
    hours: list[Annotated[int, Field(ge=0, le=23)]] = Field([], description="UTC hours that have it. Default: all.")
    since: date | None = Field(None, description="First day that has it. Default: always.")
    until: date | None = Field(None, description="First day that has it no more. Default: never.")

    @property
    def cadence(self) -> timedelta:
        """Time between one scan, frame or run and the next."""
        if self.every_seconds is not None:
            return timedelta(seconds=self.every_seconds)
        if not self.hours:
            return timedelta(hours=1) / self.per_hour
        hours = sorted(set(self.hours))
        return timedelta(hours=max(b - a for a, b in pairwise([*hours, hours[0] + 24])))

    def is_due(self, hour: datetime) -> bool:
        """Tell whether an hour (UTC, its beginning) should have the product."""
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


class Coverage(Declaration):
    """What a complete partition holds."""

    settles_after_seconds: int = Field(
        ge=0, le=604_800, description="So long after its end an hour is expected to be complete."
    )
    products: list[ExpectedProduct] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Coverage:
        names = [product.name for product in self.products]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"products {twice} are there twice")
        return self
