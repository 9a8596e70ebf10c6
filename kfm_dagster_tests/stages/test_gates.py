"""Gates over batches of samples: each fails for its faults and passes correct batches."""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.contracts.cadence import ProductCount
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Lane, StacStatus, WalId
from kfm_dagster.contracts.issues import Issue, Severity
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import Citation, Quantity
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster.readers.ranges import BytesSource
from kfm_dagster.stages.gates.dimensions import STANDARDS, closure_of, dim_report
from kfm_dagster.stages.gates.evaluate import evaluate, uncited, uniqueness
from kfm_dagster.stages.gates.subject import CatalogOwner, PartitionFacts, Subject, leaves
from kfm_dagster.stages.gates.units import (
    DIMENSION,
    DIMENSION_OF,
    SAME,
    UnitError,
    ask_dimension,
    ask_dimension_of,
    ask_same_unit,
    dimension,
    dimension_of,
    same_unit,
)
from kfm_dagster.stages.gates.verdict import Gate
from kfm_dagster_tests.factories import failed, identified, with_section
from kfm_dagster_tests.readers.reading import header_of
from kfm_dagster_tests.readers.truth.comparison import real_objects
from kfm_dagster_tests.stages.batches import (
    CONTRACTS,
    DAY,
    OPERATORS,
    REFERENCE,
    at,
    batch,
    rules,
    sample_objects,
    subject,
)

DATASETS = ("gfs", "goes-abi", "goes-glm", "hrrr", "mrms", "nbm", "nexrad-l2")
EVERY = (*DATASETS, "surface-obs")
"""Unlike DATASETS, `surface-obs` has no expected age and no expected objects per hour."""
CITED = (*EVERY, "ghcnd", "ghcnh", "nexrad-l2-chunks")
"""Also GHCN, which has few samples, and chunks, which share an Item per batch; so EVERY has neither."""
GATES = (Gate.G1, Gate.G2, Gate.G4, Gate.G5, Gate.G6, Gate.G8)


def rules_of(dataset: str, **changes: Any) -> DatasetContract:
    """Return a contract with other rules for metadata-extract."""
    return with_section(CONTRACTS[dataset], "metadata_extract", **changes)


OF_DEGREES = (
    'GEOGCRS["s",DATUM["s",ELLIPSOID["s",6371229,0]],CS[ellipsoidal,2],'
    'AXIS["lat",north],AXIS["lon",east],ANGLEUNIT["degree",0.0174532925199433]]'
)


def first_with(dataset: str, change: Callable[[Envelope], Envelope]) -> tuple[Envelope, ...]:
    """Return a sample batch with a changed first unit."""
    first, *others = batch(dataset)
    return (change(first), *others)


def section_with(section: str, **changes: Any) -> Callable[[Envelope], Envelope]:
    def change(unit: Envelope) -> Envelope:
        return unit.evolve(**{section: replace(getattr(unit, section), **changes)})

    return change


metadata_with, stac_with = (partial(section_with, section) for section in ("metadata", "stac"))


def properties_with(**changes: Any) -> Callable[[Envelope], Envelope]:
    """Change properties; `__` stands for the colon, None removes a property."""

    def change(unit: Envelope) -> Envelope:
        changed = {
            **unit.metadata.stac_properties,
            **{name.replace("__", ":"): value for name, value in changes.items()},
        }
        return metadata_with(stac_properties={name: value for name, value in changed.items() if value is not None})(
            unit
        )

    return change


def ringed(*positions: tuple[float, ...]) -> tuple[Envelope, ...]:
    """Return a sample batch of HRRR whose first unit has this ring as geometry."""
    polygon = {"type": "Polygon", "coordinates": [[list(position) for position in positions]]}
    return first_with("hrrr", metadata_with(geometry=polygon))


def site_with(**changes: Any) -> tuple[Envelope, ...]:
    """Return a sample batch of NEXRAD with other properties of the first unit."""
    return first_with("nexrad-l2", properties_with(**changes))


