"""Dataset contracts: the published schema, refusals, a new dataset, virtual stores, OISST."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from pydantic import ValidationError

from kfm_dagster.catalog.outcomes import is_older
from kfm_dagster.contracts.key_grammar import InvalidKeyTimeError, KeyGrammarReader, KeyKind, is_safe_key
from kfm_dagster.contracts.loader import ContractRegistry, parse_contract
from kfm_dagster.contracts.model import CANONICAL_FIELDS, DatasetContract
from kfm_dagster.contracts.virtual import VirtualStore
from kfm_dagster.demo.samples.oisst import BUCKET, oisst_samples
from kfm_dagster.errors import ContractError
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster.readers.nexrad_radar import TDWR, sites
from kfm_dagster_tests.factories import staged, with_section
from kfm_dagster_tests.fuzz.specimens import Specimen
from kfm_dagster_tests.schemas import json_schema
from kfm_dagster_tests.stages.batches import extracted

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "dataset-contract.schema.json"
SCHEMA = json_schema(DatasetContract, urn="kfm.nodd.dataset:v1")
BUILTIN = {
    entry.name: entry.read_text(encoding="utf-8")
    for entry in (resources.files("kfm_dagster.contracts") / "datasets").iterdir()
    if entry.name.endswith(".yaml")
}
HRRR = re.sub(r"(?m)^  key_values:\n(?:    .*\n)+", "", BUILTIN["hrrr.yaml"].partition("\nvirtual:")[0] + "\n")
"""HRRR's contract for tests with other keys: without virtual stores and key values, which need HRRR's key groups."""
CITATION = {"fields": ["gsd"], "volume": "WMO-No. 306", "version": "2025 edition", "anchor": "section 3"}


def changed(text: str, changes: dict[str, Any]) -> str:
    """Return contract text with the values at dotted paths replaced; None removes the key."""
    document = yaml.safe_load(text)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = document
        for name in parents:
            node = node[name]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return yaml.safe_dump(document)


def hrrr(**changes: Any) -> str:
    return changed(HRRR, {name.replace("__", "."): value for name, value in changes.items()})


@pytest.mark.clause("OPR-13")
def test_the_published_schema_equals_that_of_the_model_and_accepts_every_builtin_contract() -> None:
    assert json.loads(SCHEMA_FILE.read_text(encoding="utf-8")) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    validator = jsonschema_rs.Draft202012Validator(SCHEMA)
    for name in sorted(BUILTIN):
        lines = BUILTIN[name].splitlines()
        # A contract must stay short enough to read; MRMS's has the codes of 122 products.
        assert len(lines) < (150 if name == "mrms.yaml" else 130)
        assert max(map(len, lines)) <= 120
        document = yaml.safe_load(BUILTIN[name])
        assert [error.message for error in validator.iter_errors(document)] == []
        document["surprise"] = 1
        assert not validator.is_valid(document)


@pytest.mark.clause("OPR-13")
def test_schema_and_loader_refuse_the_same_documents() -> None:
    for changes in [
        {"surprise": 1},
        {"integrity.surprise": 1},
        {"storage.key_grammar.surprise": 1},
        {"apiVersion": "kfm.nodd.dataset/v9"},
        {"metadata.id": "Not An Id"},
        {"metadata.status": "obsolete"},
        {"metadata.status": "retired", "metadata.retired": {"reason": "replaced"}},
        {"notifications.topics": []},
        {"notifications.topics": [{"arn": "arn:aws:sqs:us-east-1:123901341784:q"}]},
        {"storage.buckets": ["UPPER"]},
        {"storage.scheduled_listing": {}},
        {"storage.scheduled_listing": {"every_seconds": 299}},
        {"storage.scheduled_listing": {"every_seconds": 3600, "days_back": -1}},
        {"storage.key_grammar.start": {"value": "{date}", "format": "%y%m%d"}},
        {"integrity.magic": [{"hex": "xyz"}]},
        {"integrity.severities": {"no_such_issue": "failed"}},
        {"integrity.severities": {"bad_magic": "ignore"}},
        {"integrity.peers": {"factor": 2}},
        {"integrity.peers": {"groups": ["lead"], "factor": 1}},
        {"integrity.peers": {"groups": ["lead"], "factor": 2, "minimum": 3}},
        {"integrity.peers": {"groups": ["lead"], "factor": 2, "minimum": 25}},
        {"storage.sidecars": [{"suffix": ".idx", "role": "index", "may_precede_seconds": -1}]},
        {"retry": {"max_attempts": 0}},
        {"metadata_extract.citations": {"grid": "somewhere in WMO-No. 306"}},
        {"metadata_extract.citations": [{"fields": ["gsd"], "volume": "WMO-No. 306", "version": "2025 edition"}]},
        {"metadata_extract.citations": [{**CITATION, "fields": ["*"], "anchor": "everywhere", "kind": "I"}]},
        {"metadata_extract.citations": [{**CITATION, "kind": "X"}]},
        {"freshness.budget_seconds": 0},
        {"coverage.products": []},
        {"governance": None},
        {"storage.listing": ["hrrr.%Y%m%d/{Region}/"], "storage.listing_sets": {"Region": ["conus"]}},
        {"storage.listing": ["hrrr.%Y%m%d/{region}/"], "storage.listing_sets": {"region": []}},
        {"storage.listing": ["hrrr.%Y%m%d/{region}/"], "storage.listing_sets": {"region": ["%Y"]}},
    ]:
        text = changed(HRRR, changes)
        assert not jsonschema_rs.Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text))
        with pytest.raises(ContractError, match=r"mine\.yaml"):
            parse_contract(text, source="mine.yaml")


def test_a_permanent_error_has_at_most_as_many_attempts_as_other_errors() -> None:
    def parsed(permanent: int) -> None:
        retry = {"max_attempts": 2, "permanent": {"max_attempts": permanent}}
        parse_contract(changed(HRRR, {"retry": retry}), source="mine.yaml")

    parsed(2)
    with pytest.raises(ContractError, match=r"permanent\.max_attempts is greater than max_attempts"):
        parsed(3)


@pytest.mark.clause("PCS-23")
def test_a_citation_without_the_kind_of_its_anchor_is_refused_in_one_line() -> None:
    document = changed(HRRR, {"metadata_extract.citations": [CITATION, {**CITATION, "kind": "I"}]})
    with pytest.raises(ContractError) as refused:
        parse_contract(document, source="mine.yaml")
    assert str(refused.value).startswith("mine.yaml line ")
    assert "\n" not in str(refused.value)
    assert "metadata_extract.citations.0.kind" in str(refused.value)
    assert "the JSON Schema is docs/spec/dataset-contract.schema.json" in str(refused.value)


@pytest.mark.clause("OPR-13")
def test_contradictions_within_a_contract_are_refused() -> None:
    hundreds = {name: [str(number) for number in range(101)] for name in "ab"}
    for changes, message in [
        ({"storage.key_grammar.pattern": "("}, "a regular expression"),
        ({"storage.key_grammar.start": {"value": "{nope}", "format": "%Y"}}, "nope"),
        ({"storage.key_grammar.start": {"value": "{date}", "format": "%Y%m%m"}}, "each directive once"),
        ({"storage.key_grammar.end": {"value": "{date}", "format": "%Y%m%d"}}, "exclude"),
        ({"storage.key_grammar.start": "event"}, "have no end"),
        ({"storage.ignore": ["("]}, "a regular expression"),
        ({"storage.listing": ["rap.%Y%m%d/"]}, "no prefix"),
        ({"notifications.topics": None}, "no object can be discovered: name notifications.topics"),
        ({"notifications": None}, "storage.scheduled_listing"),
        ({"storage.listing": ["{a}%Y/"], "storage.listing_sets": {"a": ["hrrr.", "rap."]}}, r"'rap\.2024/', which no"),
        ({"storage.listing": ["hrrr.%Y{a}{b}/"], "storage.listing_sets": {"a": ["1"]}}, r"sets \['b'\] that"),
        ({"storage.listing_sets": {"a": ["1"]}}, r"listing_sets \['a'\] are in no template"),
        ({"storage.listing": ["hrrr.%Y{a}"], "storage.listing_sets": {"a": ["1", "1"]}}, "a value twice"),
        ({"storage.listing": ["hrrr.%Y{a:>9}"]}, "a brace that belongs to no"),
        ({"storage.listing": ["hrrr.%Y{a}{b}"], "storage.listing_sets": hundreds}, "10201 prefixes; 10000 at most"),
        ({"storage.listing": ["hrrr.%Y%m%d/con*/"]}, "not a whole folder"),
        ({"metadata.status": "retired"}, "without `retired`"),
        ({"metadata.retired": {"since": "2026-11-03", "reason": "replaced by RRFS"}}, "without `retired`"),
        ({"stac.item_id": "{version}"}, r"stac\.item_id \['version'\]"),
        ({"storage.key_grammar.implied": {"version": {"by": "site", "values": {}, "otherwise": "6"}}}, "implied.*site"),
        ({"storage.key_grammar.implied": {"date": {"by": "date", "values": {}, "otherwise": "6"}}}, "implied.*date"),
        ({"stac.precedence": "created"}, r"stac\.precedence \['created'\]"),
        ({"integrity.peers": {"groups": ["lead", "color"], "factor": 2}}, r"integrity\.peers\.groups \['color'\]"),
        ({"storage.mirrors": {"gcs": "https://example.org/{nope}"}}, r"storage\.mirrors \['nope'\]"),
        ({"storage.mirrors": {"gcs": "http://example.org/{key}"}}, "mirrors.gcs"),
        ({"ledger.extension_fields": ["nope"]}, r"ledger\.extension_fields \['nope'\]"),
        ({"ledger.extension_fields": ["region"]}, "coverage distinguishes products by"),
        ({"metadata_extract.units": [{"fields": ["gsd"], "unit": "m", "minimum": 2, "maximum": 1}]}, "maximum"),
        ({"coverage.products": [{"name": "a", "per_hour": 1}] * 2}, "twice"),
        ({"coverage.products": [{"name": "a", "per_hour": 1, "groups": {"product": "sfc|prs"}}]}, "twice"),
        ({"coverage.products": [{"name": "{a}", "per_hour": 1}]}, "names 'a', which is not in groups"),
        ({"coverage.products": [{"name": "a", "per_hour": 1, "every_seconds": 3601}]}, "'a' is due in every hour"),
        (
            {"metadata_extract.key_values": {"native.Ni": {"nope": {"a": 1}}}},
            r"metadata_extract\.key_values \['nope'\]",
        ),
        ({"metadata_extract.key_values": {"native.Ni": {"region": {"(": 1}}}}, "not a regular expression"),
        ({"metadata_extract.key_values": {"native.Ni": {"region": {"(.*)": r"\2"}}}}, "names a group"),
        ({"metadata_extract.key_values": {"native.Ni": {"region": {}}}}, "region"),
        ({"metadata_extract.key_values": {"native.Ni": {"region": {"a": {"minimum": 1}}}}}, "minimum"),
    ]:
        with pytest.raises(ContractError, match=message):
            parse_contract(changed(HRRR, changes), source="mine.yaml")


@pytest.mark.clause("OPR-13")
def test_a_dataset_without_topics_needs_a_scheduled_listing() -> None:
    text = changed(HRRR, {"notifications": None, "storage.scheduled_listing": {"every_seconds": 3600}})
    contract = parse_contract(text, source="mine.yaml")
    registry = ContractRegistry.of([contract])
    assert jsonschema_rs.Draft202012Validator(SCHEMA).is_valid(yaml.safe_load(text))
    assert (contract.notifications.topics, registry.topics) == ([], {})
    # A queue can still announce the objects by raw messages.
    assert registry.announced == {(None, "noaa-hrrr-bdp-pds"): frozenset({"hrrr"})}


def test_the_day_of_an_object_is_the_first_day_of_the_period_in_its_key() -> None:
    for form, day in [("%Y%m%d", "2025-06-10"), ("%Y%j", "2025-06-10"), ("%Y%m", "2025-06-01"), ("%Y", "2025-01-01")]:
        text = hrrr(storage__key_grammar__start={"value": "{date}", "format": form})
        grammar = KeyGrammarReader(parse_contract(text, source="mine.yaml"))
        assert grammar.day_holding(date(2025, 6, 10)).isoformat() == day


@pytest.mark.clause("WAL-16")
def test_extension_fields_cannot_shadow_fields_of_the_ledger() -> None:
    for name in CANONICAL_FIELDS:
        pattern = rf"hrrr\.(?P<date>\d{{8}})/(?P<cycle>\d\d)(?P<lead>\d\d)(?P<{name}>x)"
        text = hrrr(
            storage__key_grammar__pattern=pattern,
            stac__item_id="{date}",
            ledger__extension_fields=[name],
            integrity__peers=None,
        )
        with pytest.raises(ContractError, match="shadow"):
            parse_contract(text, source="mine.yaml")


@pytest.mark.clause("BEY-18")
def test_a_retired_dataset_s_successor_must_have_a_contract() -> None:
    own, other = parse_contract(HRRR, source="own"), parse_contract(ARCHIVE, source="other")
    for successor in ["nexrad-l2", None]:
        contract = staged(own, "retired", since="2026-11-03", successor=successor)
        assert ContractRegistry.of([contract, other])["hrrr"].metadata.retired == contract.metadata.retired
    for successor in ["rrfs", "hrrr"]:
        contract = staged(own, "retired", since="2026-11-03", successor=successor)
        with pytest.raises(ContractError, match=f"successor.*hrrr: {successor}; expected one of nexrad-l2"):
            ContractRegistry.of([contract, other])


@pytest.mark.clause("BEY-18")
def test_topics_and_coverage_end_on_the_day_of_the_retirement() -> None:
    topics = [{"arn": f"arn:aws:sns:us-east-1:123901341784:New{name}Object"} for name in ("HRRR", "Old")]
    topics[1]["until"] = "2026-11-02"
    ends = {"a": None, "b": "2026-11-01", "c": "2026-11-09"}
    products = [{"name": name, "per_hour": 1, "until": end} for name, end in ends.items()]
    text = hrrr(notifications__topics=topics, coverage__products=products)
    contract = parse_contract(text, source="mine.yaml")
    assert contract.coverage.products[0].until is None
    ended = staged(contract, "retired", since="2026-11-03")
    assert [product.until.day for product in ended.coverage.products] == [3, 1, 3]
    of_registry = ContractRegistry.of([ended])
    for day, number in ((1, 2), (2, 1), (3, 0)):
        assert len(ended.live_topics(date(2026, 11, day))) == number
        assert of_registry.live_topics(date(2026, 11, day)) == set(ended.live_topics(date(2026, 11, day)))
    assert len(contract.live_topics(date(2030, 1, 1))) == 1
    # Late messages of both topics are still routed.
    assert len(of_registry.topics) == 2


@pytest.mark.clause("OPR-13")
def test_clashing_contracts_are_refused() -> None:
    for changes, message in [
        ({}, "share a dataset id"),
        ({"metadata.id": "hrrr-two"}, "the same STAC collection"),
        ({"metadata.id": "hrrr-two", "stac.collection": "hrrr-two"}, "same keys"),
        (
            {"metadata.id": "two", "stac.collection": "two", "storage.buckets": ["other"], "queue": {"name": "other"}},
            "different queues",
        ),
    ]:
        first, second = parse_contract(HRRR, source="one"), parse_contract(changed(HRRR, changes), source="two")
        with pytest.raises(ContractError, match=message):
            ContractRegistry.of([first, second])


def test_a_deployment_follows_only_the_named_datasets(contracts: ContractRegistry) -> None:
    followed = contracts.only(["hrrr", "nexrad-l2"])
    assert [contract.id for contract in followed] == ["hrrr", "nexrad-l2"]
    assert list(followed.every.contracts) == list(contracts.contracts)
    with pytest.raises(ContractError, match=r"does not follow this dataset; observed goes-abi; .* KFM_DATASETS"):
        followed["goes-abi"]
    assert contracts.only([]) is contracts.only(contracts.contracts) is contracts
    for names, text in (
        (["hrrr", "hrr"], "unknown dataset; observed hrr; expected some of cfs, gefs,"),
        (["nexrad-l2-chunks"], "expected also nexrad-l2"),
    ):
        with pytest.raises(ContractError, match=text):
            contracts.only(names)


CHUNKS = BUILTIN["nexrad-l2-chunks.yaml"]
ARCHIVE = BUILTIN["nexrad-l2.yaml"]


@pytest.mark.clause("OPR-13")
def test_a_contract_that_writes_another_dataset_s_collection_names_that_dataset_and_has_its_governance() -> None:
    topic = {"arn": "arn:aws:sns:us-east-1:684042711724:NewNEXRADLevel2Archive"}
    for changes, message in [
        ({"stac.collection_of": None}, "two contracts write the same STAC collection"),
        ({"stac.collection_of": "hrrr"}, "differs from that of the dataset"),
        ({"stac.collection_of": "nexrad-l2-chunks"}, "differs from that of the dataset"),
        ({"stac.collection": "nexrad"}, "differs from that of the dataset"),
        ({"governance.sensitivity": "restricted", "governance.access": "restricted"}, "governed in two ways"),
        ({"notifications.topics": [topic]}, None),
        ({"notifications.topics": [topic | {"message_shape": "nexrad-chunk"}]}, "different shapes of message"),
    ]:
        archive, hrrr_contract = parse_contract(ARCHIVE, source="archive"), parse_contract(HRRR, source="hrrr")
        chunks = parse_contract(changed(CHUNKS, changes), source="chunks")
        if message is None:
            registry = ContractRegistry.of([archive, chunks, hrrr_contract])
            assert registry.owner(chunks) is registry.owner(archive) is archive
            assert registry.owner(hrrr_contract) is hrrr_contract
        else:
            with pytest.raises(ContractError, match=message):
                ContractRegistry.of([archive, chunks, hrrr_contract])


@pytest.mark.clause("OPR-25")
def test_a_chunk_and_its_archived_volume_share_an_item_with_precedence_for_the_volume(
    contracts: ContractRegistry,
) -> None:
    for site, radar in sites().items():
        version = "08" if radar.kind is TDWR else "06"
        chunk = contracts.grammars["nexrad-l2-chunks"].match(f"{site}/901/20260328-201457-999-E")
        volume = contracts.grammars["nexrad-l2"].match(f"2026/03/28/{site}/{site}20260328_201457_V{version}")
        assert chunk.item_id == volume.item_id == f"{site}20260328_201457_V{version}"
        assert (chunk.start, chunk.groups["version"]) == (volume.start, volume.groups["version"])
        assert "001" < chunk.precedence < volume.precedence


@pytest.mark.clause("OPR-13")
def test_the_ledger_needs_the_volume_fields_of_a_chunk_feed() -> None:
    for field in ["site", "chunk", "kind"]:
        fields = [name for name in ("site", "volume", "chunk", "kind") if name != field]
        with pytest.raises(ContractError, match=rf"a chunk feed lack \['{field}'\]"):
            parse_contract(changed(CHUNKS, {"ledger.extension_fields": fields}), source="mine.yaml")


@pytest.mark.clause("OPR-13")
def test_unknown_readers_properties_and_files_are_refused(tmp_path: Path, contracts: ContractRegistry) -> None:
    with pytest.raises(ContractError, match="bufr"):
        parse_contract(hrrr(metadata_extract__reader="bufr"), source="mine.yaml")
    # A property of another reader, and a property of no reader, with a citation in the contract.
    cited = [{"fields": ["hrrr:colour"], "volume": "Atlas", "version": "1", "anchor": "2", "kind": "P"}]
    required = ["platform", "hrrr:cycle", "hrrr:colour"]
    text = hrrr(metadata_extract__required=required, metadata_extract__citations=cited)
    with pytest.raises(ContractError, match="hrrr requires properties") as refused:
        parse_contract(text, source="mine.yaml")
    assert refused.value.observed == "platform, hrrr:colour"
    (tmp_path / "mine.yml").write_text(HRRR)
    with pytest.raises(ContractError, match=r"mine\.yml"):
        ContractRegistry.load(tmp_path)
    with pytest.raises(ContractError, match="not a folder"):
        ContractRegistry.load(tmp_path / "absent")
    with pytest.raises(ContractError, match="no dataset contract"):
        ContractRegistry.of([])


@pytest.mark.clause("OPR-13")
def test_one_yaml_file_adds_a_dataset(tmp_path: Path) -> None:
    arn = "arn:aws:sns:us-east-1:123901341784:NewRAPObject"
    text = hrrr(
        metadata__id="my-rap",
        notifications__topics=[{"arn": arn}],
        storage__buckets=["my-rap-bucket"],
        storage__prefixes=["rap."],
        storage__key_grammar__pattern=r"rap\.(?P<date>\d{8})/rap\.t(?P<cycle>\d\d)z\.awp130pgrbf(?P<lead>\d\d)\.grib2",
        storage__listing=["rap.%Y%m%d/"],
        stac__collection="my-rap",
        stac__item_id="rap.{date}.t{cycle}z.f{lead}",
        ledger__extension_fields=["cycle", "lead"],
        integrity__peers={"groups": ["lead"], "factor": 2},
        coverage=None,
    )
    (tmp_path / "my-rap.yaml").write_text(text)
    registry = ContractRegistry.load(tmp_path)
    assert registry["my-rap"] in registry.topics[arn]
    key = "rap.20260601/rap.t06z.awp130pgrbf03.grib2"
    route = registry.route(bucket="my-rap-bucket", key=key)
    assert (route.kind, route.contract) == (KeyKind.DATA, registry["my-rap"])
    match = registry.grammars["my-rap"].match(key)
    assert (match.item_id, match.end) == ("rap.20260601.t06z.f03", datetime(2026, 6, 1, 9, tzinfo=UTC))
    assert registry["my-rap"].storage.day_prefixes(date(2026, 6, 1)) == ["rap.20260601/"]


@pytest.mark.clause("OPR-13")
def test_a_listing_has_every_combination_of_its_sets() -> None:
    listing = ["hrrr.%Y%m%d/{region}/hrrr.t{cycle}z.", "hrrr.%Y%m%d/%j/", "hrrr.{cycle}{region}{cycle}"]
    text = hrrr(storage__listing=listing, storage__listing_sets={"region": ["conus", "alaska"], "cycle": ["00", "12"]})
    assert parse_contract(text, source="mine.yaml").storage.day_prefixes(date(2026, 6, 1)) == [
        "hrrr.20260601/conus/hrrr.t00z.", "hrrr.20260601/conus/hrrr.t12z.", "hrrr.20260601/alaska/hrrr.t00z.",
        "hrrr.20260601/alaska/hrrr.t12z.", "hrrr.20260601/152/", "hrrr.00conus00", "hrrr.00alaska00", "hrrr.12conus12",
        "hrrr.12alaska12",
    ]  # fmt: skip


def test_times_in_keys_are_read_strictly(contracts: ContractRegistry) -> None:
    for stamp, expected in [
        ("20240600000000", datetime(2024, 2, 29, tzinfo=UTC)),
        ("20243662359599", datetime(2024, 12, 31, 23, 59, 59, 900000, tzinfo=UTC)),
        ("20233660000000", None),
        ("20240000000000", None),
        ("20243800123456", None),  # strptime reads this as day 38
        ("20240602400000", None),
        ("20240600000600", None),  # a leap second, which datetime does not support
        ("00000010000000", None),
    ]:
        key = f"ABI-L1b-RadC/2024/060/00/OR_ABI-L1b-RadC-M6C13_G19_s{stamp}_e25003652359599_c20243662359599.nc"
        if expected is None:
            with pytest.raises(InvalidKeyTimeError):
                contracts.grammars["goes-abi"].match(key)
        else:
            match = contracts.grammars["goes-abi"].match(key)
            assert match.start == expected


@pytest.mark.clause("SEC-01")
def test_an_unsafe_key_matches_no_pattern(contracts: ContractRegistry) -> None:
    for key in ["", "/a", "a/", "a//b", "a/../b", "..", ".", "a/./b", "a\\b", "a\x00b", "a\nb", "a\u202eb", "k" * 1025]:
        assert not is_safe_key(key)
        grammar = contracts["hrrr"].storage.key_grammar.model_copy(update={"pattern": r"(?s:.*)"})
        permissive = KeyGrammarReader(with_section(contracts["hrrr"], "storage", key_grammar=grammar, ignore=[".*"]))
        assert permissive.kind(key) is KeyKind.FOREIGN
        assert permissive.match(key) is None
    for key in ["a", "a/b.c", ".hidden", "a/..b", "YEAR=2024/x", "a b/c:d+e", "é/x", "k" * 1024]:
        assert is_safe_key(key)


STORE: dict[str, Any] = {"match": {"product": "ABI-L1b-RadM"}, "name": "G{satellite}_{name}", "along": "t"}


def name_of(contract: DatasetContract, file: str) -> str | None:
    product = file.partition("-M6")[0].removeprefix("OR_").rstrip("12")
    hour = file.partition("_s2025152")[2][:2]
    match = KeyGrammarReader(contract).match(f"{product}/2025/152/{hour}/{file}")
    names = (store.store_of(match.groups, match.start.hour) for store in contract.virtual)
    return next((name for name in names if name is not None), None)


def test_a_virtual_store_has_one_product_band_and_sector(contracts: ContractRegistry) -> None:
    for product, hour, name in [
        ("ABI-L1b-RadM1-M6C13", "23", "G19_ABI-L1b-RadM1_C13"),
        ("ABI-L1b-RadM2-M6C02", "00", "G19_ABI-L1b-RadM2_C02_00h"),
        ("ABI-L1b-RadC-M6C13", "05", "G19_ABI-L1b-RadC_C13_00h"),
        ("ABI-L1b-RadC-M6C13", "06", "G19_ABI-L1b-RadC_C13_06h"),
        ("ABI-L2-MCMIPM1-M6", "06", "G19_ABI-L2-MCMIPM1"),
        ("ABI-L2-CMIPF-M6C07", "23", "G19_ABI-L2-CMIPF_C07_23h"),
        # Bands finer than 2 km.
        ("ABI-L2-CMIPF-M6C02", "23", None),
        ("ABI-L2-CMIPF-M6C05", "23", None),
        ("ABI-L2-MCMIPF-M6", "12", "G19_ABI-L2-MCMIPF_12h"),
        ("ABI-L2-LSTC-M6", "12", "G19_ABI-L2-LSTC"),
        # Points, and a grid in degrees.
        ("ABI-L2-DMWF-M6C07", "12", None),
        ("ABI-L2-DSRF-M6", "12", None),
    ]:
        stamps = f"G19_s2025152{hour}00000_e2025152{hour}00059_c2025152{hour}00099"
        assert name_of(contracts["goes-abi"], f"OR_{product}_{stamps}.nc") == name


def test_an_object_whose_virtual_store_would_have_an_invalid_name_has_no_store() -> None:
    store = VirtualStore.model_validate({**STORE, "match": {}, "name": "{name}"})
    assert store.store_of({"name": "ABI.1"}, 0) == "ABI.1"
    for bad in ("..", "a/b", "a b", "", "é", "a" * 101):
        assert store.store_of({"name": bad}, 0) is None


def test_a_contradiction_in_the_declaration_of_virtual_stores_is_refused(contracts: ContractRegistry) -> None:
    hrrr_store = {"match": {"product": "sfc"}, "name": "{product}_{cycle}", "along": "valid_time"}
    restricted = {**contracts["goes-abi"].governance.model_dump(exclude_unset=True), "access": "restricted"}
    for dataset, changes, reason in [
        *(
            ("goes-abi", {"virtual": [{**STORE, **wrong}]}, reason)
            for wrong, reason in [
                ({"name": "../{name}"}, "name"), ({"name": "a/b"}, "name"), ({"along": "a b"}, "along"),
                ({"hours": 5}, "hours"), ({"match": {"product": "("}}, "a regular expression"),
                ({"other": 1}, "other"), ({"name": "{channels}"}, r"virtual \['channels'\]"),
                ({"fields": ["TMP .*"]}, r"virtual\.fields are required for GRIB2"),
            ]
        ),
        ("goes-abi", {"governance": restricted}, "anyone may read"),
        ("goes-abi", {"governance": restricted, "virtual": []}, None),
        ("hrrr", {"virtual": [hrrr_store]}, r"virtual\.fields are required for GRIB2"),
        ("hrrr", {"virtual": [{**hrrr_store, "fields": ["TMP ("]}]}, "a regular expression"),
        ("hrrr", {"virtual": [{**hrrr_store, "fields": ["TMP .*"]}]}, None),
    ]:  # fmt: skip
        with nullcontext() if reason is None else pytest.raises(ValidationError, match=reason):
            DatasetContract.model_validate({**contracts[dataset].model_dump(exclude_unset=True), **changes})


DAY = date(2025, 12, 3)
GOES, LEVEL_3 = "noaa-goes19", "unidata-nexrad-level3"
FOLDER = "data/v2.1/avhrr/202512"
STAMPS = "G19_s20253370501176_e20253370503549_c20253370504000.nc"
LIGHTNING = "GLM-L2-LCFA/2025/337/05/OR_GLM-L2-LCFA_G19_s20253370501200_e20253370501400_c20253370501413.nc"
KINDS: list[tuple[str, str, str | None, KeyKind]] = [
    # bucket, key, dataset, kind
    (BUCKET, f"{FOLDER}/oisst-avhrr-v02r01.20251203.nc", "ocean", KeyKind.DATA),
    (BUCKET, f"{FOLDER}/oisst-avhrr-v02r01.20251203_preliminary.nc", "ocean", KeyKind.DATA),
    (BUCKET, "index.html", "ocean", KeyKind.IGNORED),
    # Another month's folder, another product, no day, another suffix.
    (BUCKET, "data/v2.1/avhrr/202511/oisst-avhrr-v02r01.20251203.nc", "ocean", KeyKind.FOREIGN),
    (BUCKET, f"{FOLDER}/oisst-amsr-v02r01.20251203.nc", "ocean", KeyKind.FOREIGN),
    (BUCKET, f"{FOLDER}/oisst-avhrr-v02r01.202512.nc", "ocean", KeyKind.FOREIGN),
    (BUCKET, f"{FOLDER}/oisst-avhrr-v02r01.20251203_preliminary.nc.md5", "ocean", KeyKind.FOREIGN),
    # An unknown product is foreign, as are a mesoscale scan without its region and another scan's folder.
    (GOES, f"ABI-L2-NEWF/2025/337/05/OR_ABI-L2-NEWF-M6_{STAMPS}", "goes-abi", KeyKind.FOREIGN),
    (GOES, f"ABI-L2-ACMM/2025/337/05/OR_ABI-L2-ACMM-M6_{STAMPS}", "goes-abi", KeyKind.FOREIGN),
    (GOES, f"ABI-L2-ACMC/2025/337/05/OR_ABI-L2-ACMC1-M6_{STAMPS}", "goes-abi", KeyKind.FOREIGN),
    (GOES, f"ABI-L2-ACMC/2025/337/05/OR_ABI-L2-ACMF-M6_{STAMPS}", "goes-abi", KeyKind.FOREIGN),
    # The bucket of a satellite has a contract for each instrument.
    (GOES, LIGHTNING, "goes-glm", KeyKind.DATA),
    (GOES, LIGHTNING.replace("_s2025", "_x2025"), "goes-glm", KeyKind.FOREIGN),
    (GOES, "SUVI-L1b-Fe094/2025/337/05/OR_SUVI-L1b-Fe094_G19.nc", "goes-abi", KeyKind.IGNORED),
    (GOES, "ABI-Flood-Day/2025/12/03/x.nc", "goes-abi", KeyKind.IGNORED),
    (GOES, "GLM-L3-Other/2025/337/05/x.nc", None, KeyKind.FOREIGN),
    # Keys by upload_nids.py for the real status message; the program reads angles as days and seconds.
    (LEVEL_3, "TLX_GSM_1970_03_02_08_11_31", "nexrad-l3", KeyKind.IGNORED),
    (LEVEL_3, "TLX_GSM_1969_12_31_08_11_31", "nexrad-l3", KeyKind.IGNORED),
    (LEVEL_3, "TLX_N0B_2106_05_06_21_14_03", "nexrad-l3", KeyKind.FOREIGN),
    (LEVEL_3, "TLX_N0B_2024_05_06_21_14", "nexrad-l3", KeyKind.FOREIGN),
    (LEVEL_3, "MCI_TZ0_2026_08_01_17_27_13", "nexrad-l3", KeyKind.DATA),
]


def test_each_key_is_routed_to_its_dataset_with_its_kind(contracts: ContractRegistry) -> None:
    for bucket, key, dataset, kind in KINDS:
        route = contracts.route(bucket=bucket, key=key)
        assert (route.contract and route.contract.id, route.kind) == (dataset, kind), key


@pytest.mark.clause("OPR-14")
def test_a_preliminary_analysis_never_overwrites_the_final_one(contracts: ContractRegistry) -> None:
    objects = [Specimen(dataset="ocean", key=key, content=content) for _, key, content in oisst_samples(DAY, 2)]
    contract, grammar = contracts["ocean"], contracts.grammars["ocean"]
    preliminary, final = (stac_register(unit, contract=contract, grammar=grammar) for unit in extracted(objects))
    assert preliminary.item_id == final.item_id == "oisst-avhrr-v02r01.20251203"
    assert is_older(preliminary, final)
    assert not is_older(final, preliminary)
    assert not is_older(final, final)
    statuses = [result.item["properties"]["oisst:status"] for result in (preliminary, final)]
    assert statuses == ["preliminary", "final"]
