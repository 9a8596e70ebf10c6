"""GRIB2 of models: keys of objects and samples under the contracts, and times of fields."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from operator import attrgetter
from pathlib import Path

import pytest

from kfm_dagster.contracts.key_grammar import KeyKind
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.quality import contradictions
from kfm_dagster.demo.samples import gefs, gfs, nbm
from kfm_dagster.demo.samples.grib2_messages import (
    Field,
    ForecastStep,
    Origin,
    assembled,
    at_hour,
    at_minute,
    lat_lon_grid,
    message,
    over_hours,
)
from kfm_dagster.demo.samples.mrms import make_mrms
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.grib2 import WALK_MESSAGES
from kfm_dagster.readers.grib2_properties import duration
from kfm_dagster.readers.grib_index import read_index
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.fuzz.specimens import SUBJECTS
from kfm_dagster_tests.readers import test_grib2, test_grib2_gzip
from kfm_dagster_tests.readers.reading import match_of, patched
from kfm_dagster_tests.readers.test_grib2 import read
from kfm_dagster_tests.readers.truth.comparison import CountingSource

MODEL_RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)
WAVE = "gfs.20230823/18/wave/gridded/gfswave.t18z.atlocn.0p16.f001.grib2"


@pytest.mark.clause("OPR-26")
def test_lines_of_real_indexes_name_the_member_of_their_key(shared_data: Path, contracts: ContractRegistry) -> None:
    declared = {"layers.qualifier": contracts["gefs"].metadata_extract.key_values["layers.qualifier"]}
    named: dict[str, set[object]] = {}
    for path in (shared_data / "files/idx").glob("ge*.idx"):
        named.setdefault(path.name[2:5], set()).update(
            entry.qualifier for entry in read_index(BytesSource(path.read_bytes()))
        )
    assert set(named) == {"avg", "c00", "p01"}
    for member, other in product(named, named):
        mismatches = contradictions(declared, {"member": member}, {"layers.qualifier": named[other]}.__getitem__)
        assert (not [*mismatches]) is (member == other)


@pytest.mark.clause("OPR-14")
def test_an_indexed_sample_is_read_without_a_finding(contracts: ContractRegistry) -> None:
    for specimen in filter(attrgetter("index"), SUBJECTS["grib2"].samples):
        key, match = specimen.key, match_of(specimen.dataset, specimen.key)
        source = CountingSource(specimen.content)
        metadata = read(source, key=key, groups=match.groups, index=specimen.index)
        assert (metadata.findings, metadata.sidecars) == ((), (".idx",))
        assert source.requests == [4096]
        assert match.start <= metadata.start <= metadata.end == match.end
        # The first of several steps within the hour is the Item's time.
        assert metadata.datetime == (metadata.start if "subh" in key else metadata.end)
        assert metadata.start == match.end - timedelta(minutes=45) or "subh" not in key or "f00." in key
        assert metadata.properties["forecast:horizon"] == duration(metadata.datetime - match.start)
        assert metadata.properties["grib:message-count"] == len(metadata.layers) == (specimen.index or b"").count(b"\n")
        assert sum(layer.length for layer in metadata.layers) == len(specimen.content)
        assert set(contracts[specimen.dataset].metadata_extract.required) <= metadata.properties.keys()


def test_properties_from_the_key_have_the_dataset_s_prefix() -> None:
    properties = []
    for dataset, (key, content, index) in (
        ("gfs", gfs.make_gfs(run=MODEL_RUN, lead=9, model="gdas")),
        ("gfs", gfs.make_gfs_wave(run=MODEL_RUN, lead=3)),
        ("gefs", gefs.make_gefs(run=MODEL_RUN, lead=6, member="p07")),
        ("nbm", nbm.make_nbm(run=MODEL_RUN, lead=6, product="qmd", region="hi")),
    ):
        metadata = read(content, key=key, groups=match_of(dataset, key).groups, index=index)
        properties.append(
            {name: value for name, value in metadata.properties.items() if name.startswith(f"{dataset}:")}
        )
    shared = {"gefs:product": "pgrb2s", "gefs:resolution": "0p25", "gefs:cycle": 6, "gefs:lead-hours": 6}
    assert properties == [
        {"gfs:model": "gdas", "gfs:product": "pgrb2", "gfs:resolution": "0p25", "gfs:cycle": 6, "gfs:lead-hours": 9},
        {"gfs:model": "gfs", "gfs:region": "atlocn", "gfs:resolution": "0p16", "gfs:cycle": 6, "gfs:lead-hours": 3},
        {"gefs:member": "p07", **shared},
        {"nbm:region": "hi", "nbm:product": "qmd", "nbm:cycle": 6, "nbm:lead-hours": 6},
    ]


GFS, GEFS, NBM, MRMS = "noaa-gfs-bdp-pds", "noaa-gefs-pds", "noaa-nbm-grib2-pds", "noaa-mrms-pds"
CFS, NAQFC, NDFD = "noaa-cfs-pds", "noaa-nws-naqfc-pds", "noaa-ndfd-pds"
HI = "AQMv7/HI/20240516/06"
RRFS, RAP, RTMA, URMA = "noaa-rrfs-ops-pds", "noaa-rap-pds", "noaa-rtma-pds", "noaa-urma-pds"
RRFS_MEMBER = "rrfsens.20260920/00/m001/rrfs.t00z.m001.2dfldnomads.3km.f001.conus.grib2"
LIGHTNING = "LightningProbabilityNext30minGrid_scale_1"
DATA: list[tuple[str, str, str]] = [
    # bucket, key, Item
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2.0p25.f023", "gfs.20260605.t12z.pgrb2.0p25.f023"),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2.0p25.anl", "gfs.20260605.t12z.pgrb2.0p25.anl"),
    (GFS, "gfs.20210105/12/gfs.t12z.pgrb2b.1p00.f003", "gfs.20210105.t12z.pgrb2b.1p00.f003"),
    (GFS, "gdas.20260605/18/atmos/gdas.t18z.pgrb2full.0p50.f009", "gdas.20260605.t18z.pgrb2full.0p50.f009"),
    (GFS, WAVE, "gfswave.20230823.t18z.atlocn.0p16.f001"),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.sfluxgrbf001.grib2", "gfs.20260605.t12z.sfluxgrbf001"),
    (CFS, "cfs.20260805/00/6hrly_grib_01/flxf2026080506.01.2026080500.grb2", "cfs.20260805.t00z.m01.flxf.2026080506"),
    (NAQFC, f"{HI}/aqm.t06z.max_8hr_o3_bc.20240516.139.grib2", "aqm.v7.20240516.t06z.max_8hr_o3_bc.139"),
    (NDFD, "opnl/AR.puertori/VP.004-007/ds.pop12.bin", "ndfd.puertori.004-007.pop12"),
    (
        GEFS,
        "gefs.20250801/00/atmos/pgrb2sp25/gep01.t00z.pgrb2s.0p25.f015",
        "gefs.20250801.t00z.p01.pgrb2s.0p25.f015",
    ),
    (NBM, "blend.20250901/00/core/blend.t00z.core.f001.co.grib2", "nbm.20250901.t00z.core.co.f001"),
    (RRFS, "rrfs.20260924/00/rrfs.t00z.2dfld.13km.f001.na.grib2", "rrfs.20260924.t00z.2dfld.13km.f001.na"),
    (RRFS, "rrfs.20260924/01/rrfs.t01z.2dfld.3km.subh.f018.ak.grib2", "rrfs.20260924.t01z.2dfld.3km.subh.f018.ak"),
    (RRFS, RRFS_MEMBER, "rrfsens.20260920.t00z.m001.2dfldnomads.3km.f001.conus"),
    (
        RRFS,
        "firewx.20260920/06/rrfs.t06z.prslev.1p5km.f036.firewx_lcc.grib2",
        "firewx.20260920.t06z.prslev.1p5km.f036.firewx_lcc",
    ),
    (RRFS, "refs.20260813/00/ensprod/refs.t00z.pmmn.f03.conus.grib2", "refs.20260813.t00z.pmmn.f03.conus"),
    (RAP, "rap.20260730/rap.t03z.wrfnatf51.grib2", "rap.20260730.t03z.wrfnatf51"),
    (RTMA, "rtma2p5.20260810/rtma2p5.t00z.2dvaranl_ndfd.grb2_wexp", "rtma2p5.20260810.t00z.2dvaranl_wexp"),
    (RTMA, "rtma2p5_ru.20260810/rtma2p5_ru.t0015z.2dvaranl_ndfd.grb2", "rtma2p5_ru.20260810.t0015z.2dvaranl"),
    (RTMA, "akrtma.20260810/akrtma.t00z.2dvarerr_ndfd_3p0.grb2", "akrtma.20260810.t00z.2dvarerr"),
    (URMA, "prurma.20260810/prurma.t05z.2dvaranl_ndfd.grb2", "prurma.20260810.t05z.2dvaranl"),
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
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.sfluxgrbf001", KeyKind.FOREIGN),
    (GFS, "gfs.20260605/12/atmos/gfs.t12z.pgrb2f001.grib2", KeyKind.FOREIGN),
    (CFS, "cfs.20260805/00/6hrly_grib_01/flxf2026080506.02.2026080500.grb2", KeyKind.FOREIGN),
    (CFS, "cfs.20260805/00/6hrly_grib_01/pgbf2026080506.01.2026080500.grb2", KeyKind.IGNORED),
    (CFS, "cfs.20260805/00/time_grib_01/tmp2m.01.2026080500.daily.grb2", KeyKind.IGNORED),
    (NAQFC, f"{HI}/aqm.t06z.max_8hr_o3_bc.20240517.139.grib2", KeyKind.FOREIGN),
    (NAQFC, "RAP_Smoke/CS/20240516/03/x.grib2", KeyKind.IGNORED),
    (NDFD, "wmo/maxt/2023/11/02/YGUZ98_KWBN_202311021049", KeyKind.IGNORED),
    (NDFD, "expr/AR.conus/VP.001-003/ds.tstm.bin", KeyKind.IGNORED),
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
    (RRFS, f"{RRFS_MEMBER}.idx", KeyKind.SIDECAR),
    (RRFS, RRFS_MEMBER.replace(".m001.", ".m002."), KeyKind.FOREIGN),
    (RRFS, RRFS_MEMBER.replace("rrfsens", "rrfs"), KeyKind.FOREIGN),
    (RRFS, "rrfs.20260924/00/rrfs.t00z.bufrsnd.tar.gz", KeyKind.IGNORED),
    (RRFS, "rrfs.20260924/00/rrfs.t00z.class1.bufr", KeyKind.IGNORED),
    (RRFS, "refs.20260813/00/ensprod/refs.t00z.pmmn.f003.conus.grib2", KeyKind.FOREIGN),
    (RAP, "rap.20260730/rap_smokeCS.t03z.sfc.1hr_227.grib2", KeyKind.IGNORED),
    (RTMA, "rtma2p5.20260810/rtma2p5.2026081000.pcp.184.grb2", KeyKind.IGNORED),
    (RTMA, "rtma2p5.20260810/rtma2p5.t00z.2dvarges_ndfd.grb2_wexp", KeyKind.IGNORED),
    (MRMS, "CONUS/PrecipRate_00.00/20260219/MRMS_PrecipFlag_00.00_20260219-042039.grib2.gz", KeyKind.FOREIGN),
    (MRMS, "CONUS/PrecipRate_00.00/20260219/MRMS_PrecipRate_00.00_20260218-042039.grib2.gz", KeyKind.FOREIGN),
    (MRMS, "ProbSevere/PROBSEVERE/20260219/MRMS_PROBSEVERE_20260219_042039.json", KeyKind.IGNORED),
]


@pytest.mark.clause("OPR-14")
def test_data_keys_are_distinguished_from_other_keys_of_their_buckets(contracts: ContractRegistry) -> None:
    for bucket, key, item_id in DATA:
        route = contracts.route(bucket=bucket, key=key)
        match = match_of(route.contract.id, key)
        assert (route.kind, match.item_id) == (KeyKind.DATA, item_id)
        lead = match.groups.get("lead", "6" if "valid" in match.groups else "0")
        assert match.end - match.start == timedelta(hours=int(lead))
    for bucket, key, kind in NEIGHBOURS:
        assert contracts.route(bucket=bucket, key=key).kind is kind


RUN = datetime(2025, 12, 3, 18, tzinfo=UTC)
GRID = lat_lon_grid(4, 3, first=(2_000_000, 0), last=(0, 3_000_000), step=1_000_000)
FIELD = Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0)


def assembled_steps(steps: Sequence[ForecastStep]) -> tuple[bytes, str]:
    """Return an object with a field of each step, and its index."""
    fields = [(FIELD, step, message(FIELD, step, run=RUN, origin=Origin(process=(2, 0, 83, 0, 0)), grid=GRID))
              for step in steps]  # fmt: skip
    return assembled(fields, run=RUN)


def times_and_horizon(header: HeaderMetadata) -> tuple[str, ...]:
    """Return start, end, datetime and horizon."""
    return *times_of(header), header.properties["forecast:horizon"]


def times_of(header: HeaderMetadata) -> tuple[str, ...]:
    """Return start, end and datetime, as day and time of day."""
    return tuple(f"{moment:%dT%H:%M}" for moment in (header.start, header.end, header.datetime))


ANALYSIS = ("03T18:00", "03T18:00", "03T18:00", "PT0H")
EARLY = ("03T18:15", "03T19:00", "03T18:15", "PT15M")
LATE = ("04T06:00", "04T06:00", "04T06:00", "PT12H")


@pytest.mark.clause("OPR-24")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([at_hour(12)], LATE),
        # An instant, and windows from the run or from a later hour.
        ([over_hours(0, 12), at_hour(12), over_hours(11, 12)], LATE),
        ([at_minute(minutes) for minutes in (15, 30, 45, 60)], EARLY),
        ([at_minute(60), at_minute(15), over_hours(0, 1)], EARLY),
        # Windows only: the longest window, or several equally long ones from the first start to the last end.
        ([over_hours(11, 12), over_hours(6, 12)], ("04T00:00", "04T06:00", "04T06:00", "PT12H")),
        ([over_hours(0, 12), over_hours(11, 12)], ("03T18:00", "04T06:00", "04T06:00", "PT12H")),
        ([over_hours(6, 9), over_hours(9, 12)], ("04T00:00", "04T06:00", "04T06:00", "PT12H")),
        # The first file of a run has a sum over zero hours.
        ([at_hour(0), over_hours(0, 0)], ANALYSIS),
        ([over_hours(0, 0)], ANALYSIS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "alone"])
def test_an_object_has_the_time_of_its_instants_or_if_it_has_none_of_its_longest_window(
    steps: list[ForecastStep], expected: tuple[str, ...], indexed: bool
) -> None:
    content, index = assembled_steps(steps)
    header = test_grib2.read(content, index=index if indexed else None)
    assert header.sidecars == ((".idx",) if indexed else ())
    assert times_and_horizon(header) == expected
    assert header.properties["forecast:reference_datetime"] == "2025-12-03T18:00:00Z"
    # The valid time of each instant, and the end of each window.
    ends = {60 * (step.time + (step.length or 0)) if "min" not in step.text else step.time for step in steps}
    times = [f"{RUN + timedelta(minutes=end):%Y-%m-%dT%H:%M:%SZ}" for end in sorted(ends)]
    valid = {"type": "temporal", "extent": [times[0], times[-1]], "values": times}
    assert header.properties["cube:dimensions"]["valid_time"] == valid


@pytest.mark.clause("OPR-24")
def test_windows_of_a_variable_are_its_time_bounds() -> None:
    content, index = assembled_steps([over_hours(0, 12), at_hour(12), over_hours(11, 12), over_hours(0, 0)])
    bounds = [["2025-12-03T18:00:00Z", "2025-12-04T06:00:00Z"], ["2025-12-04T05:00:00Z", "2025-12-04T06:00:00Z"]]
    assert test_grib2.read(content, index=index).properties["cube:variables"]["APCP"]["time_bounds"] == bounds
    content, index = assembled_steps([at_hour(12)])
    assert "time_bounds" not in test_grib2.read(content, index=index).properties["cube:variables"]["APCP"]


@pytest.mark.clause("OPR-24")
def test_an_unknown_step_is_ignored() -> None:
    content, index = assembled_steps([at_hour(12), at_hour(12)])
    first, other = index.splitlines(keepends=True)
    for text in ("1 month ave fcst", "9999999 day fcst", "12-6 hour acc fcst"):
        unknown = other.replace("12 hour fcst", text)
        assert times_and_horizon(test_grib2.read(content, index=first + unknown)) == LATE
    # The time of the first message is read from the message, not from the unknown step in the index.
    content, index = assembled_steps([at_hour(0), at_hour(12)])
    index = index.replace("anl", "1 month ave fcst")
    assert times_and_horizon(test_grib2.read(content, index=index)) == ("03T18:00", "04T06:00", "03T18:00", "PT0H")


@pytest.mark.clause("OPR-24")
def test_a_field_without_a_readable_time_has_the_key_s_lead() -> None:
    content, _ = assembled_steps([at_hour(7)])
    at = content.index(b"\x04\x00\x00\x00\x00", 16) + 1  # octet 6 of section 4; the template is in octets 8-9
    for groups, expected in (({}, ("03T18:00",) * 3), ({"lead": "12"}, LATE[:3])):
        header = test_grib2.read(patched(content, at + 2, struct.pack(">H", 99)), groups=groups)
        assert (times_of(header), header.properties.get("forecast:horizon")) == (
            expected,
            "PT12H" if groups else None,
        )


def test_without_an_index_the_times_of_all_fields_of_each_message_are_used() -> None:
    """Sections 4 to 7 are repeated, as NAM packs winds, also with another grid (regulation 92.6.2)."""
    expected = ("04T00:00", "04T06:00", "04T00:00", "PT6H")
    content, _ = assembled_steps([at_hour(12)])
    other, _ = assembled_steps([at_hour(6)])
    grid, product = other.index(GRID.section), other.index(GRID.section) + len(GRID.section)
    for begin in (grid, product):
        both = content[:-4] + other[begin:-4] + b"7777"
        both = patched(both, 8, struct.pack(">Q", len(both)))
        header = test_grib2.read(both)
        assert times_and_horizon(header) == expected
        assert header.properties["grib:message-count"] == 1
    header = test_grib2.read(assembled_steps([at_hour(6), *[at_hour(12)] * WALK_MESSAGES])[0])
    assert "grib:message-count" not in header.properties
    assert times_and_horizon(header) == expected


@pytest.mark.clause("OPR-24")
def test_an_accumulation_of_mrms_has_the_window_that_its_name_states() -> None:
    valid = test_grib2_gzip.VALID
    for named, begin in (
        ("MultiSensor_QPE_01H_Pass2_00.00", "2025-12-03T05:02"), ("RadarOnly_QPE_72H_00.00", "2025-11-30T06:02"),
        ("RadarOnly_QPE_15M_00.00", "2025-12-03T05:47"), ("CREF_1HR_MAX_00.50", "2025-12-03T05:02"),
        ("MESH_Max_1440min_00.50", "2025-12-02T06:02"), ("RotationTrackML60min_00.50", "2025-12-03T05:02"),
        ("NLDN_CG_005min_AvgDensity_00.00", "2025-12-03T05:57"), ("RadarOnly_QPE_Since12Z_00.00", "2025-12-02T12:00"),
        ("GaugeInflIndex_24H_Pass1_00.00", "2025-12-02T06:02"), ("H50_Above_-20C_00.50", None),
        ("PrecipRate_00.00", None), ("FLASH_QPE_ARI01H_00.00", None),
        ("LightningProbabilityNext30minGrid_scale_1", None), ("MergedAzShear_0-2kmAGL_00.50", None),
    ):  # fmt: skip
        key = f"CONUS/{named}/{valid:%Y%m%d}/MRMS_{named}_{valid:%Y%m%d-%H%M%S}.grib2.gz"
        match = match_of("mrms", key)
        header = test_grib2_gzip.read(test_grib2_gzip.SAMPLE, key=key, groups=match.groups)
        assert f"{header.start:%Y-%m-%dT%H:%M}" == (begin or "2025-12-03T06:02")
        assert header.end == header.datetime == valid == match.start == match.end
        assert header.properties["mrms:product"] + "_" + header.properties["mrms:level"] == named
        assert not any(name.startswith("forecast:") for name in header.properties)


def test_a_sum_since_an_hour_that_is_valid_at_that_same_hour_covers_a_whole_day() -> None:
    noon = datetime(2025, 12, 3, 12, tzinfo=UTC)
    _, content = make_mrms(valid=noon)
    header = test_grib2_gzip.read(content, groups={"since": "12"})
    assert (header.start, header.end) == (noon - timedelta(days=1), noon)
