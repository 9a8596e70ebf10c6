"""The DCAT export: each Collection is a dcat:Dataset, with the run-state of its latest run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
import rdflib
from hypothesis import given
from hypothesis import strategies as st
from rdflib.namespace import DCAT, DCTERMS, FOAF, PROV, RDF, RDFS, SKOS
from shapely import from_wkt

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ContractError
from kfm_dagster.exports import dcat
from kfm_dagster.exports.dcat import export_dcat, wkt
from kfm_dagster.ingest.nodes import operators
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster_tests.exports.conftest import SECOND_RUN
from kfm_dagster_tests.integration import chain

ADMS = rdflib.Namespace("http://www.w3.org/ns/adms#")
KFM = rdflib.Namespace("https://kfm.dev/ns/nodd#")
GEO = rdflib.Namespace("http://www.opengis.net/ont/geosparql#")
VCARD = rdflib.Namespace("http://www.w3.org/2006/vcard/ns#")
TOPICS = "http://inspire.ec.europa.eu/metadata-codelist/TopicCategory"
FREQUENCY = "http://publications.europa.eu/resource/authority/frequency"
DATASET = rdflib.URIRef("urn:kfm:collection:nexrad-l2")


def export(
    pipeline: Pipeline, folder: Path, registry: ContractRegistry | None = None, *, catalog: str = "", contact: str = ""
) -> Path:
    return export_dcat(
        pipeline.database,
        registry or pipeline.registry,
        pipeline.stages.run_states,
        catalog=catalog or pipeline.settings.catalog,
        folder=folder,
        contact=contact,
    )


def read(file: Path) -> rdflib.Graph:
    return rdflib.Graph().parse(data=file.read_text(encoding="utf-8"), format="json-ld")


@pytest.mark.clause("RSP-14")
def test_every_collection_is_a_dataset_with_the_properties_of_dcat(pipeline: Pipeline, tmp_path: Path) -> None:
    file = export(pipeline, tmp_path / "out")
    graph, content = read(file), file.read_bytes()
    assert isinstance(json.loads(content)["@context"], dict), "a string would be fetched"
    # The same database gives the same bytes, and an export replaces an earlier one.
    assert [export(pipeline, tmp_path / name).read_bytes() for name in ("second", "out")] == [content] * 2
    [catalog] = graph.subjects(RDF.type, DCAT.Catalog)
    assert list(graph.objects(catalog, DCAT.dataset)) == [DATASET] == list(graph.subjects(RDF.type, DCAT.Dataset))
    contract = pipeline.registry["nexrad-l2"]
    assert str(graph.value(DATASET, DCTERMS.title)) == contract.metadata.title
    assert str(graph.value(DATASET, DCTERMS.description)) == contract.metadata.description
    assert str(graph.value(DATASET, DCTERMS.identifier)) == "nexrad-l2"
    assert graph.value(DATASET, DCTERMS.license) == rdflib.URIRef("https://spdx.org/licenses/CC0-1.0")
    assert {str(word) for word in graph.objects(DATASET, DCAT.keyword)} == set(contract.stac.keywords)
    for party in (DCTERMS.publisher, DCTERMS.creator):
        assert graph.value(graph.value(DATASET, party), FOAF.name)
    period = graph.value(DATASET, DCTERMS.temporal)
    assert str(graph.value(period, DCAT.startDate)).startswith(chain.DAY.isoformat())
    assert graph.value(period, DCAT.startDate).datatype == rdflib.XSD.dateTime
    box = graph.value(graph.value(DATASET, DCTERMS.spatial), DCAT.bbox)
    assert box.datatype == GEO.wktLiteral
    assert from_wkt(str(box)).is_valid
    version = str(graph.value(DATASET, rdflib.URIRef(f"{DCAT}version")))
    assert datetime.fromisoformat(version) == graph.value(DATASET, DCTERMS.modified).toPython()
    assert "2 Items" in str(graph.value(DATASET, ADMS.versionNotes))
    themes = {str(graph.value(theme, SKOS.prefLabel)): str(theme) for theme in graph.objects(DATASET, DCAT.theme)}
    assert themes.keys() == {"radar", "Climatology, meteorology, atmosphere"}
    assert f"{TOPICS}/climatologyMeteorologyAtmosphere" in themes.values()
    frequency = graph.value(DATASET, DCTERMS.accrualPeriodicity)
    assert (frequency, RDF.type, DCTERMS.Frequency) in graph
    assert (str(frequency), str(graph.value(frequency, RDFS.label))) == (f"{FREQUENCY}/UPDATE_CONT", "R/PT1S")
    contact = graph.value(DATASET, DCAT.contactPoint)
    assert (contact, RDF.type, VCARD.Organization) in graph
    assert str(graph.value(contact, VCARD.fn)) == "NOAA NWS"
    assert graph.value(contact, VCARD.hasURL) == rdflib.URIRef("https://www.roc.noaa.gov")


@pytest.mark.clause("RSP-14")
def test_a_dataset_has_its_distributions_and_the_run_state_of_its_latest_run(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    graph = read(export(pipeline, tmp_path / "out"))
    media_types = {
        str(graph.value(item, DCAT.accessURL)): str(graph.value(item, DCAT.mediaType)).rpartition("media-types/")[2]
        for item in graph.objects(DATASET, DCAT.distribution)
        if (item, RDF.type, DCAT.Distribution) in graph
    }
    collection = Path(pipeline.settings.catalog) / "nexrad-l2" / "collection.json"
    assert collection.is_file()
    assert media_types == {
        collection.as_uri(): "application/json",
        "https://unidata-nexrad-level2.s3.us-east-1.amazonaws.com/": "application/octet-stream",
    }
    [data] = graph.subjects(DCTERMS.identifier, rdflib.Literal("s3://unidata-nexrad-level2/"))
    for item in graph.objects(DATASET, DCAT.distribution):
        assert graph.value(item, DCTERMS.license) == rdflib.URIRef("https://spdx.org/licenses/CC0-1.0")
        file_format = graph.value(item, DCTERMS["format"])
        assert (file_format, RDF.type, DCTERMS.MediaTypeOrExtent) in graph
        assert str(graph.value(file_format, RDFS.label)) == ("Level II archive volume" if item == data else "JSON")
    note = graph.value(DATASET, DCTERMS.provenance)
    assert (note, RDF.type, DCTERMS.ProvenanceStatement) in graph
    assert SECOND_RUN in str(graph.value(note, RDFS.label))
    assert graph.value(DATASET, PROV.wasGeneratedBy) == rdflib.URIRef(f"urn:uuid:{SECOND_RUN}")
    exported = {
        (str(graph.value(state, KFM.dataset_id)), str(graph.value(state, KFM.run_id)),
         str(graph.value(state, KFM.inputs_hash)), str(graph.value(state, KFM.outcome)))
        for state in graph.objects(note, KFM.run_state)
    }  # fmt: skip
    recorded = pipeline.stages.run_states.of_run(SECOND_RUN)
    assert exported == {(state.dataset_id, SECOND_RUN, state.inputs_hash, state.outcome.value) for state in recorded}
    assert len(exported) == len(operators())


def test_a_published_catalog_has_its_public_address_and_contact(pipeline: Pipeline, tmp_path: Path) -> None:
    address, contact = "https://weather.example.org/stac/", "mailto:catalog@example.org"
    graph = read(export(pipeline, tmp_path / "out", catalog=address, contact=contact))
    urls = {str(url) for url in graph.objects(None, DCAT.accessURL)}
    assert f"{address}nexrad-l2/collection.json" in urls
    assert all(url.startswith("https://") for url in urls)
    [catalog] = graph.subjects(RDF.type, DCAT.Catalog)
    for subject in (catalog, DATASET):
        [point] = graph.objects(subject, DCAT.contactPoint)
        assert graph.value(point, VCARD.hasEmail) == rdflib.URIRef(contact)


def test_the_update_frequency_follows_from_the_contract(contracts: ContractRegistry) -> None:
    for dataset, code, interval in (
        ("goes-abi", "UPDATE_CONT", "R/PT1S"),
        ("hrrr", "UPDATE_CONT", "R/PT1S"),
        ("gfs", None, "R/PT6H"),
        ("ocean", "DAILY", "R/P1D"),
        ("surface-obs", "NEVER", "never"),
    ):
        frequency = dcat.frequency(contracts[dataset])["accrualPeriodicity"]
        assert frequency["label"] == interval, dataset
        assert (frequency["id"] == f"{FREQUENCY}/{code}") == (code is not None)


def test_every_contract_has_themes_contact_and_distributions(contracts: ContractRegistry) -> None:
    for contract in contracts:
        assert len(dcat.themes(contract)["theme"]) == 2, contract.id
        assert dcat.producers_contact(contract), contract.id
        for distribution in dcat.distributions(
            "urn:x", contract.stac.collection, contract, catalog="https://a.example"
        ):
            assert distribution["accessURL"].startswith("https://"), contract.id
            assert distribution.keys() >= {"title", "mediaType", "format", "license"}, contract.id


@pytest.mark.clause("RSP-13")
def test_a_governed_dataset_s_run_state_does_not_name_the_dataset(
    pipeline: Pipeline, governed: ContractRegistry, tmp_path: Path
) -> None:
    graph = read(export(pipeline, tmp_path / "out", governed))
    named = {str(name) for name in graph.objects(None, KFM.dataset_id)}
    assert named == {f"{governed['nexrad-l2'].public_id}.{operator}" for operator in operators()}
    assert "nexrad-l2." not in str(graph.value(DATASET, ADMS.versionNotes))


def test_a_collection_without_a_contract_is_refused_before_any_file_is_written(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    others = ContractRegistry.of(contract for contract in pipeline.registry if contract.stac.collection != "nexrad-l2")
    with pytest.raises(ContractError, match="nexrad-l2"):
        export(pipeline, tmp_path / "out", others)
    assert not (tmp_path / "out").exists()


@given(st.floats(-180, 180), st.floats(-90, 89), st.floats(-180, 180), st.floats(0.001, 1))
def test_a_box_is_valid_wkt_inside_the_world(west: float, south: float, east: float, height: float) -> None:
    shape = from_wkt(wkt((west, south, east, south + height)))
    assert shape.geom_type == ("Polygon" if west <= east else "MultiPolygon")
    bounds = shape.bounds
    assert bounds[0] >= -180
    assert bounds[2] <= 180
    width = east - west if west <= east else east - west + 360
    assert shape.area == pytest.approx(width * height, rel=1e-6, abs=1e-9)
