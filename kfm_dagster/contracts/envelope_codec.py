"""Envelope codec: leaves derived from the envelope's fields, and values at rest (as stored).

A leaf is a field of the envelope or of a section: `object_size`, `integrity_status`. Rows of the ledger and columns of
an artifact consist of leaves, so only `envelope.py` has to name a field. Belongs here: leaves and values. Does not
belong here: the other columns of a ledger row (`ledger/rows.py`), Arrow (`stages/envelope_table.py`).
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
    """A field that holds a single value.

    `kind` is the type of the value at rest: str, int, float, bool, datetime, or a list of these; JSON is str.
    """

    name: str
    member: str
    """The field's name in its class."""
    kind: Any
    required: bool
    encode: Convert | None
    """Converts a value that is not None to its value at rest; None if no conversion is needed."""
    decode: Convert | None
    extension: bool
    """Whether the ledger stores the leaf among a record's extension fields."""

    def at_rest(self, values: Sequence[Any]) -> list[Any]:
        """Return the values at rest."""
        encode = self.encode
        return list(values) if encode is None else [None if value is None else encode(value) for value in values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """The leaves of one class: those of the envelope itself, or of a member such as `integrity`.

    An optional section begins with a required field, so that its first leaf shows whether the section is present.
    """

    member: str | None
    """The envelope's field that holds the section; None for the envelope itself."""
    owner: type
    optional: bool
    leaves: tuple[Leaf, ...]

    def values(self, units: Sequence[Envelope]) -> Iterator[tuple[Leaf, list[Any]]]:
        """Yield each leaf with a value per unit; None for a unit without the section."""
        parts = units if self.member is None else [getattr(unit, self.member) for unit in units]
        for leaf in self.leaves:
            yield leaf, [None if part is None else getattr(part, leaf.member) for part in parts]

    def read(self, row: Sequence[Any]) -> dict[str, Any] | None:
        """Return the section's fields from its leaves' values at rest; None for an absent section."""
        if self.optional and row[0] is None:
            return None
        return {
            leaf.member: value if value is None or leaf.decode is None else leaf.decode(value)
            for leaf, value in zip(self.leaves, row, strict=True)
        }


@cache
def sections() -> tuple[Section, ...]:
    """Return the section of the envelope's own leaves, then its other sections in field order."""
    hints = get_type_hints(Envelope)
    classes = {name: _dataclass_of(hints[name]) for name in hints}
    own_fields = [name for name in hints if classes[name] is None]
    return (
        Section(
            member=None,
            owner=Envelope,
            optional=False,
            leaves=tuple(_leaf("", Envelope, name, hints[name]) for name in own_fields),
        ),
        *(
            Section(
                member=name,
                owner=kind,
                optional=_optional(hints[name]),
                leaves=tuple(
                    _leaf(f"{name}_" if _optional(hints[name]) else "", kind, member, hint)
                    for member, hint in get_type_hints(kind).items()
                ),
            )
            for name, kind in classes.items()
            if kind is not None
        ),
    )


def leaves() -> tuple[Leaf, ...]:
    """Return all leaves in order; their names are unique."""
    return tuple(leaf for section in sections() for leaf in section.leaves)


def values(units: Sequence[Envelope]) -> Iterator[tuple[Leaf, list[Any]]]:
    """Yield each leaf with a value per unit."""
    for section in sections():
        yield from section.values(units)


def units(rows: Iterable[Sequence[Any]]) -> Iterator[Envelope]:
    """Yield an envelope for each row of leaf values at rest."""
    parts = []
    start = 0
    for section in sections():
        parts.append((section, start, start + len(section.leaves)))
        start += len(section.leaves)
    envelope_part, *section_parts = parts
    for row in rows:
        fields = envelope_part[0].read(row[: envelope_part[2]]) or {}
        for section, first, last in section_parts:
            values = section.read(row[first:last])
            if section.member is not None:
                fields[section.member] = None if values is None else section.owner(**values)
        yield Envelope(**fields)


def json_at_rest(value: Any) -> str:
    """Return the canonical JSON of a value: equal values have equal texts."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _leaf(prefix: str, owner: type, member: str, hint: Any) -> Leaf:
    kind, encode, decode = _at_rest(_inner(hint))
    [definition] = (entry for entry in dataclasses.fields(owner) if entry.name == member)
    return Leaf(
        name=f"{prefix}{member}",
        member=member,
        kind=kind,
        required=not _optional(hint),
        encode=encode,
        decode=decode,
        extension=EXTENSION in definition.metadata,
    )


def _at_rest(hint: Any) -> tuple[Any, Convert | None, Convert | None]:
    """Return a type's kind at rest, encoder and decoder. Raises TypeError for unknown types."""
    hint = getattr(hint, "__supertype__", hint)  # of a NewType
    origin = get_origin(hint)
    if hint == tuple[Issue, ...]:
        form: tuple[Any, Convert | None, Convert | None] = (str, json_at_rest, _issues)
    elif origin is tuple:
        form = (GenericAlias(list, get_args(hint)[:1]), list, tuple)
    elif origin is Mapping:
        form = (str, json_at_rest, orjson.loads)
    elif isinstance(hint, type) and issubclass(hint, Enum):
        form = (str, attrgetter("value"), {member.value: member for member in hint}.__getitem__)
    elif hint is datetime:
        form = (datetime, None, _utc)
    elif hint in {str, int, float, bool}:
        form = (hint, None, None)
    else:
        raise TypeError(f"envelope_codec.py has no form at rest for {hint}")
    return form


def _inner(hint: Any) -> Any:
    """Return the type without None."""
    if _optional(hint):
        (hint,) = (argument for argument in get_args(hint) if argument is not NoneType)
    return hint


def _optional(hint: Any) -> bool:
    # `|` gives a typing.Union for a NewType and a types.UnionType for a class.
    return get_origin(hint) in {Union, UnionType} and NoneType in get_args(hint)


def _dataclass_of(hint: Any) -> type | None:
    kind = _inner(hint)
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def _issues(text: str) -> tuple[Issue, ...]:
    return tuple(Issue(**{**entry, "severity": Severity(entry["severity"])}) for entry in orjson.loads(text))


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)
