"""Requests: parameters, numbers, JSON or page, and an error's status and line.

Does not belong here: the form of a refusal (`app.py`, `mcp_server.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.errors import (
    ContractError,
    DatabaseUnavailableError,
    DependencyUnavailableError,
    ExitCode,
    KfmError,
    UnknownNameError,
)
from kfm_dagster.governance.log import UnattributedDecisionError
from kfm_dagster.typed_numbers import LARGEST


class BadRequestError(KfmError):
    """A request has an unknown parameter or field, or a wrong value."""


REFUSALS: tuple[type[Exception], ...] = (KfmError, DBAPIError, NoConnectionFreeError)
"""Errors with a line for the client. The last one means that every connection of the pool was in use for too long."""
_STATUS: Sequence[tuple[type[KfmError], int]] = (
    (BadRequestError, 400),
    (BadFilterError, 400),
    (UnattributedDecisionError, 400),
    (ContractError, 404),
    (UnknownNameError, 404),
    (DependencyUnavailableError, 503),
)


def refusal(error: Exception) -> tuple[int, str]:
    """Return the status and the line for an error of REFUSALS."""
    if isinstance(error, DatabaseUnavailableError):
        # A driver's text can name a user of the database.
        return 503, f"{error.what}; next: see its log, then ask again"
    if isinstance(error, KfmError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
        # Errors of a refusal by ledger or guard have this exit code.
        return status or (409 if error.exit_code is ExitCode.REFUSED else 500), str(error)
    return 503, "the database does not answer; next: see its log, then ask again"


def parameters_by_name(parameters: Sequence[tuple[str, str]], *, known: Sequence[str]) -> dict[str, str]:
    """Return parameters by name. Raises BadRequestError for an unknown or repeated parameter."""
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
    # At most as many digits as LARGEST has: Python would read thousands of digits, and digits of any script.
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise BadRequestError(observed=f"{name}={text[:40]!r}", expected=f"a whole number from 1 to {most}")
    return int(text)


def is_page(values: Mapping[str, str], accept: str) -> bool:
    """Return whether to send a page, by `format`, else by Accept. Raises BadRequestError."""
    form = values.get("format")
    if form not in {None, "json", "html"}:
        raise BadRequestError(observed=f"format={str(form)[:40]!r}", expected="json or html")
    return form == "html" or (form is None and "text/html" in accept)
