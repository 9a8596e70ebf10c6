"""What a request asks for: how far back, and as JSON or as a page. Does not belong here: answering (`app.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique

from kfm_dagster.errors import KfmError
from kfm_dagster.exports.validation import DAYS, MOST_DAYS
from kfm_dagster.typed_numbers import LARGEST

_QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
"""RFC 9110, section 12.4.2."""


class BadRequestError(KfmError):
    """A request has no such parameter, field or value."""


class NotAcceptableError(KfmError):
    """The client takes no form that there is."""


@unique
class Form(StrEnum):
    """How an answer is written."""

    JSON = "json"
    HTML = "html"

    @property
    def media_type(self) -> str:
        """Its name on the wire."""
        return "application/json" if self is Form.JSON else "text/html"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportQuery:
    """What to answer."""

    days: int
    form: Form


def asked_of(parameters: Sequence[tuple[str, str]], *, accept: str) -> ReportQuery:
    """Read the query's parameters and the Accept header ("" for none).

    Raises BadRequestError, and NotAcceptableError where no parameter names the form and Accept allows none.
    """
    found = given(parameters, known=("days", "format"))
    days = whole_number("days", found.get("days", str(DAYS)), most=MOST_DAYS)
    return ReportQuery(days=days, form=_asked_form(found, accept))


def form_of(parameters: Sequence[tuple[str, str]], *, accept: str) -> Form:
    """Read which form is asked for, of what has no other parameter. Raises as asked_of does."""
    return _asked_form(given(parameters, known=("format",)), accept)


def given(parameters: Sequence[tuple[str, str]], *, known: Sequence[str]) -> dict[str, str]:
    """Return parameters by name. Raises BadRequestError for one that is not known, or comes twice."""
    found = dict(parameters)
    unknown = sorted(set(found) - set(known))
    if unknown or len(found) != len(parameters):
        raise BadRequestError(
            observed=repr(unknown[0][:40]) if unknown else "a parameter twice",
            expected=f"{', '.join(known)}; each once at most" if known else "no parameter",
        )
    return found


def whole_number(name: str, text: str, *, most: int = LARGEST) -> int:
    """Read a number from 1 to `most`. Raises BadRequestError."""
    # No more digits than LARGEST has: Python reads any script's, and thousands of them.
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise BadRequestError(observed=f"{name}={text[:40]!r}", expected=f"a whole number from 1 to {most}")
    return int(text)


def _asked_form(found: Mapping[str, str], accept: str) -> Form:
    named = found.get("format")
    return _named(named) if named is not None else _form(accept)


def _named(text: str) -> Form:
    if text not in set(Form):
        raise BadRequestError(observed=f"format={text[:40]!r}", expected=" or ".join(Form))
    return Form(text)


def _form(accept: str) -> Form:
    """Return the form that is liked best; JSON where both are liked the same, as by a client that does not say."""
    liked = {form: _quality(accept, form.media_type) if accept.strip() else 1.0 for form in Form}
    best = max(Form, key=lambda form: liked[form])
    if liked[best] == 0:
        expected = " or ".join(form.media_type for form in Form)
        raise NotAcceptableError(observed=f"Accept: {accept[:80]!r}", expected=expected)
    return best


def _quality(accept: str, media_type: str) -> float:
    """Return how much a media type is liked: what the most specific range says that it is in (RFC 9110, 12.5.1)."""
    ranges = dict(_ranges(accept))
    kind = media_type.partition("/")[0]
    return next((ranges[name] for name in (media_type, f"{kind}/*", "*/*") if name in ranges), 0.0)


def _ranges(accept: str) -> Iterator[tuple[str, float]]:
    for part in accept.split(","):
        name, *parameters = (one.strip().lower() for one in part.split(";"))
        weights = [one.removeprefix("q=") for one in parameters if one.startswith("q=")]
        if all(_QUALITY.fullmatch(weight) for weight in weights):
            yield name, float(weights[0]) if weights else 1.0
