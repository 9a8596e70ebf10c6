"""The codec of the envelope: its leaves, derived from the fields of its dataclasses, and each one's value at rest.

A leaf is a field of the envelope or of one of its sections: `object_size`, `integrity_status`. Rows of the ledger and
columns of an artifact are made of leaves, so that a field is named in `envelope.py` and nowhere else. Belongs here:
leaves and values. Does not belong here: what a ledger's row has besides (`ledger/rows.py`), Arrow
(`stages/envelope_table.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from types import GenericAlias, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson

from kfm_dagster.contracts.envelope import EXTENSION, Envelope
from kfm_dagster.contracts.issues import Issue, Severity

Convert = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """A field that has a value of its own.

    `kind` is what the value is at rest: str, int, float, bool, datetime, or a list of these; JSON is str.
    """

    name: str
    member: str
    """The field's name in its class."""
    kind: Any
    required: bool
    encode: Convert | None
    """Makes the value at rest of one that is not None; None where they are the same."""
    decode: Convert | None
    extension: bool
    """Whether the ledger keeps it among a record's extension fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A class of leaves: the envelope itself, or a member of it.

    One that may be absent begins with a field that it always has, so that its first leaf says whether it is there.
    """

    member: str | None
    """The envelope's field that holds it; None for the envelope itself."""
    made: type
    optional: bool
    leaves: tuple[Leaf, ...]

    def columns(self, units: Sequence[Envelope]) -> Iterator[list[Any]]:
        """Yield each leaf's values at rest, one a unit; None for a unit that does not have the section."""
        made = units if self.member is None else [getattr(unit, self.member) for unit in units]
        for leaf in self.leaves:
            member, encode = leaf.member, leaf.encode
            values = [None if one is None else getattr(one, member) for one in made]
            yield values if encode is None else [None if value is None else encode(value) for value in values]

    def read(self, row: Sequence[Any]) -> dict[str, Any] | None:
        """Return the fields of the section from its leaves' values at rest; None for one that is not there."""
        if self.optional and row[0] is None:
            return None
        return {
            leaf.member: value if value is None or leaf.decode is None else leaf.decode(value)
            for leaf, value in zip(self.leaves, row, strict=True)
        }


@cache
def sections() -> tuple[Section, ...]:
    """Return the envelope's own leaves, and then those of each of its sections, in the order of the fields."""
    hints = get_type_hints(Envelope)
    inner = {name: _dataclass_of(hints[name]) for name in hints}
    own = [name for name in hints if inner[name] is None]
    return (
        Section(
            member=None,
            made=Envelope,
            optional=False,
            leaves=tuple(_leaf("", Envelope, name, hints[name]) for name in own),
        ),
        *(
            Section(
                member=name,
                made=made,
                optional=_optional(hints[name]),
                leaves=tuple(
                    _leaf(f"{name}_" if _optional(hints[name]) else "", made, member, hint)
                    for member, hint in get_type_hints(made).items()
                ),
            )
            for name, made in inner.items()
            if made is not None
        ),
    )


def leaves() -> tuple[Leaf, ...]:
    """Return every leaf, in order; its names are unique."""
    return tuple(leaf for section in sections() for leaf in section.leaves)


def columns(units: Sequence[Envelope]) -> list[list[Any]]:
    """Return the values at rest of each leaf, one a unit."""
    return [column for section in sections() for column in section.columns(units)]


def units(given: Iterable[Sequence[Any]]) -> Iterator[Envelope]:
    """Yield the envelopes whose leaves have those values, a row to a unit."""
    parts = []
    start = 0
    for section in sections():
        parts.append((section, start, start + len(section.leaves)))
        start += len(section.leaves)
    own, *further = parts
    for row in given:
        fields = own[0].read(row[: own[2]]) or {}
        for section, first, last in further:
            read = section.read(row[first:last])
            if section.member is not None:
                fields[section.member] = None if read is None else section.made(**read)
        yield Envelope(**fields)


def json_at_rest(value: Any) -> str:
    """Return the one JSON text of a value: equal values have equal texts."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _leaf(prefix: str, owner: type, member: str, hint: Any) -> Leaf:
    kind, encode, decode = _at_rest(_inner(hint))
    [declared] = (one for one in dataclasses.fields(owner) if one.name == member)
    return Leaf(
        name=f"{prefix}{member}",
        member=member,
        kind=kind,
        required=not _optional(hint),
        encode=encode,
        decode=decode,
        extension=EXTENSION in declared.metadata,
    )


def _at_rest(hint: Any) -> tuple[Any, Convert | None, Convert | None]:
    """Return what values of a type are at rest, and the way there and back. Raises TypeError for an unknown type."""
    hint = getattr(hint, "__supertype__", hint)  # of a NewType
    origin = get_origin(hint)
    if hint == tuple[Issue, ...]:
        found: tuple[Any, Convert | None, Convert | None] = (str, json_at_rest, _issues)
    elif origin is tuple:
        found = (GenericAlias(list, get_args(hint)[:1]), list, tuple)
    elif origin is Mapping:
        found = (str, json_at_rest, orjson.loads)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        found = (str, attrgetter("value"), {member.value: member for member in hint}.__getitem__)
    elif hint is datetime:
        found = (datetime, None, _utc)
    elif hint in {str, int, float, bool}:
        found = (hint, None, None)
    else:
        raise TypeError(f"envelope_codec.py has no form at rest for {hint}")
    return found


def _inner(hint: Any) -> Any:
    """Return the type without None."""
    if _optional(hint):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    return hint


def _optional(hint: Any) -> bool:
    # A NewType's `|` is of typing, a class's of types.
    return get_origin(hint) in {Union, UnionType} and NoneType in get_args(hint)


def _dataclass_of(hint: Any) -> type | None:
    inner = _inner(hint)
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def _issues(text: str) -> tuple[Issue, ...]:
    return tuple(Issue(**{**found, "severity": Severity(found["severity"])}) for found in orjson.loads(text))


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
