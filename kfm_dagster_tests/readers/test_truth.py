"""`make truth`: real objects against independent readers, with the figures of each family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.readers.truth.comparison import (
    DEGREES,
    FAMILIES,
    SECONDS,
    Outcome,
    degrees,
    hold,
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


def test_every_path_of_the_reference_is_compared_or_no_object(shared_data: Path, reference: dict[str, Any]) -> None:
    found = list(real_objects(shared_data, reference))
    assert {real.family for real in found} == set(FAMILIES)
    assert len(found) >= 152
    explained = {path for path, entry in reference.items() if why_not_compared(path, entry)}
    assert not explained & {real.path for real in found}
    assert {path for path in reference if not any(real.path.startswith(path) for real in found)} == explained


@pytest.mark.clause("OPR-06", "OPR-14", "OPR-15", "OPR-16", "OPR-17", "OPR-24")
@pytest.mark.parametrize(
    ("families", "objects", "fields", "requests"),
    [
        # At least so many objects and fields of each, with at most so many requests for an object.
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
    outcomes = [hold(real) for real in real_objects(shared_data, reference, *families.split())]
    for family in families.split():
        figure(f"{family}: {figures_of([one for one in outcomes if one.real.family == family])}")
    assert len(outcomes) >= objects
    for outcome in outcomes:
        assert outcome.differing == [], outcome.real.path
        assert len(outcome.compared) >= (1 if outcome.refused else fields), outcome.real.path
        assert len(outcome.source.requests) <= requests, outcome.real.path


def figures_of(outcomes: list[Outcome]) -> str:
    """Return the equal fields of a family, the largest differences of its boxes and times, and its requests."""
    compared, differing = (sum(len(getattr(one, name)) for one in outcomes) for name in ("compared", "differing"))
    box, time = (max((one.largest(unit) or 0.0 for one in outcomes), default=0.0) for unit in (DEGREES, SECONDS))
    requests = max((len(one.source.requests) for one in outcomes), default=0)
    return (
        f"{len(outcomes)} objects, {sum(one.refused for one in outcomes)} refused, {compared - differing} of "
        f"{compared} fields equal, within {box:.4f} degrees and {time:.3f} s, at most {requests} requests"
    )


@pytest.mark.clause("OPR-06", "OPR-14")
def test_every_real_object_of_a_dataset_has_what_its_contract_and_its_key_say(
    shared_data: Path, reference: dict[str, Any]
) -> None:
    for real in real_objects(shared_data, reference):
        if (contract := real.contract) is None:
            continue
        found = real.read(BytesSource(real.content))
        assert set(contract.metadata_extract.required) <= found.properties.keys(), real.path
        short_row = {MetadataIssue.COMPLETENESS_UNCHECKED} if "USW00013967" in real.path else set()
        assert {code for code, _ in found.findings} <= {MetadataIssue.SIDECAR_MISSING, *short_row}, real.path
        for name in ("level", "member", "model", "product", "region", "resolution"):
            said = found.properties.get(f"{contract.id}:{name}")
            assert said is None or said == real.groups[name], real.path


def test_what_differs_is_named(shared_data: Path, reference: dict[str, Any]) -> None:
    [real] = real_objects(shared_data, reference, "oisst")
    expected = real.expected
    for changed, named in (
        (replace(real, expected={**expected, "sst": {**expected["sst"], "scale_factor": 0.1}}), "sst.scale_factor: 0."),
        (replace(real, expected={**expected, "time": "2022-09-13 13:00:00"}), "datetime: "),
        (replace(real, content=real.content[:-1]), "refused: "),
    ):
        assert any(named in text for text in hold(changed).differing), named
    for path, reason in (
        ("objects/somewhere/else", "no contract takes its bucket"),
        ("files/else", "files/ has no key, and its family has no comparison"),
        ("files/rtofs/wa_RTOFS_global.nc", "an extract in NetCDF-3; the bucket's objects are NetCDF-4"),
        ("objects/noaa-gfs-bdp-pds/else", "the contracts of its bucket have its key as FOREIGN"),
        # A contract takes it: it needs a comparison.
        (f"objects/noaa-hrrr-bdp-pds/{HRRR_KEY}", None),
    ):
        assert why_not_compared(path, {"family": "else"}) == reason
