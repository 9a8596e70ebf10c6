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
_SHOWN = 60
"""Characters of a wrong scalar that are shown."""
_WRONG_KEYS = {
    "tag:yaml.org,2002:bool": "is true or false to YAML 1.1: write it in quotes",
    "tag:yaml.org,2002:null": "is nothing to YAML: write it in quotes",
}


def read_yaml(text: str) -> Any:
    """Return a text's only document, None if empty. Raises yaml.YAMLError, also for wrong keys.

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
    loader = kind(text)
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None
        _refuse_wrong_keys(tree)
        return loader.construct_document(tree)
    finally:
        loader.dispose()


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
