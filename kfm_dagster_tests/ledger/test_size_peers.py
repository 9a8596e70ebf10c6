"""The peers of a unit, with which its size is compared, are fixed when the ledger first records the unit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import PEERS_KEPT, PeerSizes
from kfm_dagster.ingest.recording import completion_of
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.factories import envelope, finished, repeat_units
from kfm_dagster_tests.ledger.bench import Bench, make_bench
from kfm_dagster_tests.transactions import own_tx

pytestmark = pytest.mark.clause("BEY-04")

NOON = datetime(2025, 12, 3, 12, tzinfo=UTC)


def volume(number: int, *, size: int | None, site: str = "KTLX", start: datetime = NOON) -> Envelope:
    return envelope(number, site=site, object_size=size, time_range_start=start + timedelta(seconds=number))


def admitted(bench: Bench, *units: Envelope) -> list[tuple[int, ...] | None]:
    """Record the units together; return the recorded peers of each."""
    bench.ledger.ensure(units)
    return [recorded_peers(bench, unit) for unit in units]


def recorded_peers(bench: Bench, unit: Envelope) -> tuple[int, ...] | None:
    record = bench.ledger.get(unit.wal_id)
    peer_sizes = record.extension.get("peer_sizes")
    return None if peer_sizes is None else tuple(peer_sizes)


def kept(bench: Bench) -> list[tuple[str, str, list[int]]]:
    rows = bench.ask("SELECT product, month, CAST(sizes AS text) AS sizes FROM size_peers ORDER BY product, month")
    return [(row["product"], row["month"], [int(size) for size in row["sizes"].strip("[]").split(",")]) for row in rows]


def test_a_unit_s_peers_are_earlier_units_of_the_same_product(bench: Bench) -> None:
    first = [volume(number, size=100 + number) for number in range(3)]
    assert admitted(bench, *first) == [None] * 3  # units of one batch are not each other's peers
    assert admitted(bench, volume(9, size=7)) == [(3, 100, 102)]
    assert admitted(bench, volume(10, size=7, site="KFTG")) == [None]  # another product
    assert admitted(bench, volume(11, size=None)) == [(4, 7, 102)]
    assert admitted(bench, volume(12, size=0)) == [(4, 7, 102)]  # units without a size are not peers
    assert kept(bench) == [
        ("site=KFTG version=06", "2025-12", [7]),
        ("site=KTLX version=06", "2025-12", [100, 101, 102, 7]),
    ]


def test_a_repeated_announcement_neither_adds_a_peer_nor_changes_the_unit_s_peers(bench: Bench) -> None:
    unit = volume(0, size=100)
    admitted(bench, unit)
    admitted(bench, *(volume(number, size=900) for number in range(1, 9)))
    assert admitted(bench, unit, unit) == [None, None]
    ((_, _, sizes),) = kept(bench)
    assert sizes == [100] + [900] * 8


def test_for_each_month_only_the_newest_peers_are_kept(bench: Bench) -> None:
    admitted(bench, *(volume(number, size=1 + number) for number in range(PEERS_KEPT + 5)))
    ((_, _, sizes),) = kept(bench)
    assert sizes == list(range(6, PEERS_KEPT + 6))
    # At the start of a month, peers of the previous month count; peers of a year ago or of later months do not.
    january = datetime(2026, 1, 1, tzinfo=UTC)
    assert admitted(bench, volume(0, size=1000, start=january)) == [tuple(PeerSizes.of(sizes) or ())]
    assert admitted(bench, volume(1, size=1000, start=january)) == [tuple(PeerSizes.of([*sizes[1:], 1000]) or ())]
    for other in (datetime(2024, 12, 3, tzinfo=UTC), datetime(2025, 11, 30, tzinfo=UTC)):
        assert admitted(bench, volume(0, size=1, start=other)) == [None]


def test_attempts_and_replays_use_the_peers_of_the_first_attempt(bench: Bench) -> None:
    admitted(bench, *(volume(number, size=100) for number in range(8)))
    unit = volume(20, size=90)
    [claimed] = bench.claimed(unit)
    assert claimed.peer_sizes == (8, 100, 100)
    bench.ledger.settle([finished(claimed)], run_id="run-1")
    # Other peers have been recorded by now.
    admitted(bench, *(volume(number, size=10**6) for number in range(30, 60)))
    repeat_units(bench.ledger, unit.wal_id)
    [reclaimed] = bench.claim(unit, run_id="run-2")
    assert (reclaimed.attempt, reclaimed.peer_sizes) == (2, (8, 100, 100))


def test_a_completion_uses_the_peers_of_the_object_s_first_unit_and_is_not_a_peer(bench: Bench) -> None:
    admitted(bench, *(volume(number, size=100) for number in range(8)))
    unit = volume(20, size=90)
    [claimed] = bench.claimed(unit)
    before = kept(bench)
    [lacking] = bench.ledger.lacking_sidecars([unit.object_uri])
    completion = completion_of(lacking, ".idx", "e", "m")
    bench.ledger.ensure([completion], lane=Lane.BULK)
    assert recorded_peers(bench, completion) == claimed.peer_sizes == (8, 100, 100)
    assert kept(bench) == before


def test_a_dataset_without_a_rule_for_sizes_has_no_peers(bench: Bench) -> None:
    key = "2025/12/03/TLX"
    unit = envelope(0, dataset="nexrad-l3", object_uri=f"s3://unidata-nexrad-level3/{key}")
    assert admitted(bench, unit) == [None]
    assert kept(bench) == []


def test_concurrent_admissions_lose_no_peer(database: Database, contracts: ContractRegistry) -> None:
    ledgers = [make_bench(database, contracts) for _ in range(4)]
    ready = threading.Barrier(len(ledgers))

    def admit(worker: int) -> None:
        ready.wait()
        for number in range(5):
            own_tx(ledgers[worker].ledger).ensure([volume(100 * worker + number, size=100 * (worker + 1) + number)])

    with ThreadPoolExecutor(len(ledgers)) as pool:
        list(pool.map(admit, range(len(ledgers))))
    ((_, _, sizes),) = kept(ledgers[0])
    assert sorted(sizes) == [100 * (worker + 1) + number for worker in range(4) for number in range(5)]
    assert len(ledgers[0].claim()) == 20
