"""What the bundle says of the two configurations that it holds: their versions, and the state machine's graph.

Read from the very bytes that are handed on, so that figure and file cannot differ. Does not belong here: whether the
configuration is one that the pipeline can obey (`stages/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import yaml

from kfm_dagster.documents.yaml_text import read_yaml
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.exports.bundle.content import MACHINE


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredTransition:
    """A possible transition, and its condition as it is written."""

    start: str
    end: str
    when: str = ""

    @property
    def key(self) -> tuple[str | None, str]:
        """Both ends, as a recorded transition names them."""
        return (self.start, self.end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The state machine's graph: states in their order, edges by their ends."""

    states: Sequence[str]
    edges: Mapping[tuple[str | None, str], DeclaredTransition]

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Read `configs/state_machine.yaml`. Raises ConfigurationError where it has no states or transitions."""
        document = parse_configuration(content, path=MACHINE)
        try:
            states = [str(state) for state in document["states"]]
            edges = [
                DeclaredTransition(start=str(each["from"]), end=str(each["to"]), when=str(each.get("when", "")))
                for each in document["transitions"]
            ]
        except (KeyError, TypeError, AttributeError):
            raise _refused(MACHINE, "no list of states, or of transitions {from, to, when}") from None
        if not states:
            raise _refused(MACHINE, "no state")
        return cls(states=states, edges={edge.key: edge for edge in edges})


def parse_configuration(content: bytes, *, path: str) -> Mapping[str, Any]:
    """Read a configuration that says its version. Raises ConfigurationError naming the file."""
    try:
        document: Any = read_yaml(content.decode())
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _refused(path, "no YAML") from None
    if not isinstance(document, dict) or "version" not in document:
        raise _refused(path, "no mapping with a version")
    return document


def _refused(path: str, observed: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be released", observed=observed, expected="the file that the pipeline obeyed"
    )