def full_day(dataset: str, day: date) -> list[ProductCount]:
    """Return the contract's expected number of objects for every hour."""
    coverage = CONTRACTS[dataset].coverage
    return [
        ProductCount(hour=hour, groups={**product.groups, "band": "02"}, objects=product.per_hour)
        for product in coverage.products
        for hour in product.hours or range(24)
        if product.since is None or product.since <= day
    ]


def counted(dataset: str, counts: Sequence[ProductCount], *, day: date = DAY, **changes: Any) -> Subject:
    """Return a sample batch with the counts of its day."""
    return subject(*batch(dataset), partition=PartitionFacts(day=day, counts=counts), **changes)


def owner(unit: Envelope, **changes: Any) -> CatalogOwner:
    values = {
        "item_id": unit.stac.item_id,
        "wal_id": unit.wal_id,
        "object_uri": unit.object_uri,
        "object_version": unit.object_version,
    }
    return CatalogOwner(**(values | changes))


def reissued(unit: Envelope) -> Envelope:
    """Return the same scan with another creation stamp: another object of the same Item."""
    stem, _ = unit.object_uri.rsplit("_c", 1)
    return identified(unit, object_uri=f"{stem}_c20260602359599.nc")


OTHER = WalId("0190b6a5-0000-8000-8000-000000000000")


@dataclass(frozen=True)
class Case:
    """A subject and the finding that its gate must report; None if it must pass."""

    name: str
    subject: Subject
    finding: str | None = None
    units: int = 0
    """The number of faulty units; 0 with a finding is a fault of the batch."""


