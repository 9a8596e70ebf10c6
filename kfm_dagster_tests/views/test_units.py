"""The search of units: the pages of a filter have exactly the units that match it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CheckStatus, Metadata
from kfm_dagster.contracts.filters import BadFilterError
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import KfmError
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger import search
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.search import OPERATORS, UnitFilter
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database
from kfm_dagster.views import decisions, feeds, units
from kfm_dagster.views.feeds import GAPS
from kfm_dagster.views.units import FailureFilter, UnitCount, count_units, failure_groups, search_units
from kfm_dagster.views.view import View
from kfm_dagster_tests.factories import PERSON, START, envelope, failed, finished
from kfm_dagster_tests.ledger.bench import Bench, make_bench

UNITS = 12
MIDDLE = START + timedelta(minutes=5, seconds=UNITS // 2)
"""Event time of the unit in the middle."""


@dataclass(frozen=True)
class Searched:
    """A ledger with units of two datasets in every state, with several kinds of errors."""

    pipeline: Pipeline
    bench: Bench

    def records(self) -> list[NoddWalRecord]:
        """Return all records, the newest event first."""
        return self.bench.ledger.find(limit=10_000)

    def pages(self, unit_filter: UnitFilter, *, limit: int) -> Iterator[list[str]]:
        """Yield the ids of each page; a page can be empty if its search reached the bound of examined records."""
        after = None
        while True:
            page = search_units(self.pipeline, unit_filter, after, limit)
            assert len(page.rows) <= limit
            yield [row["wal_id"] for row in page.rows]
            after = page.after
            if after is None:
                return


@pytest.fixture
def searched(database: Database, contracts: ContractRegistry, tmp_path: Path) -> Searched:
    bench = make_bench(database, contracts)
    settings = Settings(home=tmp_path, geoparquet=False)
    _fill(bench)
    return Searched(Pipeline(settings=settings, registry=contracts, database=database, clock=bench.clock), bench)


FILTERS = [
    UnitFilter(),
    UnitFilter(dataset="nexrad-l2"),
    UnitFilter(dataset="goes-abi"),
    UnitFilter(status=Status.PENDING),
    UnitFilter(code="missing_object"),
    UnitFilter(code="no_such_code"),
    UnitFilter(operator="metadata_extract"),
    UnitFilter(operator="integrity_check", code="missing_object", status=Status.FAILED, dataset="nexrad-l2"),
    UnitFilter(status=Status.QUARANTINED, code="moved_radar"),
    UnitFilter(text="KTLX20251203_00062"),
    UnitFilter(text="_00062", status=Status.SUCCEEDED),
    UnitFilter(text="ktlx20251203_00062"),
    UnitFilter(text="scan-OF-goes"),
    UnitFilter(status=Status.PENDING, code="missing_object"),
    UnitFilter(partition="2025-12-03", operator="metadata_extract", text="_00062"),
    UnitFilter(partition="2025-12-04", status=Status.SUCCEEDED),
    UnitFilter(suspect=True),
    UnitFilter(since=MIDDLE),
    UnitFilter(until=MIDDLE),
    UnitFilter(since=MIDDLE, until=MIDDLE + timedelta(microseconds=1)),
]


@pytest.mark.parametrize(("examined", "limits"), [(1, (7,)), (units.MOST_EXAMINED, (5, 1_000))])
def test_the_pages_have_all_matching_units_in_order_and_no_unit_twice(
    searched: Searched, monkeypatch: pytest.MonkeyPatch, examined: int, limits: tuple[int, ...]
) -> None:
    monkeypatch.setattr(units, "MOST_EXAMINED", examined)
    monkeypatch.setattr(search, "FIRST_CHUNK", 2)
    records = searched.records()
    for unit_filter, limit in product(FILTERS, limits):
        expected = [record.wal_id for record in records if _matches(record, unit_filter)]
        pages = list(islice(searched.pages(unit_filter, limit=limit), 10 * UNITS))
        assert [wal_id for page in pages for wal_id in page] == expected, (unit_filter, limit)
        if examined > UNITS:
            assert all(len(page) == limit for page in pages[:-1]), (unit_filter, limit)
            assert count_units(searched.pipeline, unit_filter) == UnitCount(units=len(expected), exact=True)


def test_a_budget_is_exhausted_with_its_last_row() -> None:
    assert [search.Budget(rows=2).spend(rows) for rows in (1, 2, 3)] == [False, True, True]
    assert not search.Budget().spend(10**9)


def test_a_count_stops_at_its_bound_and_is_inexact(searched: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "MOST_COUNTED", 3)
    assert count_units(searched.pipeline, UnitFilter()) == UnitCount(units=3, exact=False)
    monkeypatch.setattr(units, "MOST_EXAMINED", 3)
    monkeypatch.setattr(units, "MOST_COUNTED", 1_000)
    for unit_filter in (UnitFilter(text="KTLX"), UnitFilter(operator="metadata_extract"), UnitFilter(suspect=True)):
        count = count_units(searched.pipeline, unit_filter)
        assert (count.units <= 3, count.exact) == (True, False), unit_filter


def test_failures_are_counted_by_code_dataset_and_operator(searched: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [record for record in searched.records() if record.status in {Status.FAILED, Status.QUARANTINED}]
    expected = Counter((record.last_error_code, record.dataset, operator_of(record)) for record in failing)
    groups = failure_groups(searched.pipeline, FailureFilter())
    assert Counter({(group.code, group.dataset, group.operator): group.units for group in groups}) == expected
    assert len(expected) > 4
    assert all(group.exact for group in groups)
    assert [group.units for group in groups] == sorted((group.units for group in groups), reverse=True)
    [worst, *_] = groups
    times = [
        record.updated_at
        for record in failing
        if (record.last_error_code, record.dataset, operator_of(record)) == (worst.code, worst.dataset, worst.operator)
    ]
    assert (worst.first_seen, worst.last_seen) == (min(times), max(times))
    assert min(times) < max(times)
    of_goes = failure_groups(searched.pipeline, FailureFilter(dataset="goes-abi"))
    assert {group.dataset for group in of_goes} == {"goes-abi"}
    assert failure_groups(searched.pipeline, FailureFilter(since=datetime(2026, 1, 1, tzinfo=UTC))) == []
    monkeypatch.setattr(units, "MOST_ADDED_UP", 1)
    capped = failure_groups(searched.pipeline, FailureFilter())
    assert not all(group.exact for group in capped)
    assert {group.code for group in capped} == {group.code for group in groups}


def test_the_view_names_the_operator_at_which_a_unit_failed(searched: Searched) -> None:
    shown = {row["wal_id"]: row["operator"] for row in search_units(searched.pipeline, UnitFilter(), None, 1_000).rows}
    for record in searched.records():
        failing = record.status in {Status.FAILED, Status.QUARANTINED}
        assert shown[record.wal_id] == (operator_of(record) if failing else None), record
    assert {"integrity_check", "metadata_extract", None} <= set(shown.values())


def test_a_wrong_filter_is_refused_in_one_line() -> None:
    for query, line in (
        ([("colour", "red")], "a filter has no such parameter or value; observed 'colour'; expected dataset, "),
        ([("status", "failed"), ("status", "")], "observed a parameter twice"),
        ([("suspect", "yes")], "observed suspect='yes'; expected true or false"),
        ([("partition", "2025-02-30")], "observed partition='2025-02-30'; expected a day, YYYY-MM-DD"),
        ([("status", "lost")], "observed status='lost'; expected pending or in_progress or"),
        ([("dataset", "GOES'; --")], "expected the id of a dataset"),
        ([("code", "x y")], "expected an error code"),
        ([("operator", "settle")], "expected integrity_check or metadata_extract"),
        ([("text", "\0")], "expected 1 to 300 characters"),
        ([("since", "yesterday")], "observed since='yesterday'; expected a day or a moment"),
        ([("until", "0001-01-01T00:00:00+14:00")], "expected a day or a moment"),
        ([("status", "succeeded"), ("code", "x")], "observed status succeeded with a code"),
    ):
        with pytest.raises(BadFilterError) as refused:
            UnitFilter.of_query(query)
        assert line in str(refused.value)


@pytest.mark.one_database
def test_a_wrong_page_position_or_an_unknown_dataset_is_refused(searched: Searched) -> None:
    for after in ("", "x", "2025-13-03T00:00:00.000000Z_" + "0" * 8 + "-0000" * 3 + "-" + "0" * 12):
        with pytest.raises(BadFilterError):
            search_units(searched.pipeline, UnitFilter(), after, 1)
    for view in (units.UNITS, units.FAILURES, GAPS):
        with pytest.raises(KfmError, match="no-such"):
            view.answer(searched.pipeline, {"dataset": "no-such"})
    with pytest.raises(KfmError, match="no-such"):
        count_units(searched.pipeline, UnitFilter(dataset="no-such"))


TIMES = st.none() | st.datetimes(timezones=st.just(UTC))


@given(
    st.builds(
        UnitFilter,
        dataset=st.sampled_from([None, "goes-abi"]),
        status=st.sampled_from([None, Status.FAILED, Status.QUARANTINED]),
        code=st.sampled_from([None, "missing_object"]),
        operator=st.sampled_from([None, *OPERATORS]),
        text=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300),
        suspect=st.booleans(),
        since=TIMES,
        until=TIMES,
    )
)
def test_a_filter_can_be_read_back_from_its_query(unit_filter: UnitFilter) -> None:
    assert UnitFilter.of_query(unit_filter.query()) == unit_filter


def operator_of(record: NoddWalRecord) -> str | None:
    """Return the operator at which the unit failed, according to the record's error code."""
    of_codes = {
        "missing_object": "integrity_check",
        "bad_magic": "integrity_check",
        "unreadable_format": "metadata_extract",
        "governance_hard_fail": "metadata_extract",
    }
    return of_codes.get(record.last_error_code or "")


