"""Truncated objects, with or without a sidecar, and objects under other keys are never `ok`."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kfm_dagster.contracts.envelope import CheckStatus, Integrity, Metadata
from kfm_dagster.contracts.quality import Expected, ValueRange, contradictions
from kfm_dagster.demo.samples import cfs, gefs, gfs, hrrr, mrms, nbm, ndfd
from kfm_dagster.readers.base import ByteSource
from kfm_dagster.readers.grib2 import WALK_MESSAGES
from kfm_dagster.readers.grib2_properties import MRMS, parameters
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster_tests.fuzz.specimens import Specimen
from kfm_dagster_tests.readers.reading import CONTRACTS as REGISTRY
from kfm_dagster_tests.readers.reading import metadata_of, unit_of
from kfm_dagster_tests.readers.truth.comparison import real_objects

RUN = datetime(2025, 12, 3, 6, tzinfo=UTC)
HRRR_KEY, HRRR, HRRR_INDEX = hrrr.make_hrrr(run=RUN, lead=7)
MESSAGE = HRRR[:188]
GIB = 1 << 30


class Spread:
    """An object of any size: pieces at offsets, and zeros between them."""

    def __init__(self, size: int, pieces: Mapping[int, bytes]) -> None:
        self.size = size
        self.requests = 0
        self._pieces = sorted(pieces.items())

    def read(self, start: int, length: int) -> bytes:
        self.requests += 1
        content = bytearray(max(0, min(length, self.size - start)))
        first = max(0, bisect.bisect(self._pieces, start, key=lambda piece: piece[0]) - 1)
        for at, piece in self._pieces[first:]:
            if at >= start + len(content):
                break
            low, high = max(at, start), min(at + len(piece), start + len(content))
            if low < high:
                content[low - start : high - start] = piece[low - at : high - at]
        return bytes(content)


def extract(dataset: str, key: str, source: ByteSource, index: bytes | None = None, **changes: Any) -> Metadata:
    """Return the result of metadata-extract for an object with these bytes and sound integrity."""
    unit = unit_of(dataset, key, integrity=Integrity(status=CheckStatus.OK))
    return metadata_of(unit, source, index=index, contract=REGISTRY[dataset].model_copy(update=changes))


def codes(metadata: Metadata) -> set[str]:
    return {issue.code for issue in metadata.issues}


def spread(lengths: list[int], *, cut: int = 0) -> Spread:
    """Return a GRIB2 object of messages with these lengths, without its last `cut` bytes."""
    pieces, at = {}, 0
    for length in lengths:
        pieces[at] = MESSAGE[:8] + struct.pack(">Q", length) + MESSAGE[16:-4]
        pieces[at + length - 4] = b"7777"
        at += length
    return Spread(at - cut, pieces)


@pytest.mark.clause("OPR-20", "BEY-04")
def test_messages_of_any_length_are_counted() -> None:
    lengths = [9_000_000, 3 * GIB, GIB, 2 * GIB, 3 * GIB]
    whole = spread(lengths)
    metadata = extract("hrrr", HRRR_KEY, whole)
    assert codes(metadata) == {"sidecar_missing"}
    assert metadata.stac_properties["grib:message-count"] == 5
    assert whole.requests <= 2 + len(lengths)
    for cut in (1, 3, 4, 1000, GIB, 3 * GIB - 100, 3 * GIB, 3 * GIB + 1, 8 * GIB):
        metadata = extract("hrrr", HRRR_KEY, spread(lengths, cut=cut))
        if cut == 3 * GIB:
            assert (metadata.status, codes(metadata)) == (CheckStatus.SUSPECT, {"sidecar_missing"})
        else:
            assert (metadata.status, codes(metadata)) == (CheckStatus.FAILED, {"truncated_object"})


@pytest.mark.clause("OPR-20", "BEY-04")
def test_an_object_with_more_messages_than_the_reader_counts_is_at_best_suspect() -> None:
    for cut, expected in (
        (0, {"sidecar_missing", "completeness_unchecked"}),
        (5_000, {"sidecar_missing", "completeness_unchecked"}),
        (1, {"truncated_object"}),
        (4_999, {"sidecar_missing", "completeness_unchecked"}),
        (4_991, {"truncated_object"}),
        (2_500, {"truncated_object"}),
        (5_001, {"truncated_object"}),
    ):
        source = spread([5_000] * (WALK_MESSAGES + 2), cut=cut)
        metadata = extract("hrrr", HRRR_KEY, source)
        assert codes(metadata) == expected
        assert "grib:message-count" not in metadata.stac_properties
        assert metadata.status in {CheckStatus.SUSPECT, CheckStatus.FAILED}
        assert source.requests <= WALK_MESSAGES + 3
    # The reader counts up to WALK_MESSAGES messages.
    metadata = extract("hrrr", HRRR_KEY, spread([5_000] * WALK_MESSAGES))
    assert codes(metadata) == {"sidecar_missing"}
    assert metadata.stac_properties["grib:message-count"] == WALK_MESSAGES


@pytest.mark.clause("OPR-20", "BEY-04")
def test_an_object_without_messages_of_its_index_fails_and_an_object_without_an_index_is_suspect() -> None:
    metadata = extract("hrrr", HRRR_KEY, BytesSource(HRRR[:376]), HRRR_INDEX.encode())
    assert (metadata.status, codes(metadata)) == (CheckStatus.FAILED, {"sidecar_mismatch"})
    storage = REGISTRY["hrrr"].storage.model_copy(update={"sidecars": []})
    rules = REGISTRY["hrrr"].metadata_extract.model_copy(update={"severities": {}})
    metadata = extract("hrrr", HRRR_KEY, BytesSource(HRRR), storage=storage, metadata_extract=rules)
    assert (metadata.status, codes(metadata)) == (CheckStatus.SUSPECT, {"completeness_unchecked"})


def sample_of(dataset: str, key: str, content: bytes, index: str | None = None) -> Specimen:
    return Specimen(dataset=dataset, key=key, content=content, index=index.encode() if index else None)


def samples_of_models() -> Iterator[Specimen]:
    """Yield samples of one run and lead that differ in member, grid, parameter or model."""
    for member in ("c00", "p05", "p15", "avg", "spr"):
        for product in ("pgrb2a", "pgrb2s"):
            yield sample_of("gefs", *gefs.make_gefs(run=RUN, lead=6, member=member, product=product))
    for region in ("conus", "alaska"):
        yield sample_of("hrrr", *hrrr.make_hrrr(run=RUN, lead=6, region=region))
    for region in ("co", "hi"):
        yield sample_of("nbm", *nbm.make_nbm(run=RUN, lead=6, region=region))
    for resolution in ("0p25", "0p50", "1p00"):
        yield sample_of("gfs", *gfs.make_gfs(run=RUN, lead=6, resolution=resolution))
    for region in ("atlocn", "global"):
        yield sample_of("gfs", *gfs.make_gfs_wave(run=RUN, lead=6, region=region))
    for region in ("CONUS", "ALASKA"):
        for product in ("PrecipRate_00.00", "MergedRhoHV_19.00"):
            yield sample_of("mrms", *mrms.make_mrms(valid=RUN, region=region, product=product))


def gaussian_and_headed() -> Iterator[Specimen]:
    """Yield samples on Gaussian grids (two of them differ in lead) and of elements with WMO headings."""
    yield sample_of("gfs", *gfs.make_gfs(run=RUN, lead=6, product="sfluxgrb", resolution=""))
    for lead in (6, 12):
        yield sample_of("cfs", *cfs.make_cfs(run=RUN, lead=lead))
    for element in ("maxt", "minrh", "waveh"):
        yield sample_of("ndfd", *ndfd.make_ndfd(issued=RUN, element=element))


def renamed() -> Iterator[tuple[str, str]]:
    """Yield keys of regions without samples."""
    for dataset, key, region, others in (
        ("nbm", nbm.make_nbm(run=RUN, lead=6)[0], ".co.", (".ak.", ".gu.", ".oc.", ".pr.")),
        ("gfs", gfs.make_gfs_wave(run=RUN, lead=6)[0], ".atlocn.", (".wcoast.", ".epacif.")),
        ("mrms", mrms.make_mrms(valid=RUN)[0], "CONUS", ("CARIB", "GUAM", "HAWAII")),
    ):
        yield from ((dataset, key.replace(region, other)) for other in others)
    yield "gfs", gfs.make_gfs_wave(run=RUN, lead=6, region="global")[0].replace(".global.", ".gsouth.")


@pytest.mark.clause("OPR-26")
def test_a_sample_agrees_only_with_its_own_key() -> None:
    samples = [*samples_of_models(), *gaussian_and_headed()]
    keys = [(sample.dataset, sample.key) for sample in samples]
    for sample in samples:
        source = BytesSource(sample.content)
        assert extract(sample.dataset, sample.key, source, sample.index).issues == ()
        for dataset, key in {*keys, *renamed()} - {(sample.dataset, sample.key)}:
            if (dataset == "mrms") is (sample.dataset == "mrms"):  # only MRMS is gzipped
                metadata = extract(dataset, key, source, sample.index)
                result = (metadata.status, "key_mismatch" in codes(metadata))
                assert result == (CheckStatus.FAILED, True), (sample.key, key)


@pytest.mark.clause("OPR-26")
def test_a_real_object_agrees_only_with_keys_of_its_grid_and_parameter(
    shared_data: Path, reference: dict[str, Any]
) -> None:
    objects = []
    for real in real_objects(shared_data, reference):
        if (contract := real.contract) is not None and contract.metadata_extract.key_values:
            names = ("region", "resolution", {"mrms": "name", "ndfd": "product"}.get(contract.id, ""))
            objects.append((contract, real.key, real.content, (contract.id, *map(real.groups.get, names))))
    assert len(objects) >= 10
    for contract, own, content, product in objects:
        for other, key, _, another in objects:
            if contract.metadata_extract.reader == other.metadata_extract.reader:
                metadata = extract(other.id, key, BytesSource(content))
                assert ("key_mismatch" in codes(metadata)) is (product != another), (own, key)


@pytest.mark.clause("OPR-26")
def test_an_index_of_another_member_contradicts_the_key() -> None:
    key, content, index = gefs.make_gefs(run=RUN, lead=6, member="p05")
    lines = index.splitlines(keepends=True)
    lines[-1] = lines[-1].replace("ENS=+5", "ENS=+6")
    assert codes(extract("gefs", key, BytesSource(content), "".join(lines).encode())) == {"key_mismatch"}


def test_a_value_is_compared_by_the_first_pattern_that_the_group_of_the_key_matches() -> None:
    by_text: dict[str, Expected] = {
        r"p0?(\d+)": r"\1",
        "c00": [0, 1],
        "avg|p.*": None,
        "box": ValueRange(minimum=1, maximum=2.5),
    }
    for text, value, agrees in (
        ("p05", 5, True), ("p05", 6, False), ("p15", 15, True), ("p05", None, False),
        ("c00", 0, True), ("c00", 1, True), ("c00", 2, False),
        ("avg", None, True), ("avg", 0, False),
        ("box", 1, True), ("box", 2.5, True), ("box", 2.6, False), ("box", "2", False), ("box", None, False),
        ("spr", "anything", True), (None, "anything", True),
    ):  # fmt: skip
        groups = {} if text is None else {"member": text}
        mismatches = contradictions({"native.x": {"member": by_text}}, groups, lambda _, value=value: [value])
        assert (not [*mismatches]) is agrees, (text, value)


@pytest.mark.clause("OPR-26")
def test_products_of_mrms_have_the_codes_of_the_table_of_parameters() -> None:
    codes_of = {entry.abbreviation: codes for codes, entry in parameters().items() if codes[0] == MRMS}
    declared = REGISTRY["mrms"].metadata_extract.key_values["native.parameter"]["product"]
    assert len(declared.keys() & codes_of) > 100
    for product, value in declared.items():
        allowed = value if isinstance(value, list) else [value]
        assert product not in codes_of or ".".join(map(str, codes_of[product])) in allowed
