"""The failure of each dependency: the exception by which the real dependency reports that it does not answer.

Belongs here: a table from dependency to exception. Another exception would test a path that no outage takes.
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
"""Exceptions by the first part of a failpoint's name; a stage has no dependency that could fail."""


def can_fail(failpoint: Failpoint) -> bool:
    """Return whether a dependency is called at the failpoint."""
    return _dependency(failpoint) in _KIND


def failure(failpoint: Failpoint, *, rule: str) -> Exception:
    """Return the error of an unavailable dependency at a failpoint; its text names the rule."""
    return _KIND[_dependency(failpoint)](f"injected at {failpoint} by chaos rule {rule}")


def _dependency(failpoint: Failpoint) -> str:
    return failpoint.partition(".")[0]
