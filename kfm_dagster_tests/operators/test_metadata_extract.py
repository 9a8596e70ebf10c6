"""metadata-extract: the behaviour for every format, with scripted readers."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata
from kfm_dagster.contracts.issues import IntegrityIssue, MetadataIssue, Severity
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract, MetadataRules
from kfm_dagster.operators.metadata_extract import OpenSidecar, unreadable
from kfm_dagster.readers.base import ByteSource, HeaderMetadata, ReadError, ReadRequest
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.storage.object_handle import ObjectReadError
from kfm_dagster_tests.factories import envelope, with_section
from kfm_dagster_tests.readers.reading import metadata_of

# Scripted readers have no native values; `test_cut_objects.py` tests `key_values`.
HRRR = with_section(ContractRegistry.load()["hrrr"], "metadata_extract", key_values={})
KEY = "hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
START = datetime(2025, 12, 3, tzinfo=UTC)
SQUARE = {"type": "Polygon", "coordinates": [[[-1, 0], [1, 0], [1, 1], [-1, 1], [-1, 0]]]}
PROPERTIES = {
    "forecast:reference_datetime": "2025-12-03T00:00:00Z",
    "forecast:horizon": "PT6H",
    "proj:wkt2": "GEOGCRS",
    "proj:shape": [2, 2],
}


def unit(status: CheckStatus | None = CheckStatus.OK) -> Envelope:
    integrity = None if status is None else Integrity(status=status)
    uri = f"s3://noaa-hrrr-bdp-pds/{KEY}"
    return envelope(dataset="hrrr", object_uri=uri, time_range_start=START, integrity=integrity)


def header(**changes: Any) -> HeaderMetadata:
    fields: dict[str, Any] = {
        "start": START,
        "end": START,
        "datetime": START,
        "geometry": SQUARE,
        "properties": PROPERTIES,
        "sidecars": (".idx",),
    }
    return HeaderMetadata(**(fields | changes))


def extract(
    reader: Callable[[ReadRequest], HeaderMetadata] | HeaderMetadata,
    *,
    of: Envelope | None = None,
    contract: DatasetContract = HRRR,
    source: ByteSource | None = None,
    open_sidecar: OpenSidecar = lambda _: None,
) -> Metadata:
    def scripted(request: ReadRequest) -> HeaderMetadata:
        return reader if isinstance(reader, HeaderMetadata) else reader(request)

    own = {"contract": contract, "grammar": KeyGrammarReader(contract), "readers": {"grib2": scripted}}
    return metadata_of(of or unit(), source or BytesSource(b"GRIB"), open_sidecar=open_sidecar, **own)


def codes(metadata: Metadata) -> list[str]:
    return [issue.code for issue in metadata.issues]


def with_sidecar(**changes: Any) -> DatasetContract:
    """Return the contract with a changed declaration of its sidecar."""
    sidecar = HRRR.storage.sidecars[0].model_copy(update=changes)
    return with_section(HRRR, "storage", sidecars=[sidecar])


class GoneSource(BytesSource):
    """An object that the store no longer returns."""

    def read(self, start: int, length: int) -> bytes:
        raise ObjectReadError(
            IntegrityIssue.STORAGE_UNAVAILABLE, f"s3://b/k at {start}, {length}", "the store is unavailable"
        )


def test_sound_headers_become_metadata() -> None:
    metadata = extract(header())
    assert (metadata.status, metadata.issues) == (CheckStatus.OK, ())
    assert extract(header(), of=unit(CheckStatus.SUSPECT)) == metadata
    assert metadata.geometry == SQUARE
    assert metadata.geometry is extract(header()).geometry, "a shared geometry is rounded once"
    assert metadata.bbox == (-1.0, 0.0, 1.0, 1.0)
    assert metadata.stac_properties == {**PROPERTIES, "datetime": "2025-12-03T00:00:00.000000Z"}
    assert metadata.sidecars == {"index": f"s3://noaa-hrrr-bdp-pds/{KEY}.idx"}
    assert metadata.checks_run == ("headers", "time_range", "required_properties", "sidecars", "geometry")
    # A range of times is written only if start and end differ.
    properties = extract(header(end=START + timedelta(minutes=5))).stac_properties
    assert properties["start_datetime"] == "2025-12-03T00:00:00.000000Z"
    assert properties["end_datetime"] == "2025-12-03T00:05:00.000000Z"


def test_a_reader_gets_key_groups_bytes_and_sidecars() -> None:
    arguments: list[Any] = []

    def reader(request: ReadRequest) -> HeaderMetadata:
        sidecar = request.sidecar(".idx")
        arguments.extend([request.key, request.groups["lead"], request.source.read(0, 9), request.source.size])
        arguments.append(None if sidecar is None else sidecar.read(0, sidecar.size))
        return header()

    extract(reader, open_sidecar=lambda suffix: BytesSource(suffix.encode()))
    assert arguments == [KEY, "06", b"GRIB", 4, b".idx"]


@pytest.mark.clause("OPR-05")
def test_unit_without_sound_integrity_is_not_read() -> None:
    for status in (CheckStatus.FAILED, CheckStatus.UNKNOWN, None):
        reader = Mock()
        assert extract(reader, of=unit(status)) == Metadata(status=CheckStatus.UNKNOWN)
        reader.assert_not_called()


@pytest.mark.clause("BEY-04")
@pytest.mark.parametrize("belongs", [True, False])
def test_an_index_written_long_before_its_object_is_suspect(belongs: bool) -> None:
    def reader(request: ReadRequest) -> HeaderMetadata:
        request.sidecar(".idx")
        # A sidecar that a reader does not list is of another object; its age does not matter.
        return header() if belongs else header(sidecars=())

    unit_with_time = unit().evolve(integrity=Integrity(status=CheckStatus.OK, last_modified=START))
    for contract, seconds, is_old in (
        (HRRR, -86_400, False),  # written a day later
        (HRRR, 600, False),  # an index may be uploaded up to an hour before its object
        (HRRR, 3600, False),
        (HRRR, 3601, True),
        (HRRR, None, False),  # unknown time
        (with_sidecar(may_precede_seconds=60), 60, False),
        (with_sidecar(may_precede_seconds=60), 61, True),
    ):
        sidecar: Any = BytesSource(b"index")
        sidecar.last_modified = None if seconds is None else START - timedelta(seconds=seconds)
        metadata = extract(
            reader, of=unit_with_time, contract=contract, open_sidecar=lambda _, sidecar=sidecar: sidecar
        )
        assert codes(metadata) == (["sidecar_outdated"] if is_old and belongs else []), seconds
        assert metadata.status is (CheckStatus.SUSPECT if metadata.issues else CheckStatus.OK)
        if seconds == 3601 and belongs:
            text = ".idx was written at 2025-12-02T22:59:59.000000Z, the object at 2025-12-03T00:00:00.000000Z"
            assert metadata.issues[0].message == f"{text}: at most 3600 s earlier"
            assert metadata.sidecars  # an outdated sidecar is still listed


@pytest.mark.clause("OPR-26")
def test_a_product_processed_after_it_was_stored_is_refused() -> None:
    properties = header().properties | {"processing:datetime": START.isoformat()}
    for stored, codes_expected in (
        (START, []),
        (START - timedelta(seconds=300), []),
        (START - timedelta(seconds=301), ["time_mismatch"]),
        (None, []),  # unknown time
    ):
        unit_with_time = unit().evolve(integrity=Integrity(status=CheckStatus.OK, last_modified=stored))
        assert codes(extract(header(properties=properties), of=unit_with_time)) == codes_expected


@pytest.mark.clause("OPR-07")
def test_any_error_of_a_reader_fails_only_its_unit() -> None:
    for error, code in (
        (ReadError(MetadataIssue.TRUNCATED_OBJECT, "short"), "truncated_object"),
        (MemoryError(), "resource_limit"),
        (RecursionError(), "unreadable_format"),
        (KeyError("secret"), "unreadable_format"),
        (OSError("libhdf5"), "unreadable_format"),
        (ZeroDivisionError(), "unreadable_format"),
    ):
        metadata = extract(Mock(side_effect=error))
        assert (codes(metadata), metadata.status, metadata.geometry) == ([code], CheckStatus.FAILED, None)
        assert "secret" not in metadata.issues[0].message


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_store_that_fails_during_reading_gives_a_transient_issue(*, wrapped: bool) -> None:
    def reader(request: ReadRequest) -> HeaderMetadata:
        try:
            request.source.read(0, 4)
        except ObjectReadError:
            if wrapped:  # as libhdf5 replaces an error of its file object
                raise OSError("file read failed") from None
            raise
        return header()

    every_code_suspect = dict.fromkeys(MetadataIssue, Severity.SUSPECT)
    lenient = with_section(HRRR, "metadata_extract", severities=every_code_suspect)
    metadata = extract(reader, source=GoneSource(b""), contract=lenient)
    assert (codes(metadata), metadata.status) == (["storage_unavailable"], CheckStatus.FAILED)
    sidecar = extract(
        lambda request: reader(
            ReadRequest(key="", groups={}, source=request.sidecar(".idx") or BytesSource(b""), sidecar=request.sidecar)
        ),
        open_sidecar=lambda _: GoneSource(b""),
    )
    assert codes(sidecar) == ["storage_unavailable"]


def test_required_properties_are_named_when_missing() -> None:
    metadata = extract(header(properties={**PROPERTIES, "proj:shape": None, "forecast:horizon": "PT6H"}))
    assert codes(metadata) == ["incomplete_product_metadata"]
    assert "proj:shape" in metadata.issues[0].message
    assert "forecast:horizon" not in metadata.issues[0].message


def test_findings_have_the_severity_that_the_contract_states() -> None:
    missing = (MetadataIssue.SIDECAR_MISSING, "no .idx")
    assert extract(header(findings=(missing,), sidecars=())).status is CheckStatus.SUSPECT
    mismatch = (MetadataIssue.TIME_MISMATCH, "an hour off")
    metadata = extract(header(findings=(missing, mismatch)))
    assert [issue.severity for issue in metadata.issues] == [Severity.SUSPECT, Severity.FAILED]
    assert metadata.status is CheckStatus.FAILED


def test_a_missing_required_sidecar_gives_one_issue() -> None:
    contract = with_sidecar(required=True)
    assert codes(extract(header(sidecars=()), contract=contract)) == ["sidecar_missing"]
    reported = header(sidecars=(), findings=((MetadataIssue.SIDECAR_MISSING, "no .idx"),))
    assert codes(extract(reported, contract=contract)) == ["sidecar_missing"]
    assert extract(header(sidecars=())).status is CheckStatus.OK


def test_invalid_times_are_an_issue() -> None:
    for changes in (
        {"end": START - timedelta(seconds=1)},
        {"start": datetime(2025, 12, 3), "end": datetime(2025, 12, 3)},  # noqa: DTZ001 - a naive time is the case
    ):
        metadata = extract(header(**changes))
        assert codes(metadata) == ["invalid_time_range"]
        assert "datetime" not in metadata.stac_properties


def polygon(*ring: tuple[Any, ...]) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": [list(ring)]}


def test_impossible_footprints_are_issues() -> None:
    for changes, code in (
        ({"geometry": None}, "missing_geolocation"),
        ({"geometry": {}}, "missing_geolocation"),
        ({"geometry": {"type": "Circle", "coordinates": [0, 0]}}, "invalid_geometry"),
        ({"geometry": {"type": "Polygon"}}, "invalid_geometry"),
        ({"geometry": {"type": "Polygon", "coordinates": []}}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (1, 0), (0, 0))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (1, 0), (1, 1), (0, 1))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (181, 0), (1, 1), (0, 0))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (float("nan"), 0), (1, 1), (0, 0))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (10**400, 0), (1, 1), (0, 0))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), (1, 0, 5), (1, 1), (0, 0))}, "invalid_geometry"),
        ({"geometry": polygon((0, 0), ("1", 0), (1, 1), (0, 0))}, "invalid_geometry"),
    ):
        metadata = extract(header(**changes))
        assert codes(metadata) == [code]
        assert (metadata.geometry, metadata.bbox) == (None, None)


def test_an_object_without_geometry_gets_the_area_that_its_contract_states() -> None:
    def stating(areas: dict[str, Any]) -> DatasetContract:
        rules = MetadataRules.model_validate({"reader": "grib2", "areas": areas})
        return HRRR.model_copy(update={"metadata_extract": rules})

    conus = {"region": {"alaska": [-170, 50, -130, 70], "con.*": [170, -10, 190, 10]}}
    metadata = extract(header(geometry={}), contract=stating(conus))
    assert (metadata.bbox, metadata.stac_properties["place:source"]) == ((170, -10, -170, 10), "contract")
    own = extract(header(), contract=stating(conus))
    assert own.geometry == SQUARE
    assert "place:source" not in own.stac_properties
    other = extract(header(geometry={}), contract=stating({"region": {"alaska": [-170, 50, -130, 70]}}))
    assert codes(other) == ["missing_geolocation"]
    for box in ([10, 0, 5, 1], [0, 5, 1, 5], [-181, 0, 1, 1], [0, 0, 361, 1], [0, -91, 1, 1], [180, 0, 190, 1]):
        with pytest.raises(ValueError, match="west, south, east, north"):
            stating({"region": {"conus": box}})


def test_footprint_across_the_antimeridian_is_valid() -> None:
    east = [[175, 0], [180, 0], [180, 1], [175, 0]]
    west = [[-180, 0], [-170, 0], [-180, 1], [-180, 0]]
    metadata = extract(header(geometry={"type": "MultiPolygon", "coordinates": [[east], [west]]}))
    assert (metadata.status, metadata.bbox) == (CheckStatus.OK, (175.0, 0.0, -170.0, 1.0))
    assert extract(header(geometry={"type": "Point", "coordinates": (1, 2)})).status is CheckStatus.OK


@given(st.lists(st.tuples(st.floats(-180, 180), st.floats(-90, 90)), min_size=3, max_size=8), st.integers(3, 9))
def test_rounding_keeps_rings_closed_and_is_idempotent(points: list[tuple[float, float]], decimals: int) -> None:
    contract = with_section(HRRR, "metadata_extract", coordinate_decimals=decimals)
    once = extract(header(geometry=polygon(*points, points[0])), contract=contract)
    (ring,) = once.geometry["coordinates"]
    assert ring[0] == ring[-1]
    for (x, y), (longitude, latitude) in zip(ring, points, strict=False):
        assert abs(x - longitude) <= 0.5 * 10**-decimals + 1e-12
        assert abs(y - latitude) <= 0.5 * 10**-decimals + 1e-12
        assert "-0.0" not in {str(x), str(y)}
    assert extract(header(geometry=once.geometry), contract=contract).geometry == once.geometry


def reading(request: ReadRequest) -> HeaderMetadata:
    request.source.read(0, 4)
    sidecar = request.sidecar(".idx")
    sidecar.read(0, 4)
    return header()


@pytest.mark.parametrize("sidecar", [BytesSource, GoneSource])
@pytest.mark.parametrize("source", [BytesSource, GoneSource])
def test_an_object_is_freed_after_reading_without_the_garbage_collector(
    source: type[BytesSource], sidecar: type[BytesSource]
) -> None:
    gc.collect()
    gc.disable()
    try:
        content, index = source(b"GRIB"), sidecar(b"1:0:")
        objects = [weakref.ref(content), weakref.ref(index)]
        extract(reading, source=content, open_sidecar=partial(lambda opened, _: opened, index))
        del content, index
        assert [reference() for reference in objects] == [None, None]
    finally:
        gc.enable()


@pytest.mark.clause("SEC-09")
def test_an_error_about_one_object_is_an_issue_of_its_unit() -> None:
    for error, code, words in (
        (
            ObjectReadError(IntegrityIssue.ACCESS_DENIED, "s3://b/k", "the store refuses access"),
            MetadataIssue.STORAGE_UNAVAILABLE,
            "refuses access",
        ),
        (OverflowError("a secret"), MetadataIssue.UNREADABLE_FORMAT, "OverflowError"),
    ):
        metadata = unreadable(HRRR, error)
        [issue] = metadata.issues
        assert (metadata.status, issue.code, words in issue.message) == (CheckStatus.FAILED, code, True)
        assert "secret" not in issue.message