def _fill(bench: Bench) -> None:
    units = [envelope(number) for number in range(UNITS)]
    units += [
        envelope(number, dataset="goes-abi", object_uri=f"s3://noaa-goes19/x/{number}.nc") for number in range(UNITS)
    ]
    bench.ledger.ensure(units)
    endings = [
        _registered,
        lambda unit: failed(unit, "missing_object"),
        lambda unit: failed(unit, "bad_magic"),
        lambda unit: _unread(unit, "unreadable_format"),
        lambda unit: _unread(unit, "governance_hard_fail"),
    ]
    for dataset in ("nexrad-l2", "goes-abi"):
        claimed = bench.ledger.claim(dataset=dataset, partition="2025-12-03", run_id="run-1", limit=UNITS - 3)
        for number, unit in enumerate(claimed[:-2]):
            bench.clock.advance(1)
            bench.ledger.settle([endings[number % len(endings)](unit)], run_id="run-1")
    bench.ledger.quarantine([units[-1].wal_id], reason_code="moved_radar", decision=PERSON)


def _registered(unit: Any) -> Any:
    """Return the unit with an Item whose id does not occur in the object's key."""
    whole = finished(unit)
    return whole.evolve(stac=replace(whole.stac, item_id=f"Scan-of-{unit.dataset}"))


