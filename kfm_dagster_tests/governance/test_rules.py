"""Governance rules: decisions on units, and the remaining content of generalised headers."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Metadata
from kfm_dagster.contracts.issues import GovernanceIssue, Issue, Severity
from kfm_dagster.contracts.loader import parse_contract
from kfm_dagster.contracts.stewardship import Governance, Masking
from kfm_dagster.errors import ContractError
from kfm_dagster.governance.masking import TIMES, WITHHELD, generalised, outline
from kfm_dagster.governance.rules import RuleId, Rules
from kfm_dagster.ledger.policy import NEVER_REPLAYED
from kfm_dagster.operators.metadata_extract import footprint
from kfm_dagster_tests.contracts.test_contracts import HRRR, changed
from kfm_dagster_tests.factories import START, envelope, failed, finished

pytestmark = pytest.mark.clause("SEC-03")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MASKING = {
    "method": "h3",
    "resolution": 4,
    "properties": ["platform"],
    "requested_by": "steward",
    "reason": "sites are sacred",
    "change_ref": "CARE-1",
}
CONSENT = {"authority": "a council", "reference": "MOU-7"}
SHIELDED = {"sensitivity": "sensitive", "access": "restricted", "masking": MASKING}


def governance(**declared: Any) -> Governance:
    return Governance.model_validate({"license": "CC-BY-4.0", **declared})


def read(unit: Envelope, **properties: Any) -> Envelope:
    """Return the unit after metadata-extract."""
    done = finished(unit).evolve(stac=None, provenance=None)
    properties_read = {**done.metadata.stac_properties, **properties}
    return done.evolve(metadata=dataclasses.replace(done.metadata, stac_properties=properties_read))


UNIT = read(envelope())
"""A unit observed at START by its key and header."""
LATER = read(envelope(), end_datetime="2025-12-05T00:06:24Z")
NOWHERE = UNIT.evolve(metadata=Metadata(status=CheckStatus.SUSPECT, stac_properties={"datetime": "x"}))
ENDLESS = read(envelope(), end_datetime="9999-12-31T23:59:59Z")
UNTIL_NOON, A_DAY = {"embargo": {"until": NOON}}, {"embargo": {"days_after_observation": 1}}
CONSENTED = {"indigenous_data_flag": True, "consent": CONSENT}
CONSENTED_UNTIL_NOON = {"indigenous_data_flag": True, "consent": CONSENT | {"valid_until": NOON}}

RULINGS: dict[str, tuple[dict[str, Any], Envelope, datetime, RuleId | None]] = {
    "nothing declared": ({}, UNIT, NOON, None),
    "restricted, and shown": ({"sensitivity": "restricted", "access": "restricted"}, UNIT, NOON, None),
    "closed": ({"access": "closed"}, UNIT, NOON, RuleId.ACCESS),
    "closed and sensitive": ({"access": "closed", "sensitivity": "sensitive"}, UNIT, NOON, RuleId.ACCESS),
    "consented": (CONSENTED, UNIT, NOON, None),
    "consent still valid": (CONSENTED_UNTIL_NOON, UNIT, NOON - SECOND, None),
    "consent over": (CONSENTED_UNTIL_NOON, UNIT, NOON, RuleId.CONSENT),
    "embargo": (UNTIL_NOON, UNIT, NOON - SECOND, RuleId.EMBARGO),
    "embargo over": (UNTIL_NOON, UNIT, NOON, None),
    "embargo of a day": (A_DAY, UNIT, START + timedelta(days=1) - SECOND, RuleId.EMBARGO),
    "embargo of a day, over": (A_DAY, UNIT, START + timedelta(days=1), None),
    "the header has a later end": (A_DAY, LATER, START + timedelta(days=3) - SECOND, RuleId.EMBARGO),
    "no time in the header": (A_DAY, NOWHERE, START, RuleId.EMBARGO),
    "an end beyond all time": (A_DAY, ENDLESS, NOON, RuleId.EMBARGO),
    "masked": (SHIELDED, UNIT, NOON, None),
    "no location to mask": (SHIELDED, NOWHERE, NOON, RuleId.SENSITIVITY),
    "embargoed, and no location to mask": (SHIELDED | UNTIL_NOON, NOWHERE, START, RuleId.EMBARGO),
    "masked and embargoed": (SHIELDED | UNTIL_NOON, UNIT, START, RuleId.EMBARGO),
}


@pytest.mark.parametrize(("declared", "unit", "at", "rule"), RULINGS.values(), ids=RULINGS)
def test_the_rules_decide_on_a_unit(
    declared: dict[str, Any], unit: Envelope, at: datetime, rule: RuleId | None
) -> None:
    rules = Rules(governance=governance(**declared), at=at)
    objection = rules.objection(unit)
    assert (objection and objection.rule) == rule
    after = rules.applied(unit)
    if objection is not None:
        assert (after.failure.code, after.failure.severity) == (GovernanceIssue.HARD_FAIL, Severity.FAILED)
        assert after.failure.message == f"{rule}: {objection.observed}, expected {objection.expected}"
        assert after.failure.code in NEVER_REPLAYED
    else:
        assert after.failure is None
    assert (after.metadata == unit.metadata) is ("masking" not in declared or unit is NOWHERE)


def test_the_rules_refuse_a_unit_even_if_its_contract_was_not_checked() -> None:
    for rule, declared in (
        (RuleId.CONSENT, {"indigenous_data_flag": True}),
        (RuleId.SENSITIVITY, {"sensitivity": "sensitive"}),
    ):
        objection = Rules(governance=governance().model_copy(update=declared), at=NOON).objection(UNIT)
        assert objection.rule is rule


def test_a_contract_without_required_declarations_is_refused_in_one_line() -> None:
    for declared, message in (
        ({"sensitivity": "restricted"}, "access restricted or closed, but access is open"),
        ({"sensitivity": "sensitive", "access": "restricted"}, "needs masking"),
        ({"indigenous_data_flag": True}, "needs consent"),
        ({"indigenous_data_flag": True, "consent": {"authority": " ", "reference": "x"}}, "pattern"),
        ({"indigenous_data_flag": True, "consent": {"authority": "a council"}}, "required"),
        ({"embargo": {}}, "both until and days"),
        ({"embargo": {"until": "2026-03-01T12:00:00Z", "days_after_observation": 1}}, "both until and days"),
        ({"embargo": {"until": "2026-03-01T12:00:00"}}, "timezone"),
        ({"embargo": {"days_after_observation": 0}}, "greater than 0"),
        ({"masking": MASKING}, "needs a sensitivity"),
        (SHIELDED | {"masking": MASKING | {"resolution": 9}}, "less than or equal to 8"),
        (SHIELDED | {"masking": MASKING | {"change_ref": ""}}, "at least 1 character"),
        (SHIELDED, "are not in governance.masking.properties"),
        ({"sensitivity": "secret", "access": "restricted"}, "'none', 'restricted' or 'sensitive'"),
    ):
        text = changed(HRRR, {"governance": {"license": "CC-BY-4.0", **declared}})
        with pytest.raises(ContractError, match=message) as refused:
            parse_contract(text, source="mine.yaml")
        assert "\n" not in str(refused.value)


LATITUDES = st.floats(-90, 90)
LONGITUDES = st.floats(-180, 180)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[float, float, float, float]:
    south, north = sorted((draw(LATITUDES), draw(LATITUDES)))
    return draw(LONGITUDES), south, draw(LONGITUDES), north


@given(box=boxes(), resolution=st.integers(0, 8))
@example(box=(179.9, -1.0, -179.9, 1.0), resolution=3)
@example(box=(-180.0, 89.9, 180.0, 90.0), resolution=1)
@example(box=(-180.0, -90.0, 180.0, -89.0), resolution=0)
@example(box=(180.0, 10.0, 180.0, 10.0), resolution=5)
@example(box=(-180.0, 10.0, -180.0, 10.0), resolution=5)
def test_a_generalised_footprint_is_valid_and_contains_the_location(
    box: tuple[float, float, float, float], resolution: int
) -> None:
    metadata = Metadata(
        status=CheckStatus.OK, geometry={"type": "Point", "coordinates": [0, 0]}, bbox=box, stac_properties={}
    )
    shown = generalised(metadata, Masking.model_validate(MASKING | {"resolution": resolution}))
    west, south, east, north = shown.bbox
    assert footprint(shown.geometry, decimals=5)[1] == shown.bbox
    latitude = (box[1] + box[3]) / 2
    # A cell's sides are great circles, which for large cells bulge beyond the box of the corners.
    slack = 3.0 / 2**resolution
    assert south - slack <= latitude <= north + slack
    middle = box[0] + ((box[2] - box[0]) % 360 if box[0] > box[2] else box[2] - box[0]) / 2
    # Near a pole, degrees of longitude are no measure of distance.
    if abs(latitude) < 60:
        width = (east - west) % 360
        assert (middle - west + slack) % 360 <= width + 2 * slack
        assert width < 60 / 2**resolution


def test_a_box_is_split_at_the_antimeridian() -> None:
    for box, parts in (
        ((10.0, 0.0, 11.0, 1.0), [(10.0, 11.0)]),
        ((179.0, 0.0, 180.0, 1.0), [(179.0, 180.0)]),
        ((179.5, 0.0, -179.5, 1.0), [(179.5, 180.0), (-180.0, -179.5)]),
        ((179.5, 0.0, -180.0, 1.0), [(179.5, 180.0)]),
        ((180.0, 0.0, -179.5, 1.0), [(-180.0, -179.5)]),
    ):
        shown = outline(box)
        footprint(shown, decimals=5)
        polygons = shown["coordinates"] if shown["type"] == "MultiPolygon" else [shown["coordinates"]]
        assert [(ring[0][0], ring[1][0]) for [ring] in polygons] == parts
    # The box of a point becomes a polygon of equal points.
    assert outline((-97.5, 38.0, -97.5, 38.0)) == {"type": "Polygon", "coordinates": [[[-97.5, 38.0]] * 5]}


def test_a_masked_header_keeps_only_cell_times_and_listed_properties() -> None:
    issue = Issue(code="time_mismatch", severity=Severity.SUSPECT, message="the header of 38.123456 says noon")
    shifted = []
    for nudge in (0.0, 0.01):
        unit = read(
            envelope(),
            **{"nexrad:site": f"K{nudge}", "proj:centroid": {"lat": 38.1 + nudge, "lon": -98.6}},
            end_datetime="2025-12-03T00:07:00Z",
        )
        bbox = (-99.0 + nudge, 37.0 + nudge, -98.0 + nudge, 38.0 + nudge)
        unit = unit.evolve(metadata=dataclasses.replace(unit.metadata, bbox=bbox, issues=(issue,)))
        shifted.append(Rules(governance=governance(**SHIELDED), at=NOON).applied(unit))
    assert shifted[0] == shifted[1]
    metadata = shifted[0].metadata
    assert metadata.stac_properties.keys() <= {*TIMES, "platform"}
    assert [(reported.code, reported.message) for reported in metadata.issues] == [("time_mismatch", WITHHELD)]


def test_an_already_failed_unit_keeps_its_error_but_not_its_exact_location() -> None:
    rules = Rules(governance=governance(**SHIELDED, embargo={"until": NOON}), at=START)
    broken = failed(UNIT)
    after = rules.applied(broken)
    assert after.failure == broken.failure
    assert after.gate_issues == ()
    assert after.metadata.geometry != broken.metadata.geometry
    unread = failed(envelope())
    assert rules.applied(unread) == unread
