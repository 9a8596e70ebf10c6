"""Which units are meant, as a value and as the query of a URL. Not here: finding them (`unit_search.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.evidence_bundle import OPERATORS
from kfm_dagster.ledger.state_machine import Status

MOST_TEXT = 300
_FAILING = (Status.FAILED, Status.QUARANTINED)


class BadFilterError(KfmError):
    """A filter has no such parameter or value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitFilter:
    """Which units are meant; None and "" mean all.

    `code` and `operator` are of units that are failed or quarantined now. `text` is a part of the object's URI, in the
    key's own case. `since` (inclusive) and `until` (exclusive) bound the event time.
    """

    dataset: str | None = None
    status: Status | None = None
    code: str | None = None
    operator: str | None = None
    text: str = ""
    since: datetime | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        """Raise BadFilterError for what no unit can be."""
        if self.of_failures and self.status not in {None, *_FAILING}:
            raise BadFilterError(
                observed=f"status {self.status} with a code or an operator", expected=" or ".join(_FAILING)
            )

    @property
    def of_failures(self) -> bool:
        """Whether only what failed is meant."""
        return self.code is not None or self.operator is not None

    @classmethod
    def of_query(cls, pairs: Sequence[tuple[str, str]]) -> UnitFilter:
        """Read a URL's query; an empty value is none. Raises BadFilterError for what is unknown, wrong or double."""
        given = {name: value for name, value in pairs if value}
        unknown = sorted({name for name, _ in pairs} - set(_READERS))
        if unknown or len({name for name, _ in pairs}) < len(pairs):
            raise BadFilterError(
                observed=repr(unknown[0][:40]) if unknown else "a parameter twice",
                expected=f"{', '.join(_READERS)}, each once at most",
            )
        return cls(**{name: _READERS[name](name, value) for name, value in given.items()})

    def query(self) -> list[tuple[str, str]]:
        """Return the pairs that `of_query` reads."""
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [
            (name, rfc3339(value) if isinstance(value, datetime) else str(value)) for name, value in values if value
        ]


def _bad(name: str, value: str, expected: str) -> BadFilterError:
    return BadFilterError(observed=f"{name}={value[:80]!r}", expected=expected)


def _matching(pattern: str, expected: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise _bad(name, value, expected)
        return value

    return read


def _status(name: str, value: str) -> Status:
    if value not in set(Status):
        raise _bad(name, value, " or ".join(Status))
    return Status(value)


def moment_of(name: str, value: str) -> datetime:
    """Read a moment, or the beginning of a day, in UTC unless it says otherwise. Raises BadFilterError."""
    try:
        moment = datetime.fromisoformat(value)
        moment = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _bad(name, value, "a day or a moment of RFC 3339, such as 2025-12-03 or 2025-12-03T06:00:00Z") from None
    return moment


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "dataset": _matching(r"[a-z0-9-]{1,40}", "the id of a dataset"),
    "status": _status,
    "code": _matching(r"[\w.:-]{1,100}", "an error code, such as missing_object"),
    "operator": _matching("|".join(OPERATORS), " or ".join(OPERATORS)),
    "text": _matching(rf"[ -~]{{1,{MOST_TEXT}}}", f"1 to {MOST_TEXT} characters of ASCII"),
    "since": moment_of,
    "until": moment_of,
}
