"""YAML text to plain values, fast: every process begins with contracts and the card.

Belongs here: the choice of the parser. Does not belong here: the content of a document.
"""

from __future__ import annotations

from typing import Any

import yaml


def _locating(base: Any) -> Any:
    """Return a loader that reports invalid scalars, such as 2025-04-31, like other faults."""

    class Loader(base):  # type: ignore[misc]
        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002, as PyYAML has it
            try:
                return super().construct_object(node, deep=deep)
            except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
                fault = f"{str(node.value)[:_SHOWN]!r} is no value: {error}"
                raise yaml.constructor.ConstructorError(problem=fault, problem_mark=node.start_mark) from None

    return Loader


_LOCATING = _locating(yaml.SafeLoader)
"""Its errors also show the place of a fault."""
_FAST = _locating(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
"""libyaml's parser takes a fifth of the time; PyYAML is sometimes built without it."""
MOST_LEVELS = 100
"""Lists and mappings within each other: libyaml's composer recurses, and ends the process at some ten thousand."""
MOST_VALUES = 100_000
"""Keys and values of a document, an anchored part counted at each use; our largest contract has about 1,000."""
_SHOWN = 60
"""Characters of a wrong scalar that are shown."""
_WRONG_KEYS = {
    "tag:yaml.org,2002:bool": "is true or false to YAML 1.1: write it in quotes",
    "tag:yaml.org,2002:null": "is nothing to YAML: write it in quotes",
}


def read_yaml(text: str) -> Any:
    """Return a text's only document, None if empty. Raises yaml.YAMLError, also for wrong keys and excessive size.

    YAML 1.2.2, section 3.2.1.1, has the keys of a mapping unique; in PyYAML the last one wins silently. PyYAML reads
    YAML 1.1, in which `yes`, `on` and `no` are booleans and `~` is null: none of our keys is.
    """
    try:
        return _read(text, _FAST)
    except yaml.YAMLError:
        return _read(text, _LOCATING)


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the node tree, with lines, of a text that read_yaml accepted."""
    tree: yaml.Node | None
    try:
        tree = yaml.compose(text, Loader=_FAST)
    except yaml.YAMLError:
        # Each parser refuses some texts that the other accepts.
        tree = yaml.compose(text, Loader=_LOCATING)
    return tree


def _read(text: str, kind: Any) -> Any:
    _refuse_excess(text, kind)
    loader = kind(text)
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None
        _refuse_wrong_keys(tree)
        return loader.construct_document(tree)
    finally:
        loader.dispose()


def _refuse_excess(text: str, kind: Any) -> None:
    """Raise ComposerError for a text of too many levels or values, before its tree is built."""
    sizes: dict[str | None, int] = {}
    parts: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=kind):
        mark: Any = event.start_mark  # either parser's
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
    """Raise ConstructorError for a duplicate key, or a key that YAML reads as a value."""
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
