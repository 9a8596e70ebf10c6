"""Virtual stores: the Items of a store, and the variable that orders them (ADR 031).

Belongs here: the declarations. Does not belong here: building and publishing a store (`followers/virtual/`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from kfm_dagster.configs import Regex, Strict

_Group = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$", max_length=40)]
_GROUP = re.compile(r"{(\w+)}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)


class VirtualStore(Strict):
    """Rule that assigns Items to stores, by name and day; each Item is a step of its store."""

    match: dict[_Group, Regex] = Field(
        description="Groups of the key grammar, each with a regular expression for the whole value of the group."
    )
    name: str = Field(
        pattern=r"^([A-Za-z0-9_.-]|\{\w+\})+$",
        max_length=200,
        description="Template over the groups of the key grammar: Items with the same name share a store.",
    )
    along: str = Field(
        pattern=r"^[A-Za-z]\w*$",
        max_length=60,
        description="Scalar variable of each object that orders the steps; for GRIB2, valid_time or reference_time.",
    )
    fields: list[Regex] = Field(
        [],
        description="Fields of GRIB2 objects: regular expressions for the whole text of variable and level in the "
        "index, such as `TMP 2 m above ground`. Each field costs a request.",
    )
    hours: Literal[1, 2, 3, 4, 6, 8, 12, 24] = Field(
        24, description="Hours of a day in each store; use fewer if a day has more chunks than a client can load."
    )

    @property
    def groups(self) -> set[str]:
        """Groups of the key grammar that the rule uses."""
        return {*self.match, *_GROUP.findall(self.name)}

    def store_of(self, groups: Mapping[str, str], hour: int) -> str | None:
        """Return the store of an object with these groups and hour (UTC); None without a store."""
        texts = defaultdict(str, groups)
        if not all(re.fullmatch(pattern, texts[name]) for name, pattern in self.match.items()):
            return None
        # A group without a match is empty, so its separators are left over.
        name = self.name.format_map(texts).strip("_.-")
        if self.hours < 24:
            name += f"_{hour - hour % self.hours:02}h"
        return name if _NAME.fullmatch(name) else None
