"""Failures: which errors one unit of a batch can be the cause of."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from obstore.exceptions import GenericError
from sqlalchemy.exc import DBAPIError

from kfm_dagster.errors import ContractError
from kfm_dagster.stages.failure import StageFailedError, may_be_of_a_unit


def of_the_database(code: int) -> DBAPIError:
    original = sqlite3.OperationalError("x")
    original.sqlite_errorcode = code
    return DBAPIError("SELECT", {}, original)


@pytest.mark.clause("SEC-09")
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OverflowError(), True),
        (MemoryError(), True),
        (of_the_database(sqlite3.SQLITE_CONSTRAINT), True),
        (of_the_database(sqlite3.SQLITE_FULL), False),
        (OSError(28, "no space"), False),
        (GenericError("no answer"), False),
        (EndpointConnectionError(endpoint_url="http://x"), False),
        (ContractError("wrong"), False),
    ],
)
def test_a_dependency_and_a_refusal_are_no_units_fault(error: Any, *, expected: bool) -> None:
    assert may_be_of_a_unit(error) is expected
    assert may_be_of_a_unit(StageFailedError(dataset_id="hrrr.settle", cause=error)) is expected
