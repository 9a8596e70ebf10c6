"""An object's time is when its fields hold, whether an index lists them or not."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

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
from kfm_dagster_tests.readers import test_grib2, test_grib2_gzip
from kfm_dagster_tests.readers.reading import match_of

RUN = datetime(2025, 12, 3, 18, tzinfo=UTC)
GRID = lat_lon_grid(4, 3, first=(2_000_000, 0), last=(0, 3_000_000), step=1_000_000)
FIELD = Field(name="APCP", level="surface", parameter=(0, 1, 8), surface=(1, 0), value=0.0)


def made(steps: Sequence[ForecastStep]) -> tuple[bytes, str]:
    """An object with a field of each step, and its index."""
    fields = [(FIELD, step, message(FIELD, step, run=RUN, origin=Origin(process=(2, 0, 83, 0, 0)), grid=GRID))
              for step in steps]  # fmt: skip
    return assembled(fields, run=RUN)


def held(header: HeaderMetadata) -> tuple[str, ...]:
    """Start, end, datetime and horizon."""
    return *held_times(header), header.properties["forecast:horizon"]


def held_times(header: HeaderMetadata) -> tuple[str, ...]:
    """Start, end and datetime, as day and time of day."""
    return tuple(f"{moment:%dT%H:%M}" for moment in (header.start, header.end, header.datetime))


ANALYSIS = ("03T18:00", "03T18:00", "03T18:00", "PT0H")
EARLY = ("03T18:15", "03T19:00", "03T18:15", "PT15M")
LATE = ("04T06:00", "04T06:00", "04T06:00", "PT12H")


@pytest.mark.clause("OPR-24")
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([at_hour(12)], LATE),
        # Windows that reach back to the run, and others, beside an instant.
        ([over_hours(0, 12), at_hour(12), over_hours(11, 12)], LATE),
        ([at_minute(minutes) for minutes in (15, 30, 45, 60)], EARLY),
        ([at_minute(60), at_minute(15), over_hours(0, 1)], EARLY),
        # Windows alone: the longest, and of equally long ones from the first's begin to the last's end.
        ([over_hours(11, 12), over_hours(6, 12)], ("04T00:00", "04T06:00", "04T06:00", "PT12H")),
        ([over_hours(0, 12), over_hours(11, 12)], ("03T18:00", "04T06:00", "04T06:00", "PT12H")),
        ([over_hours(6, 9), over_hours(9, 12)], ("04T00:00", "04T06:00", "04T06:00", "PT12H")),
        # The first file of a run: what is summed until the run is over no time.
        ([at_hour(0), over_hours(0, 0)], ANALYSIS),
        ([over_hours(0, 0)], ANALYSIS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "alone"])
def test_an_object_holds_when_its_instants_do_else_its_longest_window(
    steps: list[ForecastStep], expected: tuple[str, ...], indexed: bool
) -> None:
    content, index = made(steps)
    header = test_grib2.read(content, index=index if indexed else None)
    assert header.sidecars == ((".idx",) if indexed else ())
    assert held(header) == expected
    assert header.properties["forecast:reference_datetime"] == "2025-12-03T18:00:00Z"
    # Each time that a field is valid at, or a window ends at.
    ends = {60 * (step.time + (step.hours or 0)) if "min" not in step.text else step.time for step in steps}
    times = [f"{RUN + timedelta(minutes=end):%Y-%m-%dT%H:%M:%SZ}" for end in sorted(ends)]
    valid = {"type": "temporal", "extent": [times[0], times[-1]], "values": times}
    assert header.properties["cube:dimensions"]["valid_time"] == valid


@pytest.mark.clause("OPR-24")
def test_windows_of_a_variable_are_its_time_bounds() -> None:
    content, index = made([over_hours(0, 12), at_hour(12), over_hours(11, 12), over_hours(0, 0)])
    bounds = [["2025-12-03T18:00:00Z", "2025-12-04T06:00:00Z"], ["2025-12-04T05:00:00Z", "2025-12-04T06:00:00Z"]]
    assert test_grib2.read(content, index=index).properties["cube:variables"]["APCP"]["time_bounds"] == bounds
    content, index = made([at_hour(12)])
    assert "time_bounds" not in test_grib2.read(content, index=index).properties["cube:variables"]["APCP"]


@pytest.mark.clause("OPR-24")
def test_a_step_that_is_not_understood_counts_for_nothing() -> None:
    content, index = made([at_hour(12), at_hour(12)])
    first, other = index.splitlines(keepends=True)
    for text in ("1 month ave fcst", "9999999 day fcst", "12-6 hour acc fcst"):
        unknown = other.replace("12 hour fcst", text)
        assert held(test_grib2.read(content, index=first + unknown)) == LATE
    # The first message says its own time.
    content, index = made([at_hour(0), at_hour(12)])
    index = index.replace("anl", "1 month ave fcst")
    assert held(test_grib2.read(content, index=index)) == ("03T18:00", "04T06:00", "03T18:00", "PT0H")


@pytest.mark.clause("OPR-24")
def test_a_field_without_a_time_that_is_read_holds_at_the_keys_lead() -> None:
    content, _ = made([at_hour(7)])
    at = content.index(b"\x04\x00\x00\x00\x00", 16) + 1  # of section 4: its number, then coordinates and template 0
    for groups, expected in (({}, ("03T18:00",) * 3), ({"lead": "12"}, LATE[:3])):
        header = test_grib2.read(content[: at + 2] + struct.pack(">H", 99) + content[at + 4 :], groups=groups)
        assert (held_times(header), header.properties.get("forecast:horizon")) == (
            expected,
            "PT12H" if groups else None,
        )


def test_every_field_of_a_message_counts_and_of_many_messages_the_fields_that_are_walked() -> None:
    """Sections 4 to 7 again, as NAM packs the winds, and the same with a grid of its own (regulation 92.6.2)."""
    expected = ("04T00:00", "04T06:00", "04T00:00", "PT6H")
    content, _ = made([at_hour(12)])
    other, _ = made([at_hour(6)])
    grid, product = other.index(GRID.section), other.index(GRID.section) + len(GRID.section)
    for begin in (grid, product):
        both = content[:-4] + other[begin:-4] + b"7777"
        both = both[:8] + struct.pack(">Q", len(both)) + both[16:]
        header = test_grib2.read(both)
        assert held(header) == expected
        assert header.properties["grib:message-count"] == 1
    header = test_grib2.read(made([at_hour(6), *[at_hour(12)] * WALK_MESSAGES])[0])
    assert "grib:message-count" not in header.properties
    assert held(header) == expected


@pytest.mark.clause("OPR-24")
def test_an_accumulation_of_mrms_has_the_window_of_its_name() -> None:
    valid = test_grib2_gzip.VALID
    for product, begin in (
        ("MultiSensor_QPE_01H_Pass2_00.00", "2025-12-03T05:02"), ("RadarOnly_QPE_72H_00.00", "2025-11-30T06:02"),
        ("RadarOnly_QPE_15M_00.00", "2025-12-03T05:47"), ("CREF_1HR_MAX_00.50", "2025-12-03T05:02"),
        ("MESH_Max_1440min_00.50", "2025-12-02T06:02"), ("RotationTrackML60min_00.50", "2025-12-03T05:02"),
        ("NLDN_CG_005min_AvgDensity_00.00", "2025-12-03T05:57"), ("RadarOnly_QPE_Since12Z_00.00", "2025-12-02T12:00"),
        ("GaugeInflIndex_24H_Pass1_00.00", "2025-12-02T06:02"), ("H50_Above_-20C_00.50", None),
        ("PrecipRate_00.00", None), ("FLASH_QPE_ARI01H_00.00", None),
        ("LightningProbabilityNext30minGrid_scale_1", None), ("MergedAzShear_0-2kmAGL_00.50", None),
    ):  # fmt: skip
        key = f"CONUS/{product}/{valid:%Y%m%d}/MRMS_{product}_{valid:%Y%m%d-%H%M%S}.grib2.gz"
        match = match_of("mrms", key)
        header = test_grib2_gzip.read(test_grib2_gzip.SAMPLE, key=key, groups=match.groups)
        assert f"{header.start:%Y-%m-%dT%H:%M}" == (begin or "2025-12-03T06:02")
        assert header.end == header.datetime == valid == match.start == match.end
        assert header.properties["mrms:product"] + "_" + header.properties["mrms:level"] == product
        assert not any(name.startswith("forecast:") for name in header.properties)


def test_what_is_summed_since_an_hour_is_of_the_whole_day_at_that_hour() -> None:
    noon = datetime(2025, 12, 3, 12, tzinfo=UTC)
    _, content = make_mrms(valid=noon)
    header = test_grib2_gzip.read(content, groups={"since": "12"})
    assert (header.start, header.end) == (noon - timedelta(days=1), noon)
