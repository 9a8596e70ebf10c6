"""`make truth`: the table of real objects, and that it says what differs."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import ReadError
from kfm_dagster.readers.isd import FIRST_BYTES
from kfm_dagster.readers.ranges import BLOCK_BYTES, BytesSource
from kfm_dagster_tests.readers.truth.__main__ import main
from kfm_dagster_tests.readers.truth.comparison import (
    FAMILIES,
    RealObject,
    degrees,
    hold,
    near,
    real_objects,
    same,
    seconds,
    why_not_compared,
)

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
    assert len(found) >= 135
    explained = {path for path, entry in reference.items() if why_not_compared(path, entry)}
    assert not explained & {real.path for real in found}
    assert [path for path in reference if not any(real.path.startswith(path) for real in found)] == sorted(explained)


@pytest.mark.clause("OPR-06", "OPR-14", "OPR-15", "OPR-16", "OPR-17", "OPR-24")
@pytest.mark.parametrize(
    ("families", "objects", "fields", "requests"),
    [
        # At least so many objects and fields of each, with at most so many requests for an object.
        ("goes-abi-l1b goes-abi-l2", 16, 40, 6), ("goes-glm", 9, 40, 9), ("aqm gefs gfs nam nbm ndfd rap", 11, 1, 999),
        ("hrrr", 4, 1, 999), ("mrms", 5, 1, 2), ("oisst", 1, 60, 1), ("cdr-seaice nwm", 2, 1, 5), ("isd", 2, 20, 99),
        ("nexrad-l2-chunks", 50, 12, 2), ("nexrad-l2", 10, 15, 99), ("nexrad-l3", 13, 4, 1),
    ],
)  # fmt: skip
def test_every_field_of_every_real_object_equals_the_independent_reader(
    families: str, objects: int, fields: int, requests: int, shared_data: Path, reference: dict[str, Any]
) -> None:
    outcomes = [hold(real) for real in real_objects(shared_data, reference, *families.split())]
    assert len(outcomes) >= objects
    for outcome in outcomes:
        assert outcome.differing == [], outcome.real.path
        assert len(outcome.compared) >= (1 if outcome.refused else fields), outcome.real.path
        assert len(outcome.source.requests) <= requests, outcome.real.path


@pytest.mark.clause("OPR-06", "OPR-14")
def test_every_real_object_of_a_dataset_has_what_its_contract_and_its_key_say(
    shared_data: Path, reference: dict[str, Any]
) -> None:
    for real in real_objects(shared_data, reference):
        if (contract := real.contract) is None:
            continue
        found = real.read(BytesSource(real.content))
        assert set(contract.metadata_extract.required) <= found.properties.keys(), real.path
        assert {code for code, _ in found.findings} <= {MetadataIssue.SIDECAR_MISSING}, real.path
        for name in ("level", "member", "model", "product", "region", "resolution"):
            said = found.properties.get(f"{contract.id}:{name}")
            assert said is None or said == real.groups[name], real.path


@pytest.mark.clause("OPR-07", "OPR-20", "BEY-04")
@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"cdr-seaice", "nwm", "rap"}))
def test_a_real_object_that_is_cut_is_never_ok(family: str, shared_data: Path, reference: dict[str, Any]) -> None:
    def found_in(real: RealObject, content: bytes) -> list[MetadataIssue]:
        try:
            return [code for code, _ in real.read(BytesSource(content)).findings]
        except ReadError as refusal:
            return [refusal.code]

    for real in real_objects(shared_data, reference, family):
        content, size = real.content, len(real.content)
        # Tenths, what a first request and a block end with, and checksum and length of gzip.
        places = {size * tenth // 10 for tenth in range(10)} | {size - away for away in (1, 4, 8)}
        places |= {place for at in (8, 48, 96, 4096, BLOCK_BYTES, FIRST_BYTES) for place in (at, at + 1)}
        for place in sorted(place for place in places if place < size):
            assert found_in(real, content[:place]), (real.path, place)


@pytest.fixture
def folder(shared_data: Path, reference: dict[str, Any], tmp_path: Path) -> Path:
    """A data folder of two small objects, one of which is to be refused, and one of a family that nobody compares."""
    paths = [path for path, entry in reference.items() if entry["family"] in {"oisst", "cdr-seaice", "messages"}]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shared_data / path, tmp_path / path)
    (tmp_path / "reference.json").write_text(json.dumps({path: reference[path] for path in paths}))
    return tmp_path


def test_the_table_has_a_row_for_each_object_and_ends_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(folder) == 0
    out = capsys.readouterr().out
    row, family = (line.split() for line in out.splitlines() if "oisst" in line)
    equal, compared = row[2].split("/")
    assert row[1:2] + row[3:] == ["netcdf-grid", "0.0000", "0.000", "1", "65,536"]
    assert equal == compared
    assert family == ["oisst", "netcdf-grid", "1", "0", compared, equal, "0.0000", "0.000"]
    [refused] = [line.split() for line in out.splitlines() if line.split()[:1] == ["cdr-seaice"]]
    assert refused[2:] == ["1", "1", "1", "1"]
    assert "2 objects, " in out
    assert "not compared: 7 what SNS and SQS send" in out


@pytest.mark.parametrize("what", ["attribute", "time", "refusal", "no object", "unknown"])
def test_what_differs_is_named_and_the_exit_code_is_1(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = folder / "reference.json"
    reference = json.loads(file.read_text())
    path = next(path for path, entry in reference.items() if entry["family"] == "oisst")
    answers = reference[path]["reference"]
    if what == "attribute":
        answers["sst"]["scale_factor"] = 0.1
    elif what == "time":
        answers["time"] = "2022-09-13 13:00:00"
    elif what == "refusal":
        (folder / path).write_bytes((folder / path).read_bytes()[:-1])
    elif what == "unknown":
        reference["objects/somewhere/else"] = {"family": "else", "reference": {}}
    else:
        reference = {}
    file.write_text(json.dumps(reference))
    assert main(folder) == 1
    out = capsys.readouterr().out
    said = {
        "attribute": "sst.scale_factor: 0.00",
        "time": "datetime: ",
        "refusal": "refused: ",
        "no object": "0 objects",
        "unknown": "objects/somewhere/else: not compared, and nobody says why",
    }
    assert said[what] in out
