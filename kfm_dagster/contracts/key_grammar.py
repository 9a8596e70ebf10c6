"""Key grammar: from an object key to its groups, time range and Item id, and from a day to the prefixes that hold it.

Pure and cached per contract; the patterns come from the contract, so that a new dataset needs no code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum, auto

from kfm_dagster.contracts.model import DatasetContract, TimeField


class KeyKind(Enum):
    """What a key of a known bucket is to a dataset."""

    DATA = auto()
    SIDECAR = auto()
    IGNORED = auto()
    FOREIGN = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyMatch:
    """A data key understood: named groups, and the time range in UTC with start <= end."""

    groups: Mapping[str, str]
    start: datetime
    end: datetime
    item_id: str
    precedence: str


class InvalidKeyTimeError(ValueError):
    """The key matches the pattern, but its stamps are no valid time range."""


@dataclass(frozen=True)
class KeyGrammarReader:
    """The compiled grammar of one contract."""

    contract: DatasetContract
    _pattern: re.Pattern[str] = field(init=False, repr=False)
    _ignore: tuple[re.Pattern[str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        storage = self.contract.storage
        object.__setattr__(self, "_pattern", re.compile(storage.key_grammar.pattern))
        object.__setattr__(self, "_ignore", tuple(re.compile(pattern) for pattern in storage.ignore))

    def kind(self, key: str) -> KeyKind:
        """Tell a data object from its sidecars, from known neighbours and from everything else."""
        if self._pattern.fullmatch(key):
            return KeyKind.DATA
        for sidecar in self.contract.storage.sidecars:
            if key.endswith(sidecar.suffix) and self._pattern.fullmatch(key.removesuffix(sidecar.suffix)):
                return KeyKind.SIDECAR
        if any(pattern.search(key) for pattern in self._ignore):
            return KeyKind.IGNORED
        return KeyKind.FOREIGN

    def match(self, key: str) -> KeyMatch | None:
        """Understand a data key; None when it is none. Raises InvalidKeyTimeError for impossible stamps."""
        found = self._pattern.fullmatch(key)
        if found is None:
            return None
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        grammar = self.contract.storage.key_grammar
        start = _time(grammar.start, groups)
        if grammar.end is not None:
            end = _time(grammar.end, groups)
        elif grammar.end_offset_hours is not None:
            end = start + timedelta(hours=int(groups[grammar.end_offset_hours]))
        else:
            end = start
        if end < start:
            raise InvalidKeyTimeError(f"end {end:%Y-%m-%dT%H:%M:%SZ} is before start {start:%Y-%m-%dT%H:%M:%SZ}")
        stac = self.contract.stac
        return KeyMatch(
            groups=groups,
            start=start,
            end=end,
            item_id=stac.item_id.format_map(_Blank(groups)),
            precedence=groups.get(stac.precedence, "") if stac.precedence else "",
        )

    def prefixes(self, day: date) -> list[str]:
        """Prefixes that together hold every object of the given UTC day."""
        return [day.strftime(template) for template in self.contract.storage.listing]


class _Blank(dict[str, str]):
    """A group that took no part in the match is empty text in a template."""

    def __missing__(self, key: str) -> str:
        return ""


def _time(spec: TimeField, groups: Mapping[str, str]) -> datetime:
    text = spec.value.format_map(_Blank(groups))
    try:
        return datetime.strptime(text, spec.format).replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidKeyTimeError(f"{text!r} is no time of the form {spec.format!r}") from error
