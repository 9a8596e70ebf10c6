"""How each dependency fails: the exception that the code around a failpoint meets when the real one does not answer.

Belongs here: one table from dependency to exception. A failure of another kind would test a path that no outage takes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from botocore.exceptions import EndpointConnectionError
from obstore.exceptions import GenericError
from sqlalchemy.exc import OperationalError

from kfm_dagster.failpoints import Failpoint
from kfm_dagster.followers.announcements.sending import ReceiverUnavailableError


def _database(why: str) -> Exception:
    return OperationalError(None, None, ConnectionError(why))


def _queue(why: str) -> Exception:
    return EndpointConnectionError(endpoint_url=why)


def _file(why: str) -> Exception:
    return OSError(errno.EIO, why)


_KIND: Mapping[str, Callable[[str], Exception]] = {
    "database": _database,
    "queue": _queue,
    "object": GenericError,
    "catalog": _file,
    "lineage": _file,
    "announcement": ReceiverUnavailableError,
    "artifact": GenericError,
    "landing": GenericError,
}
"""By the first part of a failpoint's name. A stage has no dependency: nothing there can fail by itself."""


def can_fail(failpoint: Failpoint) -> bool:
    """Tell whether a dependency is called at the failpoint."""
    return _dependency(failpoint) in _KIND


def failure(failpoint: Failpoint, *, rule: str) -> Exception:
    """Return what the dependency at a failpoint raises when it does not answer; the text names the rule that did it."""
    return _KIND[_dependency(failpoint)](f"injected at {failpoint} by chaos rule {rule}")


def _dependency(failpoint: Failpoint) -> str:
    return failpoint.partition(".")[0]
