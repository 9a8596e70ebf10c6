"""Generate mutants of SQL texts with the project's macros, by these operators.

| operator | changes |
|---|---|
| a condition of AND is dropped | `a AND b` into `a` and into `b`, also each condition of `@refuse` |
| a member of IN is dropped | `c IN ('x', 'y')` into `c IN ('x')` and `c IN ('y')` |
| a bound is moved | `<` into `<=`, `<=` into `<`, `>` into `>=`, `>=` into `>` |
| NOT is dropped | `NOT a`, `NOT EXISTS`, `NOT IN`, `IS NOT NULL` |
| branches of CASE are swapped | `THEN a ELSE b` into `THEN b ELSE a`, and each two adjacent branches |

Not mutated: a non-unique index, which does not change rows; a column's `NOT NULL`, which belongs to the type; a window
frame (`ROWS BETWEEN a AND b`); `c IN (...)` before `AND c = ...`, which selects a partial index and does not change
rows.

A scanner is used because SQL parsers do not know the macros, and print an unchanged text differently.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<nothing>\s+|--[^\n]*|/\*.*?\*/)"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<word>[@:]?\w+)"
    r"|(?P<sign>->>|->|<@|@>|<=|>=|<>|!=|\|\||::|.)",
    re.DOTALL,
)
_SWAPPED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_LEFT = {"WHERE", "ON", "WHEN", "HAVING", "AND", "OR", "IF", "FILTER", "THEN", "ELSE", "SELECT", "NOT"}
"""Words after which a condition begins."""
_RIGHT = {
    *("AND", "OR", "GROUP", "ORDER", "LIMIT", "HAVING", "WINDOW", "THEN", "ELSE", "RETURNING", "UNION", "EXCEPT"),
    *("INNER", "LEFT", "CROSS", "JOIN", "FULL", "BEGIN", "FOR", "ON", "WHERE", "END", "AS", "EXECUTE", "DO"),
    *("@IN_ORDER", "@LOCK", "@SQLITE"),
}
"""Words before which a condition ends."""
_OPENING, _CLOSING = {"(", "CASE"}, {")", "END"}
_NOT_NEGATED = {"MATERIALIZED", "VALID", "DEFERRABLE", "INDEXED"}


@dataclass(frozen=True, kw_only=True)
class Token:
    """A part of the text other than spaces and comments."""

    word: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change: the text from `start` to `end` becomes `new`."""

    start: int
    end: int
    new: str

    def applied(self, text: str) -> str:
        """Return the text with the change made."""
        return text[: self.start] + self.new + text[self.end :]


def edits(text: str) -> Iterator[Edit]:
    """Yield every change of a text by the operators, unordered."""
    tokens = scanned(text)
    partners = _partners(tokens)
    plain = _outside_indexes(tokens)
    for index, token in enumerate(tokens):
        if not plain[index]:
            continue
        if token.word in _SWAPPED and tokens[index + 1].word != ">":
            yield Edit(start=token.start, end=token.end, new=_SWAPPED[token.word])
        elif token.word == "NOT" and _negates(tokens, index):
            yield Edit(start=token.start, end=tokens[index + 1].start, new="")
        elif token.word == "AND" and tokens[index - 1].word != "(" and not _of_between(tokens, partners, index):
            yield from _conditions(tokens, partners, index)
        elif token.word == "IN" and tokens[index + 1].word == "(":
            yield from _members(tokens, partners, index + 1)
        elif token.word == "@REFUSE":
            yield from _refusals(tokens, partners, index + 1)
        elif token.word == "CASE":
            yield from _branches(text, tokens, partners, index)


def scanned(text: str) -> list[Token]:
    """Return a text's tokens: words and macros in capitals, literals and parameters unchanged."""
    return [
        Token(
            word=match[0].upper() if match["word"] and match[0][0] != ":" else match[0],
            start=match.start(),
            end=match.end(),
        )
        for match in _TOKEN.finditer(text)
        if match["nothing"] is None
    ]


def _partners(tokens: Sequence[Token]) -> dict[int, int]:
    """Map the position of each parenthesis and CASE to the position of its end, and the reverse."""
    partners: dict[int, int] = {}
    open_: list[int] = []
    for index, token in enumerate(tokens):
        if token.word in _OPENING:
            open_.append(index)
        elif token.word == ")" or (token.word == "END" and open_ and tokens[open_[-1]].word == "CASE"):
            partners[index] = open_.pop()
            partners[partners[index]] = index
    return partners


def _outside_indexes(tokens: Sequence[Token]) -> list[bool]:
    plain, inside = [], False
    for index, token in enumerate(tokens):
        if token.word == "CREATE" and tokens[index + 1].word == "INDEX":
            inside = True
        plain.append(not inside)
        if token.word == ";":
            inside = False
    return plain