def _unread(unit: Any, code: str) -> Any:
    """Return the unit after it has failed at metadata-extract."""
    issue = Issue(code=code, severity=Severity.FAILED, message="it cannot be read")
    whole = finished(unit)
    return whole.evolve(metadata=Metadata(status=CheckStatus.FAILED, issues=(issue,)), stac=None, provenance=None)


def _matches(record: NoddWalRecord, unit_filter: UnitFilter) -> bool:
    failing = record.status in {Status.FAILED, Status.QUARANTINED}
    return (
        unit_filter.dataset in {None, record.dataset}
        and unit_filter.status in {None, record.status}
        and (not unit_filter.is_of_failures or failing or unit_filter.status is Status.PENDING)
        and unit_filter.code in {None, record.last_error_code}
        and unit_filter.operator in {None, operator_of(record)}
        and unit_filter.partition in {None, record.partition_key}
        and (not unit_filter.suspect or CheckStatus.SUSPECT in {record.integrity_status, record.metadata_status})
        and unit_filter.text.lower() in f"{record.object_uri}\n{record.stac_item_id}".lower()
        and (unit_filter.since is None or record.event_time >= unit_filter.since)
        and (unit_filter.until is None or record.event_time < unit_filter.until)
    )


def test_the_columns_of_every_list_are_fields_of_its_rows() -> None:
    modules = (decisions, feeds, units)
    views = [value for module in modules for value in vars(module).values() if isinstance(value, View)]
    assert len(views) >= 11
    for view in views:
        fields = {*getattr(view.row, "model_fields", ()), *getattr(view.row, "__dataclass_fields__", ())}
        unknown = {*view.columns, *view.links} - fields
        assert all(hasattr(view.row, name) for name in unknown), view.name
