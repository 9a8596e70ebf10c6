"""NEXRAD Level III products by code: mnemonic, name, range, unit, and the place of a period of accumulation.

Belongs here: the table and its look-up. Does not belong here: what a single object says (`nexrad_l3_message.py`).
`nexrad_l3_products.csv` states its sources in its first lines.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

GENERAL_STATUS = 2
FREE_TEXT = 75
TDWR = range(180, 188)
"""Codes that terminal Doppler weather radars alone have (ICD 2620063, table III)."""
CLASSIFICATIONS = (165, 177)
"""Codes whose values are classes of hydrometeors."""
HYDROMETEORS: Mapping[int, str] = {
    0: "below-threshold",
    10: "biological",
    20: "ground-clutter",
    30: "ice-crystals",
    40: "dry-snow",
    50: "wet-snow",
    60: "rain",
    70: "heavy-rain",
    80: "big-drops",
    90: "graupel",
    100: "hail",
    110: "large-hail",
    120: "giant-hail",
    140: "unknown",
    150: "range-folded",
}
"""Classes by stored value (ICD 2620001, table III, notes on codes 165 and 177)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductKind:
    """What all objects of a product have in common.

    mnemonic: empty where the ICDs have none. range_m: metres from the radar; None for a profile over it, a text or
    its state. unit: of its values, empty where it has none. begin, end: numbers (1 to 10) of the product-dependent
    parameters with date and minute of an accumulation's begin or end. minutes: its length where no begin is stated;
    length: the parameter that has it.
    """

    code: int
    mnemonic: str
    name: str
    range_m: int | None
    unit: str
    begin: tuple[int, int] | None
    end: tuple[int, int] | None
    minutes: int | None
    length: int | None


@cache
def product_kinds() -> Mapping[int, ProductKind]:
    """All products by code."""
    text = files("kfm_dagster.readers").joinpath("nexrad_l3_products.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return {
        int(row["code"]): ProductKind(
            code=int(row["code"]),
            mnemonic=row["mnemonic"],
            name=row["name"],
            range_m=int(row["range_km"]) * 1000 if row["range_km"] else None,
            unit=row["unit"],
            begin=_places(row["begin"]),
            end=_places(row["end"]),
            minutes=int(row["minutes"]) if (row["minutes"] or "").isdecimal() else None,
            length=int(row["minutes"][1:]) if (row["minutes"] or "").startswith("=") else None,
        )
        for row in rows
    }


def _places(text: str) -> tuple[int, int] | None:
    date, _, minute = text.partition(":")
    return (int(date), int(minute or int(date) + 1)) if date else None