def _negates(tokens: Sequence[Token], index: int) -> bool:
    before, after = tokens[index - 1].word, tokens[index + 1].word
    return not (
        (after == "NULL" and before != "IS")
        or (after == "EXISTS" and before == "IF")
        or after in _NOT_NEGATED
        or (after == "DISTINCT" and before == "IS")
    )


def _reach(tokens: Sequence[Token], partners: dict[int, int], index: int, step: int) -> int:
    """Return the position of the last token of the condition on one side of an AND."""
    ends = (_LEFT if step < 0 else _RIGHT) | {",", ";"}
    bracket = _OPENING if step < 0 else _CLOSING
    at = index + step
    while 0 <= at + step < len(tokens):
        word = tokens[at].word
        if word in ("(", "CASE", ")", "END") and at in partners and (partners[at] > at) == (step > 0):
            at = partners[at]
        following = tokens[at + step].word if at + step < len(tokens) else ";"
        if following in ends and not (following == "AND" and _of_between(tokens, partners, at + step)):
            if not (step < 0 and following == "NOT"):
                return at
        elif following in bracket:
            return at
        at += step
    return at


def _of_between(tokens: Sequence[Token], partners: dict[int, int], index: int) -> bool:
    """Return whether an AND belongs to BETWEEN, scanning back to the condition's beginning."""
    at = index - 1
    while at >= 0:
        word = tokens[at].word
        if word == "BETWEEN":
            return True
        if word in _OPENING or word in _LEFT - {"NOT"} or word == ";":
            return False
        at = partners[at] - 1 if word in _CLOSING and at in partners else at - 1
    return False


def _conditions(tokens: Sequence[Token], partners: dict[int, int], index: int) -> Iterator[Edit]:
    """Drop the condition after an AND; for the first AND also the condition before it."""
    begin, end = _reach(tokens, partners, index, -1), _reach(tokens, partners, index, 1)
    if not _names_an_index(tokens, partners, end + 1):
        yield Edit(start=tokens[index - 1].end, end=tokens[end].end, new="")
    if tokens[begin - 1].word != "AND" and not _names_an_index(tokens, partners, index):
        yield Edit(start=tokens[begin].start, end=tokens[index + 1].start, new="")


def _listed(tokens: Sequence[Token], partners: dict[int, int], index: int) -> list[tuple[int, int]]:
    """Return the first and last positions of each element of a parenthesis."""
    parts, begin, at = [], index + 1, index + 1
    while at < partners[index]:
        if tokens[at].word == ",":
            parts.append((begin, at - 1))
            begin = at + 1
        elif tokens[at].word in _OPENING:
            at = partners[at]
        at += 1
    return [*parts, (begin, partners[index] - 1)]


def _names_an_index(tokens: Sequence[Token], partners: dict[int, int], index: int) -> bool:
    """Return whether an AND is between `c IN (...)` and `c = ...`."""
    begin = partners.get(index - 1)
    if begin is None or index + 2 >= len(tokens) or tokens[index].word != "AND" or tokens[begin - 1].word != "IN":
        return False
    return (tokens[index + 1].word, tokens[index + 2].word) == (tokens[begin - 2].word, "=")


def _members(tokens: Sequence[Token], partners: dict[int, int], index: int) -> Iterator[Edit]:
    parts = _listed(tokens, partners, index)
    listed = len(parts) > 1 and tokens[index + 1].word not in {"SELECT", "WITH"}
    if listed and not _names_an_index(tokens, partners, partners[index] + 1):
        yield from _without(tokens, parts)


def _refusals(tokens: Sequence[Token], partners: dict[int, int], index: int) -> Iterator[Edit]:
    """Drop one of several conditions of @refuse(trigger, EVENT ON t, rule, condition, ...)."""
    parts = _listed(tokens, partners, index)[3:]
    if len(parts) > 1:
        yield from _without(tokens, parts)


def _without(tokens: Sequence[Token], parts: Sequence[tuple[int, int]]) -> Iterator[Edit]:
    for number, (begin, end) in enumerate(parts):
        if number:
            yield Edit(start=tokens[parts[number - 1][1]].end, end=tokens[end].end, new="")
        else:
            yield Edit(start=tokens[begin].start, end=tokens[parts[1][0]].start, new="")


def _branches(text: str, tokens: Sequence[Token], partners: dict[int, int], index: int) -> Iterator[Edit]:
    """Swap the results of two adjacent branches."""
    results: list[tuple[int, int]] = []
    begin, at = None, index + 1
    while at <= partners[index]:
        word = tokens[at].word
        if begin is not None and (word in {"WHEN", "ELSE"} or at == partners[index]):
            results.append((tokens[begin].start, tokens[at - 1].end))
            begin = None
        if word in {"THEN", "ELSE"}:
            begin = at + 1
        elif word in _OPENING:
            at = partners[at]
        at += 1
    for (start, middle), (again, end) in itertools.pairwise(results):
        first, second = text[start:middle], text[again:end]
        if first != second:
            yield Edit(start=start, end=end, new=second + text[middle:again] + first)