@cache
def cases() -> dict[Gate, list[Case]]:
    """Return every case of every gate."""
    goes, nexrad = batch("goes-abi"), batch("nexrad-l2")
    old = nexrad[0].evolve(event_time=REFERENCE - timedelta(hours=1))
    early = [count for count in full_day("hrrr", DAY) if count.hour < 3]
    hole = [replace(count, objects=0) if count.hour == 3 else count for count in full_day("hrrr", DAY)]
    return {
        Gate.G1: [
            *(Case(f"{name} complete", subject(*batch(name))) for name in EVERY),
            *(
                Case(f"{stage} has added its sections", subject(*(at(stage, unit) for unit in nexrad), stage=stage))
                for stage in OPERATORS
            ),
            *(
                Case(
                    f"{later} lacks what {stage} had to add",
                    subject(*(at(stage, unit) for unit in nexrad), stage=later),
                    "section .* is missing",
                    len(nexrad),
                )
                for stage, later in pairwise(OPERATORS[:-1])
            ),
            Case(
                "a unit that failed need not be complete",
                subject(*first_with("nexrad-l2", lambda unit: failed(at("message_parse", unit)))),
            ),
            *(
                Case(f"unit at fault: {finding}", subject(*units), finding, 1)
                for finding, units in {
                    "property nexrad:site is missing": site_with(nexrad__site=None),
                    "property datetime is missing": site_with(datetime=None),
                    "geometry is none of": first_with("nexrad-l2", metadata_with(geometry=None)),
                    "not closed": ringed((0, 0), (1, 0), (1, 1), (0, 1)),
                    "fewer than four positions": ringed((0, 0), (1, 1), (0, 0)),
                    "no arrays of positions": ringed((0,), (1,), (1,), (0,)),
                    "not finite": ringed((0, 0), (1, 0), (math.nan, 1), (0, 0)),
                    "geometry is empty": first_with(
                        "hrrr", metadata_with(geometry={"type": "Polygon", "coordinates": []})
                    ),
                    "bbox is not four": first_with("goes-abi", metadata_with(bbox=(0.0, 0.0, 1.0))),
                    "bbox is not four finite": first_with("goes-abi", metadata_with(bbox=(0.0, 0.0, 1.0, None))),
                    "metadata is unknown": first_with("goes-abi", metadata_with(status=CheckStatus.UNKNOWN)),
                    "the Item is of collection": first_with("goes-abi", stac_with(collection_id="hrrr")),
                    "item_id is missing": first_with("goes-abi", stac_with(item_id=None)),
                    "activity_id is missing": first_with("goes-abi", section_with("provenance", activity_id=None)),
                    "dataset is": first_with("hrrr", lambda unit: unit.evolve(dataset="rap"))[::-1],
                    "ends before it starts": first_with(
                        "hrrr", lambda unit: unit.evolve(time_range_end=unit.time_range_start - timedelta(1))
                    ),
                    "names no object": first_with("hrrr", lambda unit: unit.evolve(object_uri="s3://bucket/")),
                    "wal_id is not a UUID": first_with("hrrr", lambda unit: unit.evolve(wal_id=WalId("one"))),
                }.items()
            ),
            *(
                Case(
                    f"accepted by the contract as suspect: {code}",
                    subject(*first_with("nexrad-l2", metadata_with(**changes, issues=(issue,)))),
                )
                for code, changes in (
                    ("missing_geolocation", {"geometry": None, "bbox": None}),
                    ("incomplete_product_metadata", {"stac_properties": {"datetime": "2026-03-01T00:00:00Z"}}),
                )
                for issue in [Issue(code=code, severity=Severity.SUSPECT, message="the contract accepts this")]
            ),
        ],
        Gate.G2: [
            *(Case(f"{name} cited", subject(*batch(name))) for name in EVERY),
            Case(
                "a contract without sources",
                subject(*goes, contract=rules_of("goes-abi", citations=[])),
                "no source is cited for bands.data_type",
            ),
            Case(
                "fields that no source names",
                subject(*site_with(a=1, b=2, c=3, d=4)),
                "no source is cited for a, b, c, d",
            ),
        ],
        Gate.G4: [
            *(Case(f"{name} closed", subject(*batch(name))) for name in EVERY),
            Case(
                "a contract without units",
                subject(*nexrad, contract=rules_of("nexrad-l2", units=[])),
                "nexrad:height-m: no unit is declared",
            ),
            Case(
                "a dataset with grids of metres and of degrees",
                subject(
                    *first_with("hrrr", properties_with(proj__wkt2=OF_DEGREES)),
                    contract=rules_of(
                        "hrrr",
                        units=[
                            *CONTRACTS["hrrr"].metadata_extract.units,
                            Quantity(fields=["proj:transform", "proj:bbox"], unit="degree"),
                        ],
                    ),
                ),
            ),
            *(
                Case(
                    f"declaration at fault: {finding}",
                    subject(*units, contract=rules_of(units[0].dataset, units=[Quantity(fields=[path], **unit)])),
                    f"{path}: {finding}",
                )
                for path, unit, finding, units in (
                    ("gsd", {"unit": "s"}, r"s has dimension \[time\], expected \[length\]", goes),
                    ("gsd", {"unit": "km"}, "is declared in km, the standard's unit is m", goes),
                    ("gsd", {"unit": "dBZ"}, "a unit or a dimension is unknown: dBZ", goes),
                    ("goes:mode", {"unit": "1"}, "neither STAC nor the contract declares", goes),
                    ("nexrad:height-m", {"unit": "degree", "dimension": "[length]"}, "degree has dimension", nexrad),
                )
            ),
            *(
                Case(f"value at fault: {finding}", subject(*units), finding, 1)
                for finding, units in {
                    "nexrad:latitude: 91 degree": site_with(nexrad__latitude=91),
                    "nexrad:longitude: nan": site_with(nexrad__longitude=math.nan),
                    "nexrad:height-m: inf": site_with(**{"nexrad:height-m": math.inf}),
                    "gsd: -2 m": first_with("goes-abi", properties_with(gsd=-2)),
                    "bands.eo:center_wavelength: -1 um": first_with(
                        "goes-abi", properties_with(bands=[{"name": "C01", "eo:center_wavelength": -1}])
                    ),
                    "percent-uncorrectable-l0-errors: 50": first_with(
                        "goes-abi", properties_with(**{"goes:percent-uncorrectable-l0-errors": 50})
                    ),
                    "bbox.latitude: 95 degree": first_with("hrrr", metadata_with(bbox=(0.0, 0.0, 1.0, 95.0))),
                    "geometry.longitude: 190 degree": ringed((0, 0), (190, 0), (1, 1), (0, 0)),
                    "proj:transform: is declared in m, the axes of proj:wkt2 are in degree": first_with(
                        "hrrr",
                        properties_with(proj__wkt2=OF_DEGREES),
                    ),
                    "proj:bbox: no proj:wkt2": first_with("hrrr", properties_with(proj__wkt2="PROJCRS")),
                }.items()
            ),
        ],
        Gate.G5: [
            *(Case(f"{name} fresh", subject(*batch(name))) for name in DATASETS),
            Case("an hour old", subject(old, *nexrad[1:]), "3600 s old", 1),
            Case(
                "an archive announces an object of a day long past",
                subject(old, *nexrad[1:], reference_time=REFERENCE + timedelta(days=2)),
            ),
            Case("a backfill is not stale", subject(old.evolve(lane=Lane.BULK), *nexrad[1:])),
            Case("fresh when the run claimed it", subject(old, reference_time=old.event_time + timedelta(seconds=900))),
        ],
        Gate.G6: [
            *(
                Case(f"{name} with all objects of its day", counted(name, full_day(name, DAY)))
                for name in DATASETS
                if CONTRACTS[name].coverage is not None
            ),
            Case(
                "an empty day",
                counted("nexrad-l2", []),
                "volumes of the network: 0 of 31200 objects, 24 of 24 hours short, the first 00 UTC",
            ),
            Case(
                "one product is missing and the others are there",
                counted(
                    "goes-abi",
                    [count for count in full_day("goes-abi", DAY) if count.groups["product"] != "ABI-L2-MCMIPC"],
                ),
                r"G18 ABI-L2-MCMIPC: 0 of 288|G19 ABI-L2-MCMIPC: 0 of 288",
            ),
            Case(
                "a surplus does not compensate for a missing hour",
                counted(
                    "hrrr",
                    [*hole, *(replace(count, objects=1000) for count in full_day("hrrr", DAY) if count.hour != 3)],
                    rules=rules(Gate.G6, min_coverage=0.99),
                ),
                "1 of .* hours short, the first 03 UTC",
            ),
            Case(
                "an hour that has not settled is not expected yet",
                counted("hrrr", early, reference_time=datetime.combine(DAY, time(5, 59), UTC)),
            ),
            Case(
                "an hour that has settled is expected",
                counted("hrrr", early, reference_time=datetime.combine(DAY, time(6), UTC)),
                "conus",
            ),
            Case(
                "a day before the satellite was in operation",
                counted("goes-abi", [], day=date(2022, 1, 1)),
            ),
        ],
        Gate.G8: [
            *(Case(f"{name} unique", subject(*batch(name), catalog=[*map(owner, batch(name))])) for name in EVERY),
            Case("a unit twice", subject(*nexrad, nexrad[0]), "has the unit 2 times", 1),
            Case(
                "one object version as two units",
                subject(*nexrad, stac_with(item_id="other")(nexrad[0].evolve(wal_id=OTHER))),
                "2 units of the batch have the same object version",
                2,
            ),
            Case(
                "two units of one Item",
                subject(*goes, reissued(goes[0])),
                "2 units of the batch have the same Item id",
                2,
            ),
            Case(
                "a re-issue that was superseded in its batch",
                subject(*goes, stac_with(write_status=StacStatus.NO_OP, superseded=True)(reissued(goes[0]))),
            ),
            Case(
                "a re-issue that failed", subject(*goes, stac_with(write_status=StacStatus.FAILED)(reissued(goes[0])))
            ),
            Case(
                "a re-issue replaced the Item in the catalog",
                subject(*goes, catalog=[owner(goes[0]), owner(reissued(goes[0]))]),
            ),
            Case(
                "the object was overwritten since",
                subject(*nexrad, catalog=[owner(nexrad[0], wal_id=OTHER, object_version="newer")]),
            ),
            Case(
                "the Item was that of another object",
                subject(*nexrad, catalog=[owner(nexrad[0], wal_id=OTHER, object_uri=nexrad[0].object_uri + ".gz")]),
                r"is or was of another object: s3://.*\.gz",
                1,
            ),
            Case(
                "the catalog has the object version as another unit",
                subject(*nexrad, catalog=[owner(nexrad[0], wal_id=OTHER)]),
                f"as unit {OTHER}",
                1,
            ),
        ],
    }


