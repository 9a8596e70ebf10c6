"""YAML documents (contracts, pipeline card, selections of replays), validated by models.

Every process first reads contracts and the card, so the parser must be fast. Belongs here: the choice of the parser,
and the first fault of a wrong document, with its location and the expected value. Does not belong here: the models, or
the errors that their loaders raise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kfm_dagster.errors import expectation

KeyPath = Sequence[int | str]
"""The keys and positions that lead to a value of a document."""
Model = TypeVar("Model", bound=BaseModel)
_SHOWN = 120
"""Number of characters of a wrong value that an error shows."""


_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser, which takes a fifth of the time of PyYAML's own; PyYAML is sometimes built without libyaml."""
MOST_LEVELS = 100
"""Maximum levels of lists and mappings, because libyaml's composer recurses and crashes at some ten thousand levels."""
MOST_VALUES = 100_000
"""Maximum keys and values of a document; an anchored part counts at each use. Our largest contract has about 1,000."""
_WRONG_KEYS = {
    "tag:yaml.org,2002:bool": "is true or false to YAML 1.1: write it in quotes",
    "tag:yaml.org,2002:null": "is nothing to YAML: write it in quotes",
}


class _Loader(_PARSER):  # type: ignore[misc]
    """A loader that reports invalid scalars, such as 2025-04-31, like other faults."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002, as PyYAML has it
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
            fault = f"{str(node.value)[:_SHOWN]!r} is not a value: {error}"
            raise yaml.constructor.ConstructorError(problem=fault, problem_mark=node.start_mark) from None


def read_yaml(text: str) -> Any:
    """Return the only document of a text, None for an empty text. Raises yaml.YAMLError.

    Wrong keys and excessive size raise this error, too. YAML 1.2.2, section 3.2.1.1, requires the keys of a mapping to
    be unique, but in PyYAML the last key wins silently. PyYAML reads YAML 1.1, where `yes`, `on` and `no` are booleans
    and `~` is null; such keys are refused.
    """
    _refuse_excess(text)
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None
        _refuse_wrong_keys(tree)
        return loader.construct_document(tree)
    finally:
        loader.dispose()


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the node tree, with lines, of a text that read_yaml accepted."""
    tree: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return tree


def _refuse_excess(text: str) -> None:
    """Raise ComposerError for a text of too many levels or values, before its tree is built."""
    sizes: dict[str | None, int] = {}
    parts: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=_Loader):
        mark: Any = event.start_mark  # libyaml's and PyYAML's parsers have different types of marks
        if isinstance(event, yaml.CollectionStartEvent):
            parts.append((event.anchor, 1))
            if len(parts) > MOST_LEVELS + 1:
                raise yaml.composer.ComposerError(
                    problem=f"more than {MOST_LEVELS} levels of lists and mappings", problem_mark=mark
                )
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = parts.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            size = MOST_VALUES if event.anchor in dict(parts) else sizes.get(event.anchor, 0)
        else:
            size = 1 if isinstance(event, yaml.ScalarEvent) else 0
        anchor, total = parts.pop()
        parts.append((anchor, total + size))
        if total + size > MOST_VALUES:
            raise yaml.composer.ComposerError(problem=f"more than {MOST_VALUES:,} keys and values", problem_mark=mark)


def _refuse_wrong_keys(tree: yaml.Node) -> None:
    """Raise ConstructorError for a duplicate key, or a key that YAML reads as a boolean or null."""
    seen: set[int] = set()
    rest: list[Any] = [tree]
    while rest:
        node = rest.pop()
        # An anchor may be used several times, even below itself.
        if isinstance(node, yaml.ScalarNode) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            rest += node.value
            continue
        names: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (hint := _WRONG_KEYS.get(key.tag)) or key.value in names:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key.value!r} {hint or 'comes twice'}", problem_mark=key.start_mark
                    )
                names.add(key.value)
            rest.append(value)


class DocumentError(ValueError):
    """A document does not fit its model; `path` has the first fault, `more` counts other faults."""

    def __init__(self, *, path: KeyPath, observed: str, expected: str, more: int = 0) -> None:
        super().__init__(f"observed {observed}; expected {expected}")
        self.path = path
        self.observed = observed
        self.expected = expected
        self.more = more

    @property
    def what(self) -> str:
        """The path of the fault, with dots between keys, and the number of other faults."""
        where = ".".join(str(part) for part in self.path if part != "[key]") or "the document"
        return f"{where} is wrong" + (f" ({self.more} more)" if self.more else "")


def checked(document: object, model: type[Model]) -> Model:
    """Build a model from plain values, without coercing "3" to a number. Raises DocumentError."""
    try:
        # Validated as JSON: pydantic's strict mode accepts a text for a time or an enum only from JSON.
        content = json.dumps(document, allow_nan=False, ensure_ascii=False, default=_as_text).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DocumentError(path=(), observed=str(error), expected="values that JSON can hold") from None
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
    # A misspelt key causes two faults, an unknown key and a missing one. The unknown key explains both.
    first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
    path, more = first["loc"], len(errors) - 1
    match first["type"]:
        case "extra_forbidden":
            *above, name = path
            known = _keys(model, above)
            candidates = get_close_matches(str(name), known, n=1) or known
            expected = candidates[0] if len(candidates) == 1 else f"one of {', '.join(candidates)}"
            return DocumentError(path=path, observed=f"unknown key {name!r}", expected=expected, more=more)
        case "missing":
            return DocumentError(path=path, observed="nothing", expected="a value: the key is required", more=more)
        case _:
            # For a fault of a whole section, the error's message is shown: the section's text would be cut off.
            is_section = first["type"] == "value_error" and isinstance(first["input"], Mapping)
            message = expectation(first["msg"])
            if is_section:
                return DocumentError(path=path, observed=message, expected="parts that agree", more=more)
            return DocumentError(path=path, observed=repr(first["input"])[:_SHOWN], expected=message, more=more)


def _keys(model: type[BaseModel], path: KeyPath) -> Sequence[str]:
    """Return the keys of the models at a path."""
    models = [model]
    for part in path:
        # A part that no model names is a position, a key of a mapping, or pydantic's name of a union member.
        below = [field.annotation for each in models for name, field in _fields(each) if name == part]
        models = [inner for annotation in below for inner in _models_in(annotation)] or models
    return list(dict.fromkeys(name for each in models for name, _ in _fields(each)))


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    yield from ((field.alias or name, field) for name, field in model.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an annotation names, also within a list, a mapping or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
