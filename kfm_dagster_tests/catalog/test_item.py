"""Items built from envelopes: one golden Item per dataset, and what does and does not count as content."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import orjson
import pystac
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfm_dagster.catalog.assets import EXTENSIONS
from kfm_dagster.catalog.item import build_item, canonical, content_sha256
from kfm_dagster.catalog.validation import validate_item
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity
from kfm_dagster.contracts.issues import IntegrityIssue, Issue, MetadataIssue, Severity
from kfm_dagster.contracts.key_grammar import KeyGrammarReader
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.demo.samples.hrrr import make_hrrr
from kfm_dagster.readers.base import Layer
from kfm_dagster.readers.grib2_cube import cube
from kfm_dagster.readers.grib2_grids import describe_grid
from kfm_dagster_tests.catalog.envelopes import MD5, candidates, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.factories import JSON

GOLDEN = Path(__file__).parent / "golden"


def item_of(contracts: ContractRegistry, envelope: Envelope) -> dict[str, Any]:
    (candidate,) = candidates(contracts, [envelope])
    return dict(candidate.item)


def built(contract: DatasetContract, envelope: Envelope, object_uri: str | None = None) -> dict[str, Any]:
    """The Item of an envelope under a contract, as if its object were at another address."""
    match = KeyGrammarReader(contract).match(envelope.key)
    assert match is not None
    moved = envelope.evolve(object_uri=object_uri or envelope.object_uri)
    return build_item(moved, contract=contract, match=match, run_state=None)


@pytest.mark.clause("OPR-08")
@pytest.mark.parametrize("envelope", [goes(), hrrr(), nexrad()], ids=lambda envelope: envelope.dataset)
def test_the_item_of_each_dataset_is_the_golden_one(contracts: ContractRegistry, envelope: Envelope) -> None:
    item = item_of(contracts, envelope)
    assert item == json.loads((GOLDEN / f"{envelope.dataset}.json").read_text(encoding="utf-8"))
    assert validate_item(item) == []


def test_pystac_reads_an_item_and_writes_the_same(contracts: ContractRegistry) -> None:
    item = item_of(contracts, hrrr())
    read = pystac.Item.from_dict(item)
    assert read.datetime is not None
    written = read.to_dict(include_self_link=False, transform_hrefs=False)
    # pystac writes its own links, and whole seconds without decimals.
    written["links"], written["properties"]["datetime"] = item["links"], item["properties"]["datetime"]
    assert written == item
    assert set(read.assets) == {"data", "index"}


@pytest.mark.clause("OPR-05")
def test_findings_of_a_suspect_unit_are_visible_in_its_item(contracts: ContractRegistry) -> None:
    suspect = Issue(
        code=IntegrityIssue.UNEXPECTED_CONTENT_TYPE, severity=Severity.SUSPECT, message="text/plain, " + "x" * 1000
    )
    finding = Issue(code=MetadataIssue.SIDECAR_MISSING, severity=Severity.SUSPECT, message="no .idx")
    envelope = with_metadata(hrrr(), status=CheckStatus.SUSPECT, issues=(finding,)).evolve(
        integrity=Integrity(status=CheckStatus.SUSPECT, issues=(suspect,))
    )
    item = item_of(contracts, envelope)
    assert item["properties"]["kfm:integrity"] == "suspect"
    assert [(issue["operator"], issue["code"]) for issue in item["properties"]["kfm:issues"]] == [
        ("integrity_check", "unexpected_content_type"),
        ("metadata_extract", "sidecar_missing"),
    ]
    assert len(item["properties"]["kfm:issues"][0]["message"]) == 300
    assert validate_item(item) == []
    assert "kfm:issues" not in item_of(contracts, hrrr())["properties"]


def test_only_a_single_part_etag_is_a_checksum(contracts: ContractRegistry) -> None:
    for etag, checksum in [(MD5, "d50110" + MD5), (f"{MD5}-12", None), (MD5.upper(), None), ("", None)]:
        item = item_of(contracts, goes(version=etag))
        assert item["assets"]["data"].get("file:checksum") == checksum


def test_only_extensions_in_use_are_declared(contracts: ContractRegistry) -> None:
    full = item_of(contracts, goes())
    assert full["stac_extensions"] == [*contracts["goes-abi"].stac.extensions, *EXTENSIONS]
    bare = with_metadata(goes(), stac_properties={"datetime": "2025-12-03T00:00:00Z", "platform": "goes-19"})
    declared = [uri.split("/")[3] for uri in item_of(contracts, bare)["stac_extensions"]]
    assert declared == ["file", "alternate-assets", "storage", "xarray-assets"]


@pytest.mark.clause("OPR-21")
def test_a_key_with_unsafe_characters_gives_a_valid_href(contracts: ContractRegistry) -> None:
    envelope = goes()
    item = built(contracts["goes-abi"], envelope, "s3://bucket/a b/YEAR=2020/00:15 é%+.nc")
    assert item["assets"]["data"]["href"] == "s3://bucket/a%20b/YEAR=2020/00:15%20%C3%A9%25+.nc"
    assert {name: where["href"] for name, where in item["assets"]["data"]["alternate"].items()} == {
        # S3 takes a + of a URL for a space.
        "https": "https://bucket.s3.us-east-1.amazonaws.com/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
        "gcs": "https://storage.googleapis.com/gcp-public-data-goes-19/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
        "azure": "https://goeseuwest.blob.core.windows.net/bucket/a%20b/YEAR=2020/00:15%20%C3%A9%25%2B.nc",
    }
    assert validate_item(orjson.loads(canonical(item))) == []
    assert item_of(contracts, envelope)["assets"]["data"]["href"] == envelope.object_uri
    # A bucket with dots is a path, because no certificate covers it.
    odd = built(contracts["goes-abi"], envelope, "s3://a.b/c.nc")
    assert odd["assets"]["data"]["alternate"]["https"]["href"] == "https://s3.us-east-1.amazonaws.com/a.b/c.nc"


@pytest.mark.clause("OPR-21")
def test_what_not_everybody_may_have_is_at_no_public_address(contracts: ContractRegistry) -> None:
    contract = contracts["hrrr"]
    closed = contract.model_copy(update={"governance": contract.governance.model_copy(update={"access": "restricted"})})
    item = built(closed, hrrr())
    for asset in item["assets"].values():
        assert asset["href"].startswith("s3://")
        assert not {"alternate", "alternate:name", "xarray:storage_options"} & asset.keys()
    assert item["properties"]["storage:schemes"]["aws"]["bucket"] == "noaa-hrrr-bdp-pds"
    assert validate_item(orjson.loads(canonical(item))) == []


def test_links_run_state_and_time_stamps_are_no_content(contracts: ContractRegistry) -> None:
    item = item_of(contracts, goes())
    properties = {**item["properties"], "kfm:run_state": {"dataset_id": "x", "run_id": "y"}, "updated": "later"}
    assert content_sha256({**item, "properties": properties, "links": []}) == content_sha256(item)
    for changed in (
        {**item, "properties": {**item["properties"], "platform": "goes-18"}},
        {**item, "assets": {}},
        {**item, "geometry": None},
    ):
        assert content_sha256(changed) != content_sha256(item)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5), st.randoms(use_true_random=False))
def test_canonical_bytes_depend_on_content_and_not_on_order(value: dict[str, Any], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    content = canonical({name: value[name] for name in names})
    assert content == canonical(value)
    assert canonical(json.loads(content)) == content


def with_thumbnail(contracts: ContractRegistry, envelope: Envelope) -> dict[str, Any]:
    """An Item of a contract that wants pictures."""
    contract = contracts[envelope.dataset]
    return built(contract.model_copy(update={"stac": contract.stac.model_copy(update={"thumbnail": True})}), envelope)


@pytest.mark.clause("OPR-21")
def test_a_picture_of_the_footprint_comes_and_goes_with_its_item(contracts: ContractRegistry) -> None:
    item = with_thumbnail(contracts, goes())
    picture = item["assets"].pop("thumbnail")
    assert "thumbnail" not in item_of(contracts, goes())["assets"]
    kind, _, encoded = picture["href"].partition(";base64,")
    shown = {"title": "Footprint", "type": "image/svg+xml", "roles": ["thumbnail"], "href": picture["href"]}
    assert picture == shown
    drawn = ET.fromstring(base64.b64decode(encoded, validate=True))
    assert (kind, drawn.attrib["width"]) == ("data:image/svg+xml", "240")
    assert 120 <= float(drawn.attrib["height"]) <= 240
    assert len(drawn.findall("{*}g[@fill]/{*}path")) == 1
    # The same footprint has the same picture; another one, another; none, none.
    assert with_thumbnail(contracts, goes(1))["assets"]["thumbnail"] == picture
    assert set(with_thumbnail(contracts, with_metadata(goes(), geometry=None, bbox=None))["assets"]) == {"data"}
    elsewhere = with_thumbnail(contracts, goes(bbox=(175.6, 14.6, -89.6, 53.5)))["assets"]["thumbnail"]
    assert elsewhere["href"] != picture["href"]
    assert len(elsewhere["href"]) < 3000
    for one in (picture, elsewhere):
        item["assets"]["thumbnail"] = one
        assert validate_item(item) == []
        assert pystac.Item.from_dict(item).assets["thumbnail"].href == one["href"]


def test_an_item_of_as_many_messages_as_native_levels_have_stays_small(contracts: ContractRegistry) -> None:
    """HRRR's native levels: some 1,100 messages of 22 variables on 50 levels, and a hundred on one."""
    names = [(f"VAR{name}", f"{level} hybrid level") for level in range(1, 51) for name in range(22)]
    names += [(f"SFC{number}", "surface") for number in range(100)]
    layers = [Layer(*name, "12 hour fcst", "", 600_000_000, 1_000_000) for name in names]
    run = datetime(2025, 12, 3, tzinfo=UTC)
    _, message, _ = make_hrrr(run=run, lead=1)
    # Section 3 of the sample is that of the real grid (readers/test_grib2.py).
    grid = describe_grid(message[37:118])
    of_sample = hrrr()
    assert of_sample.metadata is not None
    properties = of_sample.metadata.stac_properties
    envelope = with_metadata(
        of_sample,
        stac_properties={**properties, **cube(grid, layers, reference=run, valid=(run,))},
        layers={layer.name: (layer.offset, layer.length) for layer in layers},
    )
    item = item_of(contracts, envelope)
    assert len(item["properties"]["cube:variables"]) == 122
    assert len(item["assets"]["data"]["grib:layers"]) == 1200
    assert validate_item(item) == []
    assert len(canonical(item)) < 160 * 1024