@pytest.mark.parametrize("gate", GATES)
def test_each_gate_reports_exactly_the_expected_faults(gate: Gate) -> None:
    assert {case.finding is None for case in cases()[gate]} == {True, False}
    for case in cases()[gate]:
        (verdict,) = evaluate(case.subject, gates=(gate,))
        result = (verdict.gate, verdict.passed, len(verdict.units), verdict.of_batch)
        of_batch = case.finding is not None and case.units == 0
        assert result == (gate, case.finding is None, case.units, of_batch), (case.name, verdict)
        assert len(verdict.observed) < 200
        assert all(len(finding.what) < 400 for finding in verdict.findings)
        if case.finding is not None:
            assert any(re.search(case.finding, reported.what) for reported in verdict.findings), (case.name, verdict)


def _share_of(gate: Gate) -> tuple[Subject, float]:
    """Return a subject with one fault, and the share of its values that is correct."""
    if gate is Gate.G6:
        counts = [count for count in full_day("nexrad-l2", DAY) if count.hour != 3]
        return counted("nexrad-l2", counts), 23 / 24
    change = properties_with(nexrad__new=1) if gate is Gate.G2 else properties_with(nexrad__latitude=91)
    faulty = subject(*first_with("nexrad-l2", change))
    (verdict,) = evaluate(faulty, gates=(gate,))
    correct, total = map(int, re.match(r"(\d+) of (\d+)", verdict.observed).groups())
    assert correct == total - 1
    return faulty, 1 - 1 / total if gate is Gate.G2 else correct / total


