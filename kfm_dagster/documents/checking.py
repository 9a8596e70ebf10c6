"""Validation of documents by a model: the first fault, its place, and the expected value.

Belongs here: the parts that contracts, the pipeline card, selections and plans share. Does not belong here: the parser
(`yaml_text.py`), the models, or the errors that their loaders raise.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

KeyPath = Sequence[int | str]
"""The keys and positions that lead to a value of a document."""
Model = TypeVar("Model", bound=BaseModel)
_SHOWN = 120
"""Characters of a wrong value that are shown."""


class DocumentError(ValueError):
    """A document is not what its model asks for: `path` leads to what is wrong first, `more` counts what else is."""

    def __init__(self, *, path: KeyPath, observed: str, expected: str, more: int = 0) -> None:
        super().__init__(f"observed {observed}; expected {expected}")
        self.path = path
        self.observed = observed
        self.expected = expected
        self.more = more

    @property
    def what(self) -> str:
        """What is wrong, with dots between the keys."""
        where = ".".join(str(part) for part in self.path if part != "[key]") or "the document"
        return f"{where} is wrong" + (f" ({self.more} more)" if self.more else "")


def checked(document: object, model: type[Model]) -> Model:
    """Build a model from plain values, without coercing "3" to a number. Raises DocumentError."""
    try:
        # Through JSON, whose strict mode still takes text for a time or an enum.
        content = json.dumps(document, allow_nan=False, ensure_ascii=False, default=_as_text).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(path=(), observed=str(error), expected="what JSON can hold") from None
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise _first(error.errors(), model) from None


def _as_text(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} {str(value)[:_SHOWN]!r}")


def line_of(tree: yaml.Node | None, path: KeyPath) -> int:
    """Return the line (from 1) of a path's value, or of the last part of the path that exists."""
    node = tree
    line = 1 if node is None else node.start_mark.line + 1
    for part in path:
        child: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, child = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is None:
            break
        node = child
    return line


def _first(errors: Sequence[ErrorDetails], model: type[BaseModel]) -> DocumentError:
    # A misspelt key is also missing under its right name: it explains both faults, so it comes first.
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    path, more = first["loc"], len(errors) - 1
    match first["type"]:
        case "extra_forbidden":
            *above, name = path
            known = list(_keys(model, above))
            candidates = get_close_matches(str(name), known, n=1) or known
            expected = candidates[0] if len(candidates) == 1 else f"one of {', '.join(candidates)}"
            return DocumentError(path=path, observed=f"unknown key {name!r}", expected=expected, more=more)
        case "missing":
            return DocumentError(path=path, observed="nothing", expected="a value: the key is required", more=more)
        case _:
            # The beginning of a whole section would not explain the fault.
            is_section = first["type"] == "value_error" and isinstance(first["input"], Mapping)
            shown = "parts that do not go together" if is_section else repr(first["input"])[:_SHOWN]
            message = first["msg"].removeprefix("Value error, ")
            return DocumentError(path=path, observed=shown, expected=message, more=more)


def _keys(model: type[BaseModel], path: KeyPath) -> Iterator[str]:
    """Yield the keys that a model's JSON Schema allows at a path."""
    schema = model.model_json_schema()
    nodes: list[Mapping[str, Any]] = [schema]
    for part in path:
        # A part that is in no schema is pydantic's name of a union member, not a key.
        nodes = [child for node in _resolved(nodes, schema) for child in _below(node, part)] or nodes
    yield from dict.fromkeys(name for node in _resolved(nodes, schema) for name in node.get("properties", ()))


def _below(node: Mapping[str, Any], part: int | str) -> Iterator[Mapping[str, Any]]:
    kinds = node.get("discriminator", {}).get("mapping", {})
    if part in node.get("properties", ()):
        yield node["properties"][part]
    elif part in kinds:
        yield {"$ref": kinds[part]}
    elif isinstance(part, int) and "items" in node:
        yield node["items"]
    elif isinstance(node.get("additionalProperties"), Mapping):
        yield node["additionalProperties"]


def _resolved(nodes: Iterable[Mapping[str, Any]], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for node in nodes:
        if "$ref" in node:
            yield from _resolved([schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]], schema)
        for choice in ("anyOf", "oneOf"):
            yield from _resolved(node.get(choice, ()), schema)
        yield node
