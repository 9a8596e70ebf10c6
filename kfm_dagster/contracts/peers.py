"""Peers: objects of one product, whose sizes say what size another one has (ADR 030).

Belongs here: what a contract declares, what a unit carries of its peers, and which sizes are far from theirs. Does not
belong here: where peers are kept (`ledger/size_peers.py`) and the check itself (`operators/integrity_check.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel, Field

PEERS_KEPT = 24
"""So many recent ones of a product. Of 24, five may be cut before what is cut is taken for usual."""
FAR_OUT = 3
"""Interquartile ranges beyond the quartiles (Tukey, Exploratory Data Analysis, 1977: values beyond are "far out")."""


class Peers(BaseModel, extra="forbid", frozen=True):
    """Which objects are one product, and how far from its peers a size is suspect."""

    groups: list[str] = Field(
        description="Groups of the key grammar that tell products apart, as far as sizes go: a lead, a band, a site."
    )
    factor: float = Field(
        gt=1,
        le=1000,
        description="No size within this factor of its peers' middle half is suspect; peers that vary allow more.",
    )
    minimum: int = Field(8, ge=4, le=PEERS_KEPT, description="Of fewer peers nothing is said.")


class PeerSizes(NamedTuple):
    """What a unit carries of its peers: how many, and the quartiles of their sizes in bytes."""

    number: int
    lower: int
    upper: int

    @classmethod
    def of(cls, sizes: Iterable[int]) -> PeerSizes | None:
        """Return the quartiles of sizes above 0, as two of the sizes themselves; None of no size."""
        ordered = sorted(sizes)
        if not ordered:
            return None
        quarter = (len(ordered) - 1) // 4
        return cls(len(ordered), ordered[quarter], ordered[-1 - quarter])

    def expected(self, factor: float) -> tuple[int, int]:
        """Return the smallest and the largest size in bytes that is not suspect.

        Tukey's outer fences over the logarithms of the sizes, and never nearer to the quartiles than the factor.
        """
        margin = max(factor, (self.upper / self.lower) ** FAR_OUT)
        return math.ceil(self.lower / margin), math.floor(self.upper * margin)