THRESHOLDS = {Gate.G2: "min_anchor_coverage", Gate.G4: "min_p_dim", Gate.G6: "min_coverage"}


@pytest.mark.clause("PCS-09")
@pytest.mark.parametrize("gate", THRESHOLDS)
def test_a_gate_passes_if_the_share_equals_its_threshold_and_fails_if_the_share_is_one_step_lower(gate: Gate) -> None:
    faulty, share = _share_of(gate)
    for least, passes in ((share, True), (math.nextafter(share, 1), False)):
        (verdict,) = evaluate(replace(faulty, rules=rules(gate, **{THRESHOLDS[gate]: least})), gates=(gate,))
        assert verdict.passed is passes


@pytest.mark.clause("PCS-09")
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_unit_is_fresh_at_the_maximum_age_and_stale_a_microsecond_later(dataset: str) -> None:
    budget = timedelta(seconds=CONTRACTS[dataset].freshness.budget_seconds)
    for age, units in ((budget, 0), (budget + timedelta(microseconds=1), 1)):
        (verdict,) = evaluate(
            subject(*first_with(dataset, lambda unit, age=age: unit.evolve(event_time=REFERENCE - age))),
            gates=(Gate.G5,),
        )
        assert len(verdict.units) == units


@pytest.mark.parametrize("name", DATASETS)
def test_the_order_of_units_changes_no_verdict(name: str) -> None:
    late = [unit.evolve(event_time=REFERENCE - timedelta(days=1)) for unit in batch(name)[2:]]
    units = [*first_with(name, properties_with(gsd=-1)), batch(name)[1], *late]
    verdicts = {
        evaluate(subject(*random.Random(seed).sample(units, len(units)), contract=CONTRACTS[name])) for seed in range(5)
    }
    assert len(verdicts) == 1
    assert not all(verdict.passed for verdict in next(iter(verdicts)))


def test_only_g8_applies_to_a_batch_whose_units_have_all_failed() -> None:
    verdicts = evaluate(subject(failed(at("message_parse", batch("nexrad-l2")[0])), stage="integrity_check"))
    assert [verdict.gate for verdict in verdicts] == list(GATES)
    assert {verdict.gate for verdict in verdicts if verdict.applies} == {Gate.G8}
    assert all(verdict.passed for verdict in verdicts)


# ------------------------------------------------------------------ G2: citations of the built-in contracts


