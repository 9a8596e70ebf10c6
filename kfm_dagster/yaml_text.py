"""YAML text to plain values, fast: every process reads the contracts and the card before it does anything.

Belongs here: the choice of the parser. Does not belong here: what a document must hold.
"""

from __future__ import annotations

from typing import Any

import yaml

_FAST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser takes a fifth of the time; PyYAML is sometimes built without it."""


def read_yaml(text: str) -> Any:
    """Return the one document of a text, None for an empty one. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, Loader=_FAST)  # noqa: S506 - either is a safe loader
    except yaml.YAMLError:
        return yaml.safe_load(text)  # which shows the place in its error, too


def compose_yaml(text: str) -> yaml.Node | None:
    """Return the tree of a text that read_yaml has read, whose nodes know their lines."""
    tree: yaml.Node | None = yaml.compose(text, Loader=_FAST)
    return tree
