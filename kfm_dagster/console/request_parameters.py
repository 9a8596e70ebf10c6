"""Parameters of a request: which are known, numbers, and whether the answer is JSON or a page. Nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kfm_dagster.errors import KfmError
from kfm_dagster.typed_numbers import LARGEST


class BadRequestError(KfmError):
    """A request has no such parameter, field or value."""


def given(parameters: Sequence[tuple[str, str]], *, known: Sequence[str]) -> dict[str, str]:
    """Return parameters by name. Raises BadRequestError for one that is not known, or comes twice."""
    values = dict(parameters)
    unknown = sorted(set(values) - set(known))
    if unknown or len(values) != len(parameters):
        raise BadRequestError(
            observed=repr(unknown[0][:40]) if unknown else "a parameter twice",
            expected=f"{', '.join(known)}; each once at most" if known else "no parameter",
        )
    return values


def whole_number(name: str, text: str, *, most: int = LARGEST) -> int:
    """Read a number from 1 to `most`. Raises BadRequestError."""
    # No more digits than LARGEST has: Python reads any script's, and thousands of them.
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise BadRequestError(observed=f"{name}={text[:40]!r}", expected=f"a whole number from 1 to {most}")
    return int(text)


def is_page(values: Mapping[str, str], accept: str) -> bool:
    """Whether the answer is a page: as the parameter `format` says, else for browsers. Raises BadRequestError."""
    named = values.get("format")
    if named not in {None, "json", "html"}:
        raise BadRequestError(observed=f"format={str(named)[:40]!r}", expected="json or html")
    return named == "html" or (named is None and "text/html" in accept)