def _paths(header: HeaderMetadata) -> set[str]:
    times = {"datetime", "start_datetime", "end_datetime", "geometry", "bbox"}
    return times | {path for path, _ in leaves(header.properties)} | {f"native.{name}" for name in header.native}


@pytest.mark.clause("PCS-13")
@pytest.mark.parametrize("name", CITED)
def test_contracts_cite_every_field_of_sample_objects(name: str) -> None:
    reader, samples = CONTRACTS[name].metadata_extract.reader, [*sample_objects(name, 60)]
    assert samples
    for sample in samples:
        header = header_of(reader, sample.content, key=sample.key, groups=sample.groups, index=sample.index)
        assert uncited(CONTRACTS[name], _paths(header)) == []


@pytest.mark.clause("PCS-13")
def test_contracts_cite_every_field_of_real_objects(shared_data: Path, reference: dict[str, Any]) -> None:
    cited_datasets = set()
    for real in real_objects(shared_data, reference):
        if real.contract is not None:
            assert uncited(real.contract, _paths(real.read(BytesSource(real.content)))) == []
            cited_datasets.add(real.contract.id)
    # NBM has no real object under its own key.
    assert cited_datasets >= set(CITED) - {"nbm"}


@pytest.mark.clause("PCS-13")
@pytest.mark.parametrize("name", CITED)
def test_citations_of_kfm_dagster_name_existing_modules(name: str) -> None:
    root = Path(__file__).resolve().parents[2]
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    own = [entry for entry in CONTRACTS[name].metadata_extract.citations if entry.volume == "kfm_dagster"]
    assert own
    for citation in own:
        assert version.startswith(citation.version + ".")
        assert (root / "kfm_dagster" / citation.anchor).is_file()


@pytest.mark.clause("PCS-13", "PCS-23")
@given(cited=st.integers(0, 40), bare=st.integers(0, 40))
def test_anchor_coverage_is_the_share_of_fields_with_a_source(cited: int, bare: int) -> None:
    names = [f"cited:{number}" for number in range(cited)] + [f"bare:{number}" for number in range(bare)]
    source = Citation(fields=["cited:*", "datetime", "bbox", "geometry"], volume="v", version="1", anchor="a", kind="S")
    unit = metadata_with(stac_properties=dict.fromkeys(["datetime", *names], "x"))(batch("nexrad-l2")[0])
    (verdict,) = evaluate(subject(unit, contract=rules_of("nexrad-l2", citations=[source])), gates=(Gate.G2,))
    assert verdict.passed is ((cited + 3) / (cited + 3 + bare) >= 0.9)
    assert verdict.units == frozenset()
    assert f"fields cited (0 P, {cited + 3} S, 0 M, 0 I)" in verdict.observed


# ------------------------------------------------------------------ G4: the report, and units of measure


@pytest.mark.clause("PCS-12")
def test_the_dimensional_report_marks_quantities_that_do_not_close() -> None:
    units = site_with(nexrad__latitude=91)
    report = dim_report(subject(*units))
    rows = {row["quantity"]: row for row in report["quantities"]}
    total = sum(row["values"] for row in rows.values())
    assert (report["ok"], report["p_dim"]) == (False, (total - 1) / total)
    assert rows["nexrad:latitude"] == {
        "quantity": "nexrad:latitude",
        "unit": "degree",
        "dimension_expected": "[angle]",
        "dimension_observed": "[angle]",
        "values": len(units),
        "closed": len(units) - 1,
        "ok": False,
        "fault": None,
    }
    assert rows["file:size"]["dimension_observed"] == "[information]"
    assert report == orjson.loads(orjson.dumps(report))
    # p_dim is 1 only if every quantity has a declared unit and closes.
    assert dim_report(subject(*batch("goes-abi")))["p_dim"] == 1.0
    undeclared = subject(*batch("goes-abi"), contract=rules_of("goes-abi", units=[]))
    report = dim_report(undeclared)
    assert not report["ok"]
    assert {row["fault"] for row in report["quantities"]} == {None, "no unit is declared"}
    (verdict,) = evaluate(undeclared, gates=(Gate.G4,))
    assert f"p_dim {report['p_dim']:.4f}" in verdict.observed


