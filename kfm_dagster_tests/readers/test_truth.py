"""`make truth`: compare real objects with independent readers; print figures by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.reading import match_of
from kfm_dagster_tests.readers.truth.comparison import (
    DEGREES,
    FAMILIES,
    SECONDS,
    Outcome,
    compare,
    degrees,
    near,
    real_objects,
    same,
    seconds,
    why_not_compared,
)

HRRR_KEY = "hrrr.20231017/conus/hrrr.t09z.wrfsubhf01.grib2"
NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


def test_a_value_is_equal_within_its_tolerance() -> None:
    for compared, difference, is_equal in (
        (same("a", [1, 2], [1, 2]), None, True),
        (same("a", None, 1), None, False),
        (near("a", 1.0, 1.1, within=0.2), 0.1, True),
        (near("a", [1.0, 2.0], [1.1, 2.3], within=0.2), 0.3, False),
        (near("a", [1.0], [1.0, 2.0], within=9), float("inf"), False),
        (near("a", None, 1.0, within=9), float("inf"), False),
        (degrees("a", (-180, 10), (180, 10.005)), 0.005, True),
        (degrees("a", (359, 10), (-2, 10)), 1, False),
        (seconds("a", NOON, NOON + timedelta(seconds=1)), 1, True),
        (seconds("a", NOON, NOON - timedelta(seconds=1.1)), 1.1, False),
    ):
        assert compared.is_equal is is_equal
        if difference is not None:
            assert compared.difference == pytest.approx(difference)


def test_every_path_of_the_reference_is_compared_or_explained(shared_data: Path, reference: dict[str, Any]) -> None:
    objects = list(real_objects(shared_data, reference))
    assert {real.family for real in objects} == set(FAMILIES)
    assert len(objects) >= 152
    explained = {path for path, entry in reference.items() if why_not_compared(path, entry)}
    assert not explained & {real.path for real in objects}
    assert {path for path in reference if not any(real.path.startswith(path) for real in objects)} == explained


@pytest.mark.clause("OPR-06", "OPR-14", "OPR-15", "OPR-16", "OPR-17", "OPR-24")
@pytest.mark.parametrize(
    ("families", "objects", "fields", "requests"),
    [
        # The minimum number of objects, and for each object the minimum of fields and the maximum of requests.
        ("goes-abi-l1b goes-abi-l2", 16, 40, 6), ("goes-glm", 9, 40, 9), ("aqm gefs gfs nam nbm ndfd rap", 16, 1, 999),
        ("gfs-wave hrrr-subh rotated-ll rrfs rtma", 7, 38, 99), ("cfs gfs-sflux", 2, 42, 2),
        ("hrrr", 4, 1, 999), ("mrms", 5, 1, 2), ("oisst", 1, 60, 1), ("isd", 2, 20, 99),
        ("cdr-seaice nclimgrid-daily nclimgrid-monthly nwm nwm-retro-chrtout nwm-retro-forcing ofs", 18, 12, 5),
        ("ghcnd ghcnh", 6, 12, 1),
        ("nexrad-l2-chunks", 50, 12, 2), ("nexrad-l2", 10, 15, 99), ("nexrad-l3", 13, 4, 1),
    ],
)  # fmt: skip
def test_every_field_of_every_real_object_equals_the_independent_reader(
    families: str, objects: int, fields: int, requests: int, shared_data: Path, reference: dict[str, Any],
    figure: Callable[[str], None],
) -> None:  # fmt: skip
    outcomes = [compare(real) for real in real_objects(shared_data, reference, *families.split())]
    for family in families.split():
        figure(f"{family}: {figures_of([outcome for outcome in outcomes if outcome.real.family == family])}")
    assert len(outcomes) >= objects
    for outcome in outcomes:
        assert outcome.differing == [], outcome.real.path
        assert len(outcome.compared) >= (1 if outcome.refused else fields), outcome.real.path
        assert len(outcome.source.requests) <= requests, outcome.real.path


def figures_of(outcomes: list[Outcome]) -> str:
    """Return a family's equal fields, largest differences of boxes and times, and requests."""
    compared, differing = (sum(len(getattr(item, name)) for item in outcomes) for name in ("compared", "differing"))
    box, time = (max((item.largest(unit) or 0.0 for item in outcomes), default=0.0) for unit in (DEGREES, SECONDS))
    requests = max((len(item.source.requests) for item in outcomes), default=0)
    return (
        f"{len(outcomes)} objects, {sum(item.refused for item in outcomes)} refused, {compared - differing} of "
        f"{compared} fields equal, within {box:.4f} degrees and {time:.3f} s, at most {requests} requests"
    )


@pytest.mark.clause("OPR-06", "OPR-13", "OPR-14")
def test_real_objects_are_below_the_listed_prefixes_have_required_properties_and_agree_with_their_keys(
    shared_data: Path, reference: dict[str, Any]
) -> None:
    for real in real_objects(shared_data, reference):
        if (contract := real.contract) is None:
            continue
        match = match_of(contract.id, real.key)
        assert match.start <= match.end, real.path
        prefixes = contract.storage.day_prefixes(match.start.date())
        assert any(fnmatchcase(real.key, f"{prefix}*") for prefix in prefixes), real.path
        metadata = real.read(BytesSource(real.content))
        assert set(contract.metadata_extract.required) <= metadata.properties.keys(), real.path
        short_row = {MetadataIssue.COMPLETENESS_UNCHECKED} if "USW00013967" in real.path else set()
        assert {code for code, _ in metadata.findings} <= {MetadataIssue.SIDECAR_MISSING, *short_row}, real.path
        for name in ("level", "member", "model", "product", "region", "resolution"):
            value = metadata.properties.get(f"{contract.id}:{name}")
            assert value is None or value == real.groups[name], real.path


def test_a_comparison_names_the_fields_that_differ(shared_data: Path, reference: dict[str, Any]) -> None:
    [real] = real_objects(shared_data, reference, "oisst")
    expected = real.expected
    for changed, named in (
        (replace(real, expected={**expected, "sst": {**expected["sst"], "scale_factor": 0.1}}), "sst.scale_factor: 0."),
        (replace(real, expected={**expected, "time": "2022-09-13 13:00:00"}), "datetime: "),
        (replace(real, content=real.content[:-1]), "refused: "),
    ):
        assert any(named in text for text in compare(changed).differing), named
    for path, reason in (
        ("objects/somewhere/else", "its bucket is in no contract"),
        ("files/else", "files/ has no key, and its family has no comparison"),
        ("files/rtofs/wa_RTOFS_global.nc", "an extract in NetCDF-3; the bucket's objects are NetCDF-4"),
        ("objects/noaa-gfs-bdp-pds/else", "its key is FOREIGN by the contracts of its bucket"),
        # A contract's key without a comparison has no reason, so the test of all paths would fail.
        (f"objects/noaa-hrrr-bdp-pds/{HRRR_KEY}", None),
    ):
        assert why_not_compared(path, {"family": "else"}) == reason
