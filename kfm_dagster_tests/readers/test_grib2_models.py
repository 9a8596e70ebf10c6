"""GFS, GEFS and NBM: real objects and samples under their contracts' own keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import contradictions
from kfm_dagster.demo.samples import gefs, gfs, nbm
from kfm_dagster.readers.grib_index import read_index
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import match_of
from kfm_dagster_tests.readers.test_grib2 import read
from kfm_dagster_tests.readers.truth.comparison import CountingSource

RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)
WAVE = "gfs.20230823/18/wave/gridded/gfswave.t18z.atlocn.0p16.f001.grib2"
Made = tuple[str, bytes, str]
MADE: list[tuple[str, Callable[[], Made]]] = [
    *(
        ("gfs", lambda p=p, r=r, lead=lead: gfs.make_gfs(run=RUN, lead=lead, product=p, resolution=r))
        for p, r in gfs.PRODUCTS
        for lead in (0, 7, 384)
    ),
    ("gfs", lambda: gfs.make_gfs(run=RUN, lead=9, model="gdas")),
    *(
        ("gefs", lambda m=m, p=p, lead=lead: gefs.make_gefs(run=RUN, lead=lead, member=m, product=p))
        for m in ("c00", "p30", "avg", "spr")
        for p in gefs.PRODUCTS
        for lead in (0, 9, 240)
    ),
    *(("gfs", lambda r=r: gfs.make_gfs_wave(run=RUN, lead=3, region=r)) for r, _ in gfs.WAVES),
    *(
        ("nbm", lambda p=p, r=r, lead=lead: nbm.make_nbm(run=RUN, lead=lead, product=p, region=r))
        for p in nbm.PRODUCTS
        for r in nbm.REGIONS
        for lead in (1, 36, 264)
    ),
]


@pytest.mark.clause("OPR-06")
def test_layers_of_a_real_object_are_its_messages(shared_data: Path, reference: dict[str, Any]) -> None:
    path = shared_data / "objects/noaa-gfs-bdp-pds" / WAVE
    content, index = path.read_bytes(), path.with_name(path.name + ".idx").read_bytes()
    found = read(content, key=WAVE, groups={"date": "20230823", "cycle": "18", "lead": "001"}, index=index)
    fields = reference[f"objects/noaa-gfs-bdp-pds/{WAVE}"]["reference"]["fields"]
    assert [(layer.offset, layer.length) for layer in found.layers] == [
        (field["offset"], field["length"]) for field in fields
    ]
    lines = [line.split(":") for line in index.decode().splitlines()]
    assert [tuple(layer[:4]) for layer in found.layers] == [tuple(line[3:7]) for line in lines]
    assert found.layers[8][:4] == ("SWELL", "1 in sequence", "1 hour fcst", "")


@pytest.mark.clause("OPR-26")
def test_lines_of_real_indexes_name_the_member_of_their_key(shared_data: Path, contracts: ContractRegistry) -> None:
    declared = {"layers.qualifier": contracts["gefs"].metadata_extract.key_values["layers.qualifier"]}
    named: dict[str, set[object]] = {}
    for path in (shared_data / "files/idx").glob("ge*.idx"):
        named.setdefault(path.name[2:5], set()).update(
            entry.qualifier for entry in read_index(BytesSource(path.read_bytes()))
        )
    assert set(named) == {"avg", "c00", "p01"}
    for member, of in product(named, named):
        said = contradictions(declared, {"member": member}, {"layers.qualifier": named[of]}.__getitem__)
        assert (not [*said]) is (member == of)


@pytest.mark.clause("OPR-14")
def test_sample_is_read_without_a_finding(contracts: ContractRegistry) -> None:
    for dataset, make in MADE:
        key, content, index = make()
        match = match_of(dataset, key)
        source = CountingSource(content)
        found = read(source, key=key, groups=match.groups, index=index)
        assert found.findings == ()
        assert source.requests == [4096]
        assert RUN <= found.start <= found.end == found.datetime == match.end
        assert found.properties["grib:message-count"] == len(found.layers) == index.count("\n")
        assert sum(layer.length for layer in found.layers) == len(content)
        assert set(contracts[dataset].metadata_extract.required) <= found.properties.keys()


def test_what_keys_say_stands_under_the_name_of_the_dataset() -> None:
    properties = []
    for dataset, (key, content, index) in (
        ("gfs", gfs.make_gfs(run=RUN, lead=9, model="gdas")),
        ("gfs", gfs.make_gfs_wave(run=RUN, lead=3)),
        ("gefs", gefs.make_gefs(run=RUN, lead=6, member="p07")),
        ("nbm", nbm.make_nbm(run=RUN, lead=6, product="qmd", region="hi")),
    ):
        found = read(content, key=key, groups=match_of(dataset, key).groups, index=index)
        properties.append({name: one for name, one in found.properties.items() if name.startswith(f"{dataset}:")})
    shared = {"gefs:product": "pgrb2s", "gefs:resolution": "0p25", "gefs:cycle": 6, "gefs:lead-hours": 6}
    assert properties == [
        {"gfs:model": "gdas", "gfs:product": "pgrb2", "gfs:resolution": "0p25", "gfs:cycle": 6, "gfs:lead-hours": 9},
        {"gfs:model": "gfs", "gfs:region": "atlocn", "gfs:resolution": "0p16", "gfs:cycle": 6, "gfs:lead-hours": 3},
        {"gefs:member": "p07", **shared},
        {"nbm:region": "hi", "nbm:product": "qmd", "nbm:cycle": 6, "nbm:lead-hours": 6},
    ]


GFS, GEFS, NBM, MRMS = "noaa-gfs-bdp-pds", "noaa-gefs-pds", "noaa-nbm-grib2-pds", "noaa-mrms-pds"
LIGHTNING = "LightningProbabilityNext30minGrid_scale_1"
DATA: list[tuple[str, str, str]] = [
    # bucket, key, Item
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2.0p25.f023", "gfs.20260605.t12z.pgrb2.0p25.f023"),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2.0p25.anl", "gfs.20260605.t12z.pgrb2.0p25.anl"),
    (GFS, "gfs.20210105/12/gfs.t12z.pgrb2b.1p00.f003", "gfs.20210105.t12z.pgrb2b.1p00.f003"),
    (GFS, "gdas.20260605/18/atmos/gdas.t18z.pgrb2full.0p50.f009", "gdas.20260605.t18z.pgrb2full.0p50.f009"),
    (GFS, WAVE, "gfswave.20230823.t18z.atlocn.0p16.f001"),
    (
        GEFS,
        "gefs.20250801/00/atmos/pgrb2sp25/gep01.t00z.pgrb2s.0p25.f015",
        "gefs.20250801.t00z.p01.pgrb2s.0p25.f015",
    ),
    (NBM, "blend.20250901/00/core/blend.t00z.core.f001.co.grib2", "nbm.20250901.t00z.core.co.f001"),
    (
        MRMS,
        "CONUS/H50_Above_-20C_00.50/20260219/MRMS_H50_Above_-20C_00.50_20260219-042039.grib2.gz",
        "mrms.CONUS.H50_Above_-20C_00.50.20260219-042039",
    ),
    (
        MRMS,
        f"GUAM/{LIGHTNING}/20260219/MRMS_{LIGHTNING}_20260219-042039.grib2.gz",
        f"mrms.GUAM.{LIGHTNING}.20260219-042039",
    ),
]
NEIGHBOURS: list[tuple[str, str, KeyKind]] = [
    (GFS, f"{WAVE}.idx", KeyKind.SIDECAR),
    (GFS, "gfs.20260605/12/atmos/gfs.t18z.pgrb2.0p25.f023", KeyKind.FOREIGN),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2.0p25.f023.grib2", KeyKind.FOREIGN),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.sfluxgrbf001.grib2", KeyKind.IGNORED),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.goessimpgrb2.0p25.f001", KeyKind.IGNORED),
    (GFS, "gdas.20260605/12/atmos/gdas.t12z.atmf006.nc", KeyKind.IGNORED),
    (GFS, "gfs.20260605/12/wave/station/gfswave.t12z.bull_tar", KeyKind.IGNORED),
    (GFS, "gfs.20260605/12/wave/gridded/gfswave.t12z.arctic.9km.f000.grib2.idx", KeyKind.IGNORED),
    (GFS, "enkfgdas.20260605/12/atmos/mem001/x.nc", KeyKind.IGNORED),
    (GEFS, "gefs.20250801/00/atmos/pgrb2bp5/gec00.t00z.pgrb2b.0p50.f840.idx", KeyKind.SIDECAR),
    (GEFS, "gefs.20250801/00/chem/pgrb2ap25/gefs.chem.t00z.a2d_0p25.f000.grib2", KeyKind.IGNORED),
    (NBM, "blend.20250901/00/qmd/blend.t00z.qmd.f264.pr.grib2.idx", KeyKind.SIDECAR),
    (NBM, "blend.20250901/00/qmd/blend.t00z.core.f024.pr.grib2", KeyKind.FOREIGN),
    (NBM, "blend.20250901/00/text/blend_nbhtx.t00z", KeyKind.IGNORED),
    (MRMS, "CONUS/PrecipRate_00.00/20260219/MRMS_PrecipFlag_00.00_20260219-042039.grib2.gz", KeyKind.FOREIGN),
    (MRMS, "CONUS/PrecipRate_00.00/20260219/MRMS_PrecipRate_00.00_20260218-042039.grib2.gz", KeyKind.FOREIGN),
    (MRMS, "ProbSevere/PROBSEVERE/20260219/MRMS_PROBSEVERE_20260219_042039.json", KeyKind.IGNORED),
]


@pytest.mark.clause("OPR-14")
def test_data_keys_are_understood(contracts: ContractRegistry) -> None:
    for bucket, key, item_id in DATA:
        route = contracts.route(bucket=bucket, key=key)
        assert route.contract is not None
        match = match_of(route.contract.id, key)
        assert (route.kind, match.item_id) == (KeyKind.DATA, item_id)
        assert match.end - match.start == timedelta(hours=int(match.groups.get("lead", 0)))


def test_neighbours_in_a_bucket_are_told_apart(contracts: ContractRegistry) -> None:
    for bucket, key, kind in NEIGHBOURS:
        assert contracts.route(bucket=bucket, key=key).kind is kind
