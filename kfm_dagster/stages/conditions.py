"""Conditions of a transition as the pipeline card writes them: `deps_succeeded && G1..G3`, `G1..G8 && !S1..S5`.

    expression = term ("||" term)*        term = factor ("&&" factor)*        factor = "!" factor | atom
    atom = "(" expression ")" | ("any" | "all") "(" range ")" | range        range = NAME (".." NAME)?

A range of gates holds when every gate in it passed, a range of stops when any stop in it is triggered; `any(...)` and
`all(...)` say it otherwise. Belongs here: the grammar. Does not belong here: which transitions there are (`card.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kfm_dagster.stages.gates.verdict import Gate, Stop

WORDS = ("deps_succeeded", "has_checkpoint", "do_compensate")
"""Facts besides gates and stops."""
_SERIES = (tuple(gate.value for gate in Gate), tuple(stop.value for stop in Stop))
_TOKEN = re.compile(r"\s*(&&|\|\||!|\(|\)|\.\.|[A-Za-z_][A-Za-z0-9_]*|\S)")


class ConditionError(ValueError):
    """A condition cannot be read."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition, read. `names` are all gates, stops and words in it."""

    text: str
    names: frozenset[str]
    _test: Callable[[Collection[str]], bool]

    def holds(self, facts: Collection[str]) -> bool:
        """Tell whether it holds, where `facts` are the gates that passed, the stops triggered and the words true."""
        return self._test(facts)

    @property
    def gates(self) -> frozenset[Gate]:
        """The gates that it asks for."""
        return frozenset(gate for gate in Gate if gate.value in self.names)

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a condition. Raises ConditionError with what stands where something else is expected."""
        reader = _Reader(text)
        try:
            test = reader.expression()
        except RecursionError:
            raise ConditionError(f"the parentheses of {text[:60]!r}... are too deep") from None
        reader.expect_end()
        return cls(text, frozenset(reader.names), test)


class _Reader:
    """A recursive descent over the tokens of one condition."""

    quantifiers: ClassVar = {"any": any, "all": all}

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: Iterator[str] = (match[1] for match in _TOKEN.finditer(text))
        self._next: str | None = next(self._tokens, None)
        self.names: set[str] = set()

    def expression(self) -> Callable[[Collection[str]], bool]:
        terms = [self._term()]
        while self._taken("||"):
            terms.append(self._term())
        return lambda facts: any(term(facts) for term in terms)

    def expect_end(self) -> None:
        if self._next is not None:
            raise self._unexpected("the end of the condition")

    def _term(self) -> Callable[[Collection[str]], bool]:
        factors = [self._factor()]
        while self._taken("&&"):
            factors.append(self._factor())
        return lambda facts: all(factor(facts) for factor in factors)

    def _factor(self) -> Callable[[Collection[str]], bool]:
        if self._taken("!"):
            inner = self._factor()
            return lambda facts: not inner(facts)
        if self._taken("("):
            inner = self.expression()
            self._expect(")")
            return inner
        if self._next in self.quantifiers:
            quantifier = self.quantifiers[str(self._take())]
            self._expect("(")
            names = self._range()
            self._expect(")")
        else:
            names = self._range()
            quantifier = any if names[0] in _SERIES[1] else all
        return lambda facts: quantifier(name in facts for name in names)

    def _range(self) -> Sequence[str]:
        first = self._name()
        names: Sequence[str] = [first]
        if self._taken(".."):
            last = self._name()
            series = next((one for one in _SERIES if first in one and last in one), None)
            if series is None or series.index(first) > series.index(last):
                raise ConditionError(f"{first}..{last} is no range of gates or stops in {self._text!r}")
            names = series[series.index(first) : series.index(last) + 1]
        self.names.update(names)
        return names

    def _name(self) -> str:
        known = (*_SERIES[0], *_SERIES[1], *WORDS)
        if self._next not in known:
            raise self._unexpected(f"one of {', '.join(known)}")
        return self._take()

    def _expect(self, token: str) -> None:
        if not self._taken(token):
            raise self._unexpected(repr(token))

    def _taken(self, token: str) -> bool:
        if self._next != token:
            return False
        self._take()
        return True

    def _take(self) -> str:
        token = str(self._next)
        self._next = next(self._tokens, None)
        return token

    def _unexpected(self, expected: str) -> ConditionError:
        found = "the end" if self._next is None else repr(self._next)
        return ConditionError(f"{found} in {self._text!r} where {expected} is expected")
