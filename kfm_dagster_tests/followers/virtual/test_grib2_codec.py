"""What stores refer to of GRIB2, gribberish decodes as ecCodes does; what it gets wrong, they refuse."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import gribberish
import numpy as np
import pytest

from kfm_dagster.demo.samples.grib2_messages import at_hour
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.followers.virtual.grib2_step import read_grib2_step
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.followers.virtual.forecasts import (
    COLUMNS,
    PNG,
    ROWS,
    RUN,
    SIMPLE,
    SPATIAL,
    Values,
    decoded,
    field_of,
    in_groups,
    messages_of,
    values_of,
)

NAME = "TMP 2 m above ground 3 hour fcst"
CALLED = "TMP_2_m_above_ground"


def gribberish_has(made: bytes) -> Values | None:
    """What the codec of readers makes of a message; None where it fails, with whatever Rust raises."""
    try:
        return np.asarray(gribberish.parse_grib_array(made, 0)).reshape(decoded(made).shape)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return None


def same(found: Values | None, expected: Values) -> bool:
    """The values, but for the last bit of a 64-bit float: powers of ten are computed in another order."""
    return found is not None and np.allclose(found, expected, rtol=1e-14, atol=0.0, equal_nan=True)


def refused(made: bytes) -> bool:
    try:
        found = read_grib2_step(BytesSource(made), {NAME: (0, len(made))}, fields=["TMP .*"], along="valid_time")
    except ReadError:
        return True
    assert [*found.images] == [CALLED]
    return False


def made_as(packing: str, *, missing: bool = False) -> bytes:
    _, _, made = field_of("TMP", "2 m above ground", at_hour(3), values_of([1], missing=missing), packing=packing)
    return made


def test_what_is_referred_to_is_decoded_as_eccodes_does() -> None:
    for case in product((SPATIAL, SIMPLE, "grid_jpeg"), (False, True)):
        packing, missing = case
        made = made_as(packing, missing=missing)
        assert not refused(made), case
        expected = decoded(made)
        assert np.isnan(expected).any() == missing, case
        assert same(gribberish_has(made), expected), case
        # Rows stay as the message has them, south first.
        assert not np.array_equal(expected, expected[::-1], equal_nan=True), case


def constant() -> bytes:
    return field_of("TMP", "2 m above ground", at_hour(3), np.full((ROWS, COLUMNS), 280.0))[2]


def test_what_the_codec_gets_wrong_is_refused() -> None:
    for what, make in {
        "constant": constant,
        "missing among packed": lambda: in_groups(constant(), missing=1),
        "one width": lambda: in_groups(constant(), width_bits=0),
        "one length": lambda: in_groups(constant(), length_bits=0),
        "complex": lambda: made_as("grid_complex"),
        "png": lambda: made_as(PNG),
    }.items():
        made = make()
        assert refused(made), what
        expected = decoded(made)
        assert np.isfinite(expected).any(), what
        # A release that gets one right ends its refusal.
        assert not same(gribberish_has(made), expected), what


def test_several_groups_are_what_the_codec_knows() -> None:
    made = in_groups(constant())
    assert not refused(made)
    assert same(gribberish_has(made), decoded(made))


def test_the_demos_constant_fields_are_refused_but_zero() -> None:
    _, content, _ = make_hrrr(run=RUN, lead=3)
    for made, (name, zero) in zip(
        messages_of(content),
        {NAME: False, "GUST surface 3 hour fcst": False, "APCP surface 0-3 hour acc fcst": True}.items(),
        strict=True,
    ):
        assert same(gribberish_has(made), decoded(made)) is zero
        layers = {name: (0, len(made))}
        if zero:
            assert [*read_grib2_step(BytesSource(made), layers, fields=[".*"], along="valid_time").images] == [
                "APCP_surface_acc"
            ]
        else:
            with pytest.raises(ReadError, match="constant"):
                read_grib2_step(BytesSource(made), layers, fields=[".*"], along="valid_time")


REAL = {
    "hrrr.20201214/conus/hrrr.t00z.wrfsfcf12.grib2": [
        ("APCP surface 0-12 hour acc fcst", "APCP_surface_acc"),
        ("APCP surface 11-12 hour acc fcst", "APCP_surface_acc_1h"),
    ],
    "hrrr.20230722/conus/hrrr.t06z.wrfsfcf01.grib2": [("TMP surface 1 hour fcst", "TMP_surface")],
    "hrrr.20251203/conus/hrrr.t00z.wrfsfcf00.grib2": [("HPBL surface anl", "HPBL_surface")],
    "hrrr.20260301/conus/hrrr.t00z.wrfprsf00.grib2": [("MASSDEN 8 m above ground anl", "MASSDEN_8_m_above_ground")],
}


@pytest.mark.parametrize("path", REAL)
def test_real_messages_are_decoded_as_eccodes_does(shared_data: Path, path: str) -> None:
    content = (shared_data / "objects" / "noaa-hrrr-bdp-pds" / path).read_bytes()
    messages = messages_of(content)
    layers = {name: (content.index(made), len(made)) for (name, _), made in zip(REAL[path], messages, strict=True)}
    found = read_grib2_step(BytesSource(content), layers, fields=[".*"], along="valid_time")
    assert not found.refused
    assert [*found.images] == [called for _, called in REAL[path]]
    for (chunk,), made in zip(found.images.values(), messages, strict=True):
        assert content[chunk.offset : chunk.offset + chunk.length] == made
        assert same(gribberish_has(made), decoded(made))
