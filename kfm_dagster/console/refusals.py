"""What an error of an answer is over HTTP, for pages, the JSON API and assistants alike.

Does not belong here: how a refusal is written (`app.py`, `api.py`, `mcp_server.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFreeError

from kfm_dagster.alerts.store import UnknownAlertError
from kfm_dagster.console.operations import UnknownUnitError
from kfm_dagster.console.request_parameters import BadRequestError
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.errors import (
    ContractError,
    DatabaseUnavailableError,
    DependencyUnavailableError,
    ExitCode,
    KfmError,
)
from kfm_dagster.exports.explanations.explanation import UnknownRunError
from kfm_dagster.governance.log import UnattributedDecisionError
from kfm_dagster.recovery.replay.runs import UnknownReplayError
from kfm_dagster.views.rejections import UnknownMessageError

REFUSALS: tuple[type[Exception], ...] = (KfmError, DBAPIError, NoConnectionFreeError)
"""Errors that have a line for the client; every connection may be in use for too long."""
_STATUS: Sequence[tuple[type[KfmError], int]] = (
    (BadRequestError, 400),
    (BadFilterError, 400),
    (UnattributedDecisionError, 400),
    (ContractError, 404),
    (UnknownRunError, 404),
    (UnknownReplayError, 404),
    (UnknownUnitError, 404),
    (UnknownMessageError, 404),
    (UnknownAlertError, 404),
    (DependencyUnavailableError, 503),
)


def refusal(error: Exception) -> tuple[int, str]:
    """Return the status and the line for one of REFUSALS."""
    if isinstance(error, DatabaseUnavailableError):
        # What a driver says may name a user.
        return 503, f"{error.what}; next: see its log, then ask again"
    if isinstance(error, KfmError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
        # The command line has an exit code for what the ledger or a guard does not allow.
        return status or (409 if error.exit_code is ExitCode.REFUSED else 500), str(error)
    return 503, "the database does not answer; next: see its log, then ask again"
