"""stac-register over batches: the units that get an Item, and their envelopes' results."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata, StacStatus
from kfm_dagster.contracts.issues import GateIssue, IntegrityIssue, Issue, Severity, StacIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.operators.stac_register import stac_register_batch
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog import trees
from kfm_dagster_tests.catalog.envelopes import goes, run_state, with_metadata


def register(catalog: Catalog, contracts: ContractRegistry, *envelopes: Envelope) -> list[Envelope]:
    return stac_register_batch(
        envelopes,
        contract=contracts["goes-abi"],
        grammar=contracts.grammars["goes-abi"],
        catalog=catalog,
        fence=open_fence,
        run_state=run_state("goes-abi"),
    )


def _issue(code: str, severity: Severity) -> Issue:
    return Issue(code=code, severity=severity, message="as observed")


@pytest.mark.clause("OPR-05")
def test_failed_units_get_no_item_and_suspect_units_an_item_with_their_issues(
    catalog: Catalog, contracts: ContractRegistry, root: Path
) -> None:
    bad = _issue(IntegrityIssue.BAD_MAGIC, Severity.FAILED)
    odd = _issue(IntegrityIssue.UNEXPECTED_CONTENT_TYPE, Severity.SUSPECT)
    batch = [
        goes(0),
        goes(1).evolve(integrity=Integrity(status=CheckStatus.FAILED, issues=(bad,))),
        goes(2).evolve(integrity=Integrity(status=CheckStatus.SUSPECT, issues=(odd,))),
        goes(3).evolve(metadata=Metadata(status=CheckStatus.FAILED)),
        goes(4).evolve(integrity=None),
        goes(5).evolve(metadata=None),
        goes(6).evolve(gate_issues=(_issue(GateIssue.G4, Severity.FAILED),)),
    ]
    registered = register(catalog, contracts, *batch)
    assert [envelope.wal_id for envelope in registered] == [envelope.wal_id for envelope in batch]
    assert [envelope.stac and envelope.stac.write_status for envelope in registered] == [
        StacStatus.CREATED, None, StacStatus.CREATED, None, None, None, None,
    ]  # fmt: skip
    for position in (1, 3, 4, 5, 6):
        assert registered[position] == batch[position]
    suspect = registered[2].stac
    item = trees.walk(root)[str(suspect.item_href)]
    assert item["properties"]["kfm:integrity"] == "suspect"
    assert [issue["code"] for issue in item["properties"]["kfm:issues"]] == ["unexpected_content_type"]
    assert len(trees.item_ids(root)) == 2


@pytest.mark.parametrize(
    ("reason", "envelope"),
    [
        ("no JSON form", with_metadata(goes(1), stac_properties={"datetime": object()})),
        (
            "a NUL character",
            with_metadata(goes(1), stac_properties={"datetime": "2025-12-03T00:00:00Z", "platform": "a\0b"}),
        ),
        ('"datetime" is a required', with_metadata(goes(1), stac_properties={"platform": "goes-19"})),
        ("geometry: ", with_metadata(goes(1), geometry={"type": "Polygon", "coordinates": "hostile"})),
        ("proj:shape.1: -1 is less", goes(1, **{"proj:shape": [0, -1, 7]})),
        ("bbox.0: null", with_metadata(goes(1), bbox=(float("nan"), 0.0, 1.0, 1.0))),
        ("the contract's key grammar", goes(1).evolve(object_uri="s3://noaa-goes19/ABI-L1b-RadC/other.nc")),
        ("not a time", goes(1).evolve(object_uri=goes(1).object_uri.replace("_s2025337", "_s2025999"))),
    ],
)
@pytest.mark.clause("OPR-08")
def test_a_unit_without_a_valid_item_fails_with_the_reason_and_the_other_units_do_not_fail(
    catalog: Catalog, contracts: ContractRegistry, root: Path, reason: str, envelope: Envelope
) -> None:
    good, bad = register(catalog, contracts, goes(0), envelope)
    assert good.stac.write_status is StacStatus.CREATED
    assert bad.stac.write_status is StacStatus.FAILED
    [issue] = bad.stac.issues
    assert (issue.code, reason in issue.message) == (StacIssue.STAC_VALIDATION_FAILED, True)
    assert bad.failure is not None
    trees.assert_consistent(root)
