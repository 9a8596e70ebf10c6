"""Conditions of transitions in the card: `deps_succeeded && G1..G3`, `G1..G8 && !S1..S5`.

    expression = term ("||" term)*        term = factor ("&&" factor)*        factor = "!" factor | atom
    atom = "(" expression ")" | ("any" | "all") "(" range ")" | range        range = NAME (".." NAME)?

A range of gates holds when every gate in it passed, a range of stops when any stop in it is triggered; `any(...)` and
`all(...)` override this. Python's own parser reads the structure, with every range as a text. Belongs here: the
grammar. Does not belong here: the possible transitions (`card.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kfm_dagster.stages.gates.verdict import Gate, Stop

WORDS = ("deps_succeeded", "has_checkpoint", "do_compensate")
"""Facts besides gates and stops."""
_SERIES = (tuple(gate.value for gate in Gate), tuple(stop.value for stop in Stop))
_TOKEN = re.compile(r"&&|\|\||[!()]|(?:any|all)(?=\s*\()|\w+(?:\s*\.\.\s*\w+)?|\S")
_PYTHON = {"&&": "and", "||": "or", "!": "not", "(": "(", ")": ")", "any": "any", "all": "all"}
_Test = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition. `names` are all gates, stops and words in it."""

    text: str
    names: frozenset[str]
    holds: _Test
    """Whether it holds, given the passed gates, the triggered stops and the true words."""

    @property
    def gates(self) -> frozenset[Gate]:
        """The gates that it asks for."""
        return frozenset(gate for gate in Gate if gate.value in self.names)

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse a condition. Raises ValueError for an invalid text."""
        names: set[str] = set()
        python = " ".join(_PYTHON.get(token) or repr(token) for token in _TOKEN.findall(text))
        try:
            holds = _test(ast.parse(python, mode="eval").body, names)
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"{text[:60]!r} where names, &&, ||, ! and matching parentheses are expected") from None
        return cls(text, frozenset(names), holds)


def _test(node: ast.expr, names: set[str]) -> _Test:
    match node:
        case ast.BoolOp(op=operator, values=parts):
            tests = [_test(part, names) for part in parts]
            joined = any if isinstance(operator, ast.Or) else all
            return lambda facts: joined(test(facts) for test in tests)
        case ast.UnaryOp(operand=part):
            inner = _test(part, names)
            return lambda facts: not inner(facts)
        case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(text))]):
            series, quantifier = _range(text), any if word == "any" else all
        case ast.Constant(value=str(text)):
            series = _range(text)
            quantifier = any if series[0] in _SERIES[1] else all
        case _:
            raise SyntaxError
    names.update(series)
    return lambda facts: quantifier(name in facts for name in series)


def _range(text: str) -> Sequence[str]:
    first, dots, last = (part.strip() for part in text.partition(".."))
    known = (*_SERIES[0], *_SERIES[1], *WORDS)
    if not dots and first in known:
        return [first]
    for series in _SERIES:
        if dots and first in series and last in series[series.index(first) :]:
            return series[series.index(first) : series.index(last) + 1]
    raise ValueError(f"{text} is no range of gates or stops, where one of {', '.join(known)} is expected")
