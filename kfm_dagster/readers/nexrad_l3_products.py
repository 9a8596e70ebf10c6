"""NEXRAD Level III products by code: mnemonic, name, range, and where a period of accumulation stands.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductKind:
    """What all objects of a product have in common.

    mnemonic: empty where the ICDs have none. range_m: metres from the radar; None for a profile over it, a text or
    its state. begin, end: number (1 to 10) of the product-dependent parameter with the date of the accumulation's begin
    or end, the minute follows; None where there is none.
    """

    code: int
    mnemonic: str
    name: str
    range_m: int | None
    begin: int | None
    end: int | None


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
            begin=_number(row["begin"]),
            end=_number(row["end"]),
        )
        for row in rows
    }


def _number(text: str) -> int | None:
    return int(text) if text else None
