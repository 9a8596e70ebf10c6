"""Samples of a day: the same bytes every time, distinct, of their contract, and no more than there are keys."""

from __future__ import annotations

from datetime import date

import pytest

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.demo.families import Samples
from kfm_dagster.demo.samples import gefs, gfs, hrrr, mrms, nbm
from kfm_dagster.demo.samples.goes_abi import goes_abi_samples
from kfm_dagster.demo.samples.goes_glm import FILES_A_DAY, goes_glm_samples
from kfm_dagster.demo.samples.nexrad_chunks import nexrad_chunk_samples
from kfm_dagster.demo.samples.nexrad_level2 import nexrad_level2_samples
from kfm_dagster.demo.samples.nexrad_level3 import nexrad_level3_samples
from kfm_dagster.demo.samples.oisst import oisst_samples
from kfm_dagster.readers.nexrad_radar import sites, tdwr_sites
from kfm_dagster_tests.readers.reading import header_of

DAY = date(2024, 12, 31)
SAMPLES: dict[str, tuple[Samples, int]] = {
    "gefs": (gefs.gefs_samples, gefs.OBJECTS_PER_DAY),
    "gfs": (gfs.gfs_samples, gfs.OBJECTS_PER_DAY),
    "goes-abi": (goes_abi_samples, 109_296),
    "goes-glm": (goes_glm_samples, FILES_A_DAY),
    "hrrr": (hrrr.hrrr_samples, hrrr.OBJECTS_PER_DAY),
    "mrms": (mrms.mrms_samples, mrms.OBJECTS_PER_DAY),
    "nbm": (nbm.nbm_samples, nbm.OBJECTS_PER_DAY),
    "nexrad-l2": (nexrad_level2_samples, (len(sites()) + len(tdwr_sites())) * 86_400),
    "nexrad-l3": (nexrad_level3_samples, (len(sites()) + len(tdwr_sites())) * 86_400),
    "ocean": (oisst_samples, 2),
}
"""By their dataset, and how many a day has. ISD's are of a year, and a volume's chunks have no most."""


@pytest.mark.clause("OPR-14")
@pytest.mark.parametrize("dataset", [*SAMPLES, "nexrad-l2-chunks"])
def test_samples_of_a_day_are_distinct_and_read_without_a_finding(dataset: str, contracts: ContractRegistry) -> None:
    samples, most = SAMPLES.get(dataset, (nexrad_chunk_samples, 9))
    drawn = list(samples(DAY, min(most, 40)))
    assert drawn == list(samples(DAY, min(most, 40)))
    assert len({key for _, key, _ in drawn}) == len({content for *_, content in drawn}) == min(most, 40)
    contract, grammar = contracts[dataset], contracts.grammars[dataset]
    for bucket, key, content in drawn:
        match = grammar.match(key)
        assert match is not None, key
        assert (bucket in contract.storage.buckets, match.start.date()) == (True, DAY), key
        assert contract.integrity.min_bytes <= len(content) < 150_000
        found = header_of(contract.metadata_extract.reader, content, key=key, groups=match.groups)
        assert {code for code, _ in found.findings} <= {"sidecar_missing"}, key
        named = set(contract.metadata_extract.required) - {"grib:variables"}
        assert named <= found.properties.keys(), key


def test_more_samples_than_a_day_has_keys_are_refused() -> None:
    for samples, most in SAMPLES.values():
        with pytest.raises(ValueError, match=r"\d"):
            next(samples(DAY, most + 1))
