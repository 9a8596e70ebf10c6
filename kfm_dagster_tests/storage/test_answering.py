"""The error of a failing store is one line that names the cause, without the driver's text."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

from kfm_dagster.errors import DependencyUnavailableError
from kfm_dagster.stages.failure import StageFailedError
from kfm_dagster.storage.answering import answering, refuse_unwritable
from kfm_dagster.storage.s3 import S3Bucket

FULL = os.strerror(errno.ENOSPC)
NO_ROOM = f"the disk of the store is full; observed {FULL}; next: free disk space, or correct KFM_STORAGE_URL"


def test_a_full_disk_is_named_also_in_a_stage_s_error() -> None:
    for error, text in (
        (GenericError(f"Generic LocalFileSystem error: /srv/x: {FULL} (os error 28)"), NO_ROOM),
        (OSError(errno.ENOSPC, FULL), NO_ROOM),
        (GenericError("error sending request for url (http://127.0.0.1/?X-Amz-Signature=s3cret)"), "observed GenericE"),
    ):
        with (
            pytest.raises(DependencyUnavailableError, match=text) as unavailable,
            answering("the store", "KFM_STORAGE_URL"),
        ):
            raise error
        failed = StageFailedError(dataset_id="hrrr.stac_register", cause=unavailable.value)
        assert failed.what == f"hrrr.stac_register: {unavailable.value.what}"
        assert (failed.observed, failed.error_class) == (unavailable.value.observed, "E_INTERNAL")
        assert not {"s3cret", "/srv/x"} & set(str(failed).split())


def test_errors_other_than_outages_and_refusals_reach_the_caller() -> None:
    for error in (FileNotFoundError("x is not there"), OSError(errno.EISDIR, "is a directory")):
        with pytest.raises(type(error)), answering("the store", "KFM_STORAGE_URL"):
            raise error


def test_write_access_is_checked_without_a_trace_by_a_put_that_cannot_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests: list[Any] = []

    def answer(_: S3Bucket, method: str, __: str, *, headers: Any) -> None:
        requests.append((method, *headers))
        raise AlreadyExistsError("exists already")

    monkeypatch.setattr(S3Bucket, "_request", answer)
    refuse_unwritable("s3://ours/x", what="the store", setting="KFM_STORAGE_URL", leave_nothing=True)
    assert requests == [("PUT", "If-Match")]
