"""Reference of the rooms that users import: their exports with signature and docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum

from docs_site.text import prose

ROOMS = ("idempotent_node", "ledger", "readers", "run_state")
WIDTH = 90
"""Characters of a line of code on a page."""


def page(room: str) -> str:
    """Return the page of one room."""
    module = importlib.import_module(f"kfm_dagster.{room}")
    lines = [f"# kfm_dagster.{room}", "", prose(inspect.getdoc(module) or ""), ""]
    for name in module.__all__:
        exported = getattr(module, name)
        lines += _described(f"## {name}", name, exported)
        if inspect.isclass(exported):
            for method, value in _methods(exported):
                lines += _described(f"### {name}.{method}", method, value)
    return "\n".join(lines)


def _described(heading: str, name: str, value: object) -> list[str]:
    return [heading, "", *_signature(name, value), prose(inspect.getdoc(value) or ""), ""]


def _methods(owner: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class defines with a docstring."""
    for name, value in vars(owner).items():
        called = getattr(owner, name) if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (inspect.isroutine(called) or isinstance(value, property)) and called.__doc__:
            yield name, called


def _signature(name: str, value: object) -> list[str]:
    # An enum or a protocol is never called, so its signature is left out.
    uncalled = isinstance(value, type) and (issubclass(value, Enum) or getattr(value, "_is_protocol", False))
    if uncalled or not callable(value):
        return []
    signature = inspect.signature(value)
    shown = _unquoted(str(signature))
    if len(shown) + len(name) > WIDTH and signature.parameters:
        returned = shown.rpartition(" -> ")[2] if " -> " in shown else "None"
        shown = "(\n    " + ",\n    ".join(map(_unquoted, _parameters(signature))) + f",\n) -> {returned}"
    return ["```python", f"{name}{shown}", "```", ""]


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        yield str(parameter)


def _unquoted(shown: str) -> str:
    """Return a signature without the quotes of annotations that are evaluated late."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", shown)
