"""Key grammar: from an object key to its groups, time range and Item id.

Pure and cached per contract; the patterns come from the contract, so a new dataset needs no code.
"""

from __future__ import annotations

import re
from calendar import isleap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum, auto
from functools import lru_cache
from operator import itemgetter

from kfm_dagster.contracts.identity import is_plausible, rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.source import TimeField

MAX_KEY_BYTES = 1024
"""Maximum bytes of a key in UTF-8 (S3 user guide, "Naming Amazon S3 objects")."""


class KeyKind(Enum):
    """Kind of a key of a known bucket, for a dataset."""

    DATA = auto()
    SIDECAR = auto()
    IGNORED = auto()
    FOREIGN = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyMatch:
    """A parsed data key: named groups, and a plausible time range in UTC with start <= end."""

    groups: Mapping[str, str]
    start: datetime
    end: datetime
    item_id: str
    precedence: str


class InvalidKeyTimeError(ValueError):
    """The key matches the pattern, but its stamps are not a valid time range."""


class KeyGrammarReader:
    """A contract's compiled grammar."""

    def __init__(self, contract: DatasetContract) -> None:
        self.contract = contract
        grammar = contract.storage.key_grammar
        # re.ASCII, because an Arabic-Indic digit in a key is not a digit of a time stamp. `kind` and then `match` are
        # called for each key; the cache makes the second call a look-up.
        self._fullmatch = lru_cache(maxsize=64)(re.compile(grammar.pattern, re.ASCII).fullmatch)
        self._ignore = tuple(re.compile(pattern) for pattern in contract.storage.ignore)
        self._start = _stamp_reader(grammar.start) if isinstance(grammar.start, TimeField) else None
        self._end = _stamp_reader(grammar.end) if grammar.end else None

    def kind(self, key: str) -> KeyKind:
        """Return a key's kind: data object, sidecar, ignored or foreign.

        A key that is unsafe as a path is FOREIGN, even if the contract's patterns match it.
        """
        if not is_safe_key(key):
            return KeyKind.FOREIGN
        if self._fullmatch(key):
            return KeyKind.DATA
        for sidecar in self.contract.storage.sidecars:
            if key.endswith(sidecar.suffix) and self._fullmatch(key.removesuffix(sidecar.suffix)):
                return KeyKind.SIDECAR
        if any(pattern.search(key) for pattern in self._ignore):
            return KeyKind.IGNORED
        return KeyKind.FOREIGN

    def match(self, key: str, event_time: datetime | None = None) -> KeyMatch | None:
        """Parse a data key; None for other keys. Raises InvalidKeyTimeError for impossible stamps.

        `event_time` is the time of the object's event, or its Last-Modified. The range of a key without a time begins
        with the UTC day of `event_time` and ends at `event_time`. Without `event_time`, the range is the beginning
        of the dataset's first day.
        """
        match = self._fullmatch(key)
        if match is None or not is_safe_key(key):
            return None
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        # In a template, a group without a match is an empty text.
        texts = groups if len(groups) == len(match.re.groupindex) else match.groupdict("")
        grammar = self.contract.storage.key_grammar
        for name, implied in grammar.implied.items():
            groups[name] = texts[name] = implied.of(texts[implied.by])
        start, end = self._times(texts, event_time)
        if end < start:
            raise InvalidKeyTimeError(f"end {rfc3339(end)} is before start {rfc3339(start)}")
        if not (is_plausible(start) and is_plausible(end)):
            raise InvalidKeyTimeError(f"{rfc3339(start)} to {rfc3339(end)} is not a time of an observation or forecast")
        if start.date() < (first_day := self.contract.storage.first_day):
            raise InvalidKeyTimeError(f"{rfc3339(start)} is before {first_day}, the first day of the dataset")
        stac = self.contract.stac
        return KeyMatch(
            groups=groups,
            start=start,
            end=end,
            item_id=stac.item_id.format_map(texts),
            precedence=texts[stac.precedence] if stac.precedence else "",
        )

    def _times(self, texts: Mapping[str, str], event_time: datetime | None) -> tuple[datetime, datetime]:
        if self._start is None:
            end = event_time or datetime.combine(self.contract.storage.first_day, time(), UTC)
            return end.replace(hour=0, minute=0, second=0, microsecond=0), end
        start = self._start(texts)
        if self._end is not None:
            return start, self._end(texts)
        offset_group = self.contract.storage.key_grammar.end_offset_hours
        if offset_group is not None and texts[offset_group]:
            return start, _after(start, hours=texts[offset_group])
        return start, start

    def day_holding(self, day: date) -> date:
        """Return the first day of the period that contains a UTC day; keys state day, month or year."""
        start = self.contract.storage.key_grammar.start
        if start == "event" or "%d" in start.format or "%j" in start.format:
            return day
        return day.replace(day=1) if "%m" in start.format else day.replace(month=1, day=1)


