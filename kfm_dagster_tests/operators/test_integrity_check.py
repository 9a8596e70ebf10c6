"""integrity-check: each check, its issue, and the issue's severity by the contract."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import CheckStatus, Integrity
from kfm_dagster.contracts.issues import IntegrityIssue, Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import Peers, PeerSizes
from kfm_dagster.operators.integrity_check import integrity_check, unreadable
from kfm_dagster.storage.object_handle import ObjectHead, ObjectReadError
from kfm_dagster_tests.factories import envelope, with_section

pytestmark = pytest.mark.clause("OPR-04")

HRRR = ContractRegistry.load()["hrrr"]
NOW = datetime(2025, 12, 3, tzinfo=UTC)


class Recorded:
    """A handle that answers from memory, records the requests, and can fail."""

    def __init__(
        self, data: bytes = b"GRIB" + b"\0" * 196, *, error: ObjectReadError | None = None, **head: Any
    ) -> None:
        self._data = data
        self._error = error
        self._head = {"size": len(data), "etag": "abc", "content_type": None, "last_modified": NOW} | head
        self.requests: list[str] = []

    def head(self) -> ObjectHead:
        self.requests.append("head")
        if self._error is not None:
            raise self._error
        return ObjectHead(**self._head)

    def probe(self, length: int) -> tuple[ObjectHead, bytes]:
        self.requests.append(f"probe {length}")
        if self._error is not None:
            raise self._error
        return ObjectHead(**self._head), self._data[:length]


def check(handle: Recorded, *, announced: dict[str, Any] | None = None, **rules: Any) -> Integrity:
    fields = {"object_version": "abc", "object_size": 200} | (announced or {})
    return integrity_check(
        envelope(dataset="hrrr", **fields), contract=with_section(HRRR, "integrity", **rules), handle=handle
    )


def test_sound_object_passes_every_check_with_one_request() -> None:
    handle = Recorded(content_type="Application/WMO-GRIB2; charset=binary")
    integrity = check(handle)
    assert integrity == Integrity(
        status=CheckStatus.OK,
        actual_size_bytes=200,
        actual_etag="abc",
        last_modified=NOW,
        checks_run=("exists", "size", "etag_match", "headers", "magic"),
    )
    assert handle.requests == ["probe 4"]


def test_each_defect_has_its_issue_and_fails_the_unit() -> None:
    for handle, announced, codes in (
        (Recorded(b""), {}, ["size_zero", "size_mismatch"]),
        (Recorded(b"GRIB"), {"object_size": None}, ["size_too_small"]),
        (Recorded(size=6 * 1024**3), {"object_size": 6 * 1024**3}, ["size_too_large"]),
        (Recorded(b"GRIB" + b"\0" * 150), {}, ["size_mismatch"]),  # truncated on the way
        (Recorded(etag="other"), {}, ["etag_mismatch"]),
        (Recorded(etag="abc-3"), {}, ["etag_mismatch"]),
        (Recorded(b"HTML" + b"\0" * 196), {}, ["bad_magic"]),
        (Recorded(b"HTML" + b"\0" * 150, etag="other"), {}, ["size_mismatch", "etag_mismatch", "bad_magic"]),
        (Recorded(b" GRIB" + b"\0" * 195), {}, ["bad_magic"]),
    ):
        integrity = check(handle, announced=announced)
        assert [issue.code for issue in integrity.issues] == codes
        assert {issue.severity for issue in integrity.issues} == {Severity.FAILED}
        assert integrity.status is CheckStatus.FAILED
        assert integrity.actual_size_bytes is not None
        assert len(handle.requests) == 1


@pytest.mark.clause("OPR-05")
def test_the_contract_decides_an_issue_s_severity() -> None:
    page = Recorded(content_type="text/html")
    assert check(page).status is CheckStatus.SUSPECT
    assert [(issue.code, issue.severity) for issue in check(page).issues] == [
        ("unexpected_content_type", Severity.SUSPECT)
    ]
    assert check(page, severities={}).status is CheckStatus.FAILED  # a code without a severity fails the unit
    lenient = {IntegrityIssue.BAD_MAGIC: Severity.SUSPECT}
    both = check(Recorded(b"HTML" + b"\0" * 196, etag="other"), severities=lenient)
    assert [issue.severity for issue in both.issues] == [Severity.FAILED, Severity.SUSPECT]
    assert both.status is CheckStatus.FAILED


def test_a_size_equal_to_a_bound_is_accepted() -> None:
    for size, codes in ((99, ["size_too_small"]), (100, []), (200, []), (201, ["size_too_large"])):
        integrity = check(Recorded(size=size), announced={"object_size": size}, min_bytes=100, max_bytes=200)
        assert [issue.code for issue in integrity.issues] == codes


LEVEL = PeerSizes(8, 1000, 1000)  # with the factor 2, sizes from 500 to 2000 are expected


@pytest.mark.clause("BEY-04", "OPR-05")
def test_a_size_far_from_its_peers_is_suspect() -> None:
    rules = {"checks": ["exists"], "peers": Peers(groups=["lead"], factor=2)}
    for size, peers, codes in (
        (500, LEVEL, []),
        (499, LEVEL, ["size_unlike_peers"]),
        (2000, LEVEL, []),
        (2001, LEVEL, ["size_unlike_peers"]),
        (100, PeerSizes(7, 1000, 1000), None),  # too few peers
        (100, None, None),  # no peers were known when the unit was admitted
        (125, PeerSizes(8, 1000, 2000), []),  # peers vary, so a larger factor applies
        (124, PeerSizes(8, 1000, 2000), ["size_unlike_peers"]),
        (0, LEVEL, None),  # an empty object is for the check `size`
    ):
        handle = Recorded(size=size)
        integrity = check(handle, announced={"peer_sizes": peers}, **rules)
        assert integrity.checks_run == ("exists", *(() if codes is None else ("size_peers",)))
        assert [(issue.code, issue.severity) for issue in integrity.issues] == [
            (code, Severity.SUSPECT) for code in codes or []
        ]
        assert integrity.status is (CheckStatus.SUSPECT if codes else CheckStatus.OK)
        assert handle.requests == ["head"]  # no further request


@pytest.mark.clause("BEY-04")
def test_a_size_issue_names_the_expected_range_and_the_number_of_peers() -> None:
    peers = {"peer_sizes": PeerSizes(24, 900, 1100)}
    rules = Peers(groups=["lead"], factor=2)
    (issue,) = check(Recorded(size=9), announced=peers, checks=["exists"], peers=rules).issues
    assert issue.message == "9 bytes, expected 450 to 2200: the middle half of 24 peers has 900 to 1100"
    strict = {IntegrityIssue.SIZE_UNLIKE_PEERS: Severity.FAILED}
    integrity = check(Recorded(size=9), announced=peers, checks=["exists"], peers=rules, severities=strict)
    assert integrity.status is CheckStatus.FAILED
    assert check(Recorded(size=9), announced=peers, checks=["exists"], peers=None).status is CheckStatus.OK


def test_an_unreadable_object_is_an_issue_instead_of_an_exception() -> None:
    for code in (IntegrityIssue.MISSING_OBJECT, IntegrityIssue.ACCESS_DENIED):
        integrity = check(Recorded(error=ObjectReadError(code, "s3://b/k", "why")))
        assert [(issue.code, issue.message) for issue in integrity.issues] == [(code.value, "why")]
        assert (integrity.status, integrity.checks_run, integrity.actual_size_bytes) == (
            CheckStatus.FAILED,
            ("exists",),
            None,
        )
    # An unavailable store fails the unit under any contract.
    silent = ObjectReadError(IntegrityIssue.STORAGE_UNAVAILABLE, "s3://b/k", "why")
    every_code_suspect = dict.fromkeys(IntegrityIssue, Severity.SUSPECT)
    assert check(Recorded(error=silent), severities=every_code_suspect).status is CheckStatus.FAILED


def test_a_check_without_a_value_to_compare_is_not_listed_as_run() -> None:
    integrity = check(Recorded(etag=None), announced={"object_size": None})
    assert integrity.checks_run == ("exists", "size", "magic")
    assert check(Recorded(), announced={"object_version": None}).checks_run == ("exists", "size", "magic")
    assert check(Recorded(), content_types=[], magic=[]).checks_run == ("exists", "size", "etag_match")
    # For an object announced as empty only the head is requested.
    handle = Recorded(b"")
    assert [issue.code for issue in check(handle, announced={"object_size": 0}).issues] == ["size_zero"]
    assert handle.requests == ["head"]


def test_only_declared_checks_run_and_only_needed_requests_are_made() -> None:
    for checks, requests, run in (
        ([], [], ()),
        (["exists"], ["head"], ("exists",)),
        (["size"], ["head"], ("exists", "size")),
        (["magic"], ["probe 4"], ("exists", "magic")),
    ):
        handle = Recorded(size=999, etag="other", content_type="text/html")
        integrity = check(handle, checks=checks)
        assert (handle.requests, integrity.checks_run) == (requests, run)
        if "size" not in checks:
            assert integrity.status is CheckStatus.OK


@pytest.mark.clause("SEC-09")
def test_an_error_in_a_check_is_an_issue_without_the_error_s_text() -> None:
    integrity = unreadable(HRRR, OverflowError("a secret"))
    [issue] = integrity.issues
    assert (integrity.status, issue.code) == (CheckStatus.FAILED, IntegrityIssue.STORAGE_UNAVAILABLE)
    assert ("OverflowError" in issue.message, "secret" in issue.message) == (True, False)
