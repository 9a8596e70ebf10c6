"""Facts for the gates, from a real ledger and a real catalog on both databases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import Envelope, WalId
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.ledger.gaps import Gaps
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.operators.stac_register import stac_register_batch
from kfm_dagster.stages.gates.evaluate import coverage, uniqueness
from kfm_dagster.stages.gates.subject import catalog_owners, partition_facts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.fence import open_fence
from kfm_dagster.storage.publisher import FolderPublisher
from kfm_dagster_tests.factories import identified, with_section
from kfm_dagster_tests.ledger.bench import bring, make_bench
from kfm_dagster_tests.stages.batches import CONTRACTS, DAY, at, batch, subject
from kfm_dagster_tests.transactions import own_tx

GOES, NEXRAD = CONTRACTS["goes-abi"], CONTRACTS["nexrad-l2"]


@pytest.fixture
def ledger(database: Database) -> Ledger:
    return make_bench(database, CONTRACTS).ledger


def test_objects_of_a_partition_are_counted_by_hour_and_groups_of_their_key(database: Database, ledger: Ledger) -> None:
    units = [at("message_parse", unit) for unit in batch("goes-abi", 40)]
    rewritten = identified(units[0], object_version="0" * 32).evolve(event_time=units[0].event_time + timedelta(1))
    on_another_day = units[1].evolve(
        wal_id=WalId("0190b6a5-0000-8000-8000-000000000000"),
        time_range_start=units[1].time_range_start - timedelta(days=1),
    )
    bring(ledger, "succeeded", units[:1])
    own_tx(ledger).ensure([*units[1:], on_another_day])
    # The rewritten object has peer sizes, which its first version lacks, and both versions have succeeded.
    bring(ledger, "succeeded", [rewritten])
    with database.transaction() as tx:
        facts = partition_facts(GOES, DAY.isoformat(), tx=tx)
        assert partition_facts(GOES.model_copy(update={"coverage": None}), DAY.isoformat(), tx=tx) is None
    counted = Counter[tuple[int, str, str]]()
    for count in facts.counts:
        counted[count.hour, count.groups["satellite"], count.groups["product"]] += count.objects
    grammar = CONTRACTS.grammars["goes-abi"]
    matches = [match.groups for unit in units if (match := grammar.match(unit.key))]
    hours = [unit.time_range_start.hour for unit in units]
    expected = Counter(
        (hour, groups["satellite"], groups["product"]) for hour, groups in zip(hours, matches, strict=True)
    )
    assert facts.day == DAY
    assert counted == expected
    # No product has been announced yet, so none is expected; a day whose bucket was listed must be complete.
    assert facts.followed == {}
    assert coverage(subject(*units, partition=facts)).passed
    with database.transaction() as tx:
        Gaps(database=database).listed("goes-abi", DAY.isoformat(), at=units[0].event_time, tx=tx)
        listed = partition_facts(GOES, DAY.isoformat(), tx=tx)
    assert listed == replace(facts, followed=None)
    assert not coverage(subject(*units, partition=listed)).passed


def test_two_objects_with_one_item_id_collide_and_two_versions_of_one_object_do_not(
    database: Database, ledger: Ledger, tmp_path: Path
) -> None:
    catalog = Catalog(database, FolderPublisher(tmp_path), CONTRACTS)
    # A volume and its gzipped copy with the same Item id.
    alike = with_section(NEXRAD, "stac", item_id="{name}")

    def registered(unit: Envelope) -> list[Envelope]:
        own_tx(ledger).ensure([unit])
        return stac_register_batch(
            [unit.evolve(stac=None)],
            contract=NEXRAD,
            grammar=KeyGrammarReader(alike),
            catalog=catalog,
            fence=open_fence,
        )

    def verdict_of(units: list[Envelope]) -> bool:
        with database.transaction() as tx:
            owners = catalog_owners(NEXRAD, units, tx=tx)
        assert owners
        return uniqueness(subject(*units, catalog=owners)).passed

    first = batch("nexrad-l2")[0]
    rewritten = identified(first, object_version="0" * 32)
    packed = identified(first, object_uri=first.object_uri + ".gz")
    assert verdict_of(registered(first))
    assert verdict_of(registered(rewritten))
    assert not verdict_of(registered(packed))
    with database.transaction() as tx:
        assert catalog_owners(NEXRAD, [first.evolve(stac=None)], tx=tx) == ()