def is_safe_key(key: str) -> bool:
    """Return whether a key names a single object, and is safe as a path below a folder.

    A safe key has no control characters, NUL, backslashes, empty segments (as by a leading slash), `.` or `..` as a
    segment, and at most MAX_KEY_BYTES.
    """
    if not key.isprintable() or "\\" in key or len(key.encode()) > MAX_KEY_BYTES:
        return False
    if "/." in key or key.startswith("."):
        return not {"", ".", ".."} & set(key.split("/"))
    return key != "" and key[0] != "/" and key[-1] != "/" and "//" not in key


def _after(start: datetime, *, hours: str) -> datetime:
    if not (hours.isascii() and hours.isdigit()):
        raise InvalidKeyTimeError(f"{hours!r} is not a number of hours")
    try:
        return start + timedelta(hours=int(hours))
    except (OverflowError, ValueError):
        raise InvalidKeyTimeError(f"{hours!r} hours after the start is not a time") from None


_DIGITS = {
    "Y": "([0-9]{4})",
    "m": "([0-9]{2})",
    "d": "([0-9]{2})",
    "j": "([0-9]{3})",
    "H": "([0-9]{2})",
    "M": "([0-9]{2})",
    "S": "([0-9]{2})",
    "f": "([0-9]{1,6})",
}
"""Digits of each directive. `strptime` is not used, because it reads day 380 of %j as day 38 and shifts the rest."""

_DEFAULTS = {"Y": "", "m": "1", "d": "1", "j": "", "H": "0", "M": "0", "S": "0", "f": "0"}
"""Values of directives that the format lacks, in the order of `_utc`'s parameters."""


def _stamp_reader(spec: TimeField) -> Callable[[Mapping[str, str]], datetime]:
    """Return a reader of UTC time stamps of fixed width.

    A final `%f` takes the remaining one to six digits. The reader raises InvalidKeyTimeError.
    """
    tokens = re.findall(r"([^%]+)|%(\w)", spec.format)
    pattern = re.compile(
        "".join(re.escape(literal) if literal else _DIGITS[directive] for literal, directive in tokens)
    )
    directives = [directive for _, directive in tokens if directive]
    # For each part of the time, its index in the tuple of the pattern's groups followed by the defaults.
    parts = itemgetter(
        *(
            directives.index(directive) if directive in directives else len(directives) + default
            for default, directive in enumerate(_DEFAULTS)
        )
    )

    def read(groups: Mapping[str, str]) -> datetime:
        text = spec.value.format_map(groups)
        match = pattern.fullmatch(text)
        try:
            if match is not None:
                return _utc(*parts((*match.groups(), *_DEFAULTS.values())))
        except ValueError:
            pass
        raise InvalidKeyTimeError(f"{text!r} is not a time of the form {spec.format!r}")

    return read


def _utc(year: str, month: str, day: str, of_year: str, hour: str, minute: str, second: str, fraction: str) -> datetime:
    time = datetime(
        int(year), int(month), int(day), int(hour), int(minute), int(second), int(fraction.ljust(6, "0")), UTC
    )
    if not of_year:
        return time
    if not 1 <= int(of_year) <= (366 if isleap(time.year) else 365):
        raise ValueError("no such day of the year")
    return time + timedelta(days=int(of_year) - 1)