@pytest.mark.clause("PCS-12")
@pytest.mark.parametrize(
    ("fields", "low", "high"),
    [
        ("gsd bands.eo:center_wavelength bands.eo:full_width_half_max file:size", 0, math.inf),
        ("eo:cloud_cover eo:snow_cover", 0, 100),
        ("view:off_nadir view:incidence_angle", 0, 90),
        ("view:azimuth view:sun_azimuth", 0, 360),
        ("view:sun_elevation proj:centroid.lat", -90, 90),
        ("proj:centroid.lon", -180, 180),
        ("proj:shape sat:absolute_orbit sat:relative_orbit", 1, math.inf),
    ],
)
def test_a_value_is_checked_against_the_standard_s_range(fields: str, low: float, high: float) -> None:
    for field in fields.split():
        declared = Quantity(fields=[field], unit=STANDARDS[field].unit)
        closure = closure_of(rules_of("goes-abi", units=[declared]), field)
        assert (field, closure.fault, closure.minimum, closure.maximum) == (field, None, low, high)


def test_units_of_measure_have_the_expected_dimensions() -> None:
    assert [dimension_of(unit) for unit in ("m", "um", "degree", "byte", "percent", "1", "m/s", "hour")] == [
        "[length]",
        "[length]",
        "[angle]",
        "[information]",
        "1",
        "1",
        "[length] / [time]",
        "[time]",
    ]
    assert dimension("[length]/[time]") == dimension_of("km/hour")
    assert same_unit("metre", "m")
    assert not any(same_unit(*pair) for pair in (("km", "m"), ("K", "degC"), ("percent", "1"), ("m", "s")))
    for unknown in ("dBZ", "m +", "3 m", "[length]"):
        with pytest.raises(UnitError):
            dimension_of(unknown)
    with pytest.raises(UnitError):
        dimension("[weight]")


def test_the_table_of_units_of_measure_equals_pint_and_covers_contracts_and_standards() -> None:
    assert {unit: ask_dimension_of(unit) for unit in DIMENSION_OF} == DIMENSION_OF
    assert {text: ask_dimension(text) for text in DIMENSION} == DIMENSION
    assert all(ask_same_unit(*pair) for pair in SAME)
    declared = [quantity for contract in CONTRACTS for quantity in contract.metadata_extract.units]
    assert {quantity.unit for quantity in declared} | {standard.unit for standard in STANDARDS.values()} <= set(
        DIMENSION_OF
    )
    assert {quantity.dimension for quantity in declared if quantity.dimension} <= set(DIMENSION)


# ------------------------------------------------------------------ G8: exactly the colliding pairs


def test_a_verdict_on_collisions_states_whether_the_catalog_was_checked() -> None:
    for catalog, scope in ((None, "batch"), ([], "batch and catalog")):
        (verdict,) = evaluate(subject(*batch("nexrad-l2"), catalog=catalog), gates=(Gate.G8,))
        assert verdict.observed.endswith(f"units collide in {scope}")


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.none() | st.integers(0, 2), st.integers(0, 4)), max_size=8
    )
)
def test_exactly_the_colliding_pairs_are_found(rows: list[tuple[int, int, int | None, int]]) -> None:
    template = batch("nexrad-l2")[0]
    units = [
        stac_with(item_id=f"item-{item}")(
            template.evolve(
                wal_id=WalId(f"0190b6a5-0000-8000-8000-{unit:012}"),
                object_uri=f"s3://bucket/{uri}",
                object_version=None if version is None else str(version),
            )
        )
        for unit, uri, version, item in rows
    ]
    expected = set()
    for index, (unit, uri, version, item) in enumerate(rows):
        for other_index, (other, other_uri, other_version, other_item) in enumerate(rows):
            if index == other_index:
                continue
            version_shared = version is not None and (uri, version) == (other_uri, other_version)
            if unit == other or version_shared or item == other_item:
                expected.add(units[index].wal_id)
    assert uniqueness(replace(subject(), envelopes=units)).units == expected
