"""The contract of OISST: keys, and that a preliminary analysis and the final one are one Item, which stays final."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.catalog.outcomes import is_older
from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.samples.oisst import BUCKET, oisst_samples
from kfm_dagster.ingest.rehearsal import rehearse
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster_tests.stages.batches import extracted

DAY = date(2025, 12, 3)
FOLDER = "data/v2.1/avhrr/202512"


def test_a_key_is_what_it_is(contracts: ContractRegistry) -> None:
    for key, kind in [
        (f"{FOLDER}/oisst-avhrr-v02r01.20251203.nc", KeyKind.DATA),
        (f"{FOLDER}/oisst-avhrr-v02r01.20251203_preliminary.nc", KeyKind.DATA),
        ("index.html", KeyKind.IGNORED),
        # Another month's folder, another product, no day, another suffix.
        ("data/v2.1/avhrr/202511/oisst-avhrr-v02r01.20251203.nc", KeyKind.FOREIGN),
        (f"{FOLDER}/oisst-amsr-v02r01.20251203.nc", KeyKind.FOREIGN),
        (f"{FOLDER}/oisst-avhrr-v02r01.202512.nc", KeyKind.FOREIGN),
        (f"{FOLDER}/oisst-avhrr-v02r01.20251203_preliminary.nc.md5", KeyKind.FOREIGN),
    ]:
        assert contracts.route(bucket=BUCKET, key=key).kind is kind


def test_a_day_is_listed_with_both_of_its_objects(contracts: ContractRegistry) -> None:
    (prefix,) = contracts["ocean"].storage.day_prefixes(DAY)
    for _, key, _ in oisst_samples(DAY, 2):
        match = contracts.grammars["ocean"].match(key)
        assert match is not None
        assert key.startswith(prefix)
        assert (match.item_id, match.start) == ("oisst-avhrr-v02r01.20251203", datetime(2025, 12, 3, tzinfo=UTC))


def candidates(contracts: ContractRegistry) -> Sequence[Candidate]:
    """The preliminary and the final analysis of a day, as they want to stand in the catalog."""
    objects = ((bucket, key, content, lambda _: None) for bucket, key, content in oisst_samples(DAY, 2))
    contract, grammar = contracts["ocean"], contracts.grammars["ocean"]
    return [stac_register(unit, contract=contract, grammar=grammar) for unit in extracted(objects)]


@pytest.mark.clause("OPR-14")
def test_a_preliminary_analysis_never_overwrites_the_final_one(contracts: ContractRegistry) -> None:
    preliminary, final = candidates(contracts)
    assert preliminary.item_id == final.item_id
    assert is_older(preliminary, final)
    assert not is_older(final, preliminary)
    assert not is_older(final, final)
    told = [one.item["properties"]["oisst:status"] for one in (preliminary, final)]
    assert told == ["preliminary", "final"]


@pytest.mark.clause("OPR-14")
def test_the_real_analysis_goes_through_the_whole_chain(
    contracts: ContractRegistry, shared_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(shared_data / "objects" / BUCKET, tmp_path / BUCKET)
    (file,) = tmp_path.rglob("*.nc")
    found = rehearse(contracts, "ocean", file)
    assert (found.findings, found.suspect) == ((), ())
    assert found.item is not None
    assert (found.item["id"], found.item["bbox"]) == ("oisst-avhrr-v02r01.20220913", [-180, -90, 180, 90])
    assert found.item["properties"]["oisst:status"] == "final"
