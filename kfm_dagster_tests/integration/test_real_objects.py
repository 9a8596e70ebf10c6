"""Every real object through the whole chain: the catalog says what independent readers say, and validators agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyproj
import pystac
import pytest
import shapely.geometry

from kfm_dagster.catalog.validation import validate_document, validate_item
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.readers.nexrad_sites import sites
from kfm_dagster.readers.registry import READERS
from kfm_dagster_tests.catalog.official import NOT_HERE
from kfm_dagster_tests.catalog.trees import assert_consistent, walk
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import open_pipeline, partitions_of, run_chain
from kfm_dagster_tests.readers.nexrad_bytes import PYART_MOMENTS
from kfm_dagster_tests.readers.truth.grib2 import held_times

EXPECTED = {
    "gfs": 2, "goes-abi": 16, "goes-glm": 9, "hrrr": 4, "mrms": 5, "nexrad-l2": 9, "ocean": 1, "surface-obs": 1
}  # fmt: skip
"""Objects of the supported datasets in the folder of real data."""
IN_PIECES = "nexrad-l2-chunks"
"""Its objects share an Item; `test_nexrad_chunks.py` has them."""
MICRODEGREE = 1e-6
"""Coordinates stand in Items with six decimals."""
SPEC = Path(__file__).resolve().parents[2] / "docs" / "spec"

Items = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def ingested(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """A pipeline that has ingested every real object of the supported datasets, one run a day, found by listing."""
    root = shared_data / "objects"
    pipeline = open_pipeline(tmp_path_factory.mktemp("real"), root)
    for number, (dataset, partition) in enumerate(days_of(root, pipeline.registry)):
        run_chain(pipeline, dataset, partition, f"run-{number}")
    yield pipeline
    pipeline.close()


def days_of(root: Path, registry: ContractRegistry) -> dict[tuple[str, str], list[str]]:
    """The objects that have an Item each, by dataset and day."""
    return {name: uris for name, uris in partitions_of(root, registry).items() if name[0] != IN_PIECES}


@pytest.fixture(scope="module")
def catalog(ingested: Pipeline) -> Path:
    return Path(ingested.settings.catalog)


@pytest.fixture(scope="module")
def lineage(ingested: Pipeline) -> Path:
    return Path(ingested.settings.lineage)


@pytest.fixture(scope="module")
def items(catalog: Path) -> Items:
    return traces.items(catalog)


def with_reference(
    items: Items, reference: Mapping[str, Any], collection: str | None = None
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Item, its properties, and the independent reader's answers of every real object of a collection, or of all."""
    found = [
        (item, item["properties"], reference["objects/" + uri.removeprefix("s3://")])
        for uri, item in items.items()
        if collection in {None, item["collection"]}
    ]
    assert found
    return found


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.clause("BEY-03")
def test_every_real_object_succeeds(ingested: Pipeline, items: Items, shared_data: Path) -> None:
    expected = {uri for uris in days_of(shared_data / "objects", ingested.registry).values() for uri in uris}
    records = traces.records(ingested)
    assert set(records) == expected == set(items)
    assert {uri: record.last_error_code for uri, record in records.items() if record.status != "succeeded"} == {}
    counts = {dataset: by_status[Status.SUCCEEDED] for dataset, by_status in ingested.ledger.counts().items()}
    assert counts == EXPECTED
    assert {record.attempts for record in records.values()} == {1}


@pytest.mark.clause("OPR-06")
def test_goes_items_equal_the_independent_reader(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference, "goes-abi"):
        answers = entry["reference"]
        attributes, extent = answers["attrs"], answers["geospatial_lat_lon_extent"]
        assert_goes_granule(properties, answers, instrument="abi")
        assert properties["goes:image-type"].casefold() == attributes["scene_id"].casefold()
        assert properties["goes:timeline"] == attributes["timeline_id"]
        assert f"ABI Mode {properties['goes:mode']}" == attributes["timeline_id"]
        assert properties["goes:extent"] == pytest.approx(
            [extent[f"geospatial_{side}"] for side in (
                "westbound_longitude", "southbound_latitude", "eastbound_longitude", "northbound_latitude"
            )],
            abs=MICRODEGREE,
        )  # fmt: skip
        assert_goes_bands(item, answers)
        assert_goes_grid(properties, answers)


@pytest.mark.clause("OPR-06", "OPR-14")
def test_lightning_items_equal_the_independent_reader(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference, "goes-glm"):
        answers = entry["reference"]
        assert_goes_granule(properties, answers, instrument="glm")
        for name in ("event", "group", "flash"):
            assert properties[f"glm:{name}-count"] == answers[f"{name}_count"]
        (north, south), (west, east) = answers["lat_field_of_view_bounds"], answers["lon_field_of_view_bounds"]
        sides = [(edge + 180) % 360 - 180 for edge in (west, east)]
        assert item["bbox"] == pytest.approx([sides[0], south, sides[1], north], abs=MICRODEGREE)


@pytest.mark.clause("OPR-17")
def test_the_box_of_every_item_is_the_bounds_of_its_geometry(items: Items) -> None:
    assert len(items) == sum(EXPECTED.values())
    for uri, item in items.items():
        bounds = [part.bounds for part in parts_of(item["geometry"])]
        west, east = min(bound[0] for bound in bounds), max(bound[2] for bound in bounds)
        if len(bounds) > 1:
            assert (west, east) == (-180, 180)
            west = min(bound[0] for bound in bounds if bound[2] == 180)
            east = max(bound[2] for bound in bounds if bound[0] == -180)
        south, north = min(bound[1] for bound in bounds), max(bound[3] for bound in bounds)
        assert item["bbox"] == [west, south, east, north], uri


@pytest.mark.clause("OPR-06")
def test_readers_declare_every_property_that_they_give(items: Items, contracts: ContractRegistry) -> None:
    for item in items.values():
        contract = next(one for one in contracts if one.stac.collection == item["collection"])
        given = {name for name in item["properties"] if not name.startswith("kfm:")} - {"license", "storage:schemes"}
        reader = READERS[contract.metadata_extract.reader]
        assert {name for name in given if not reader.gives(name)} == set()
        assert not reader.gives("colour")
        assert not reader.gives("goes:colour")


def times_of(properties: Mapping[str, Any]) -> tuple[datetime, ...]:
    """Start, end and datetime; an instant has its datetime alone."""
    assert ("start_datetime" in properties) == ("end_datetime" in properties)
    names = ("start_datetime", "end_datetime", "datetime")
    return tuple(moment(properties.get(name, properties["datetime"])) for name in names)


def parts_of(geometry: Mapping[str, Any]) -> list[Any]:
    found = shapely.geometry.shape(geometry)
    return list(getattr(found, "geoms", [found]))


def assert_goes_granule(properties: Mapping[str, Any], answers: Mapping[str, Any], *, instrument: str) -> None:
    """What every GOES-R file says."""
    attributes = answers["attrs"]
    times = (properties["start_datetime"], properties["end_datetime"], properties["datetime"])
    start, end = moment(attributes["time_coverage_start"]), moment(attributes["time_coverage_end"])
    assert tuple(map(moment, times)) == (start, end, start)
    assert properties["platform"] == f"goes-{attributes['platform_ID'].removeprefix('G')}"
    assert properties["instruments"] == [instrument]
    assert properties["goes:orbital-slot"] == attributes["orbital_slot"]
    assert properties["goes:production-site"] == attributes["production_site"]
    assert properties["goes:uuid"] == attributes["id"]
    assert moment(properties["goes:created"]) == moment(attributes["date_created"])
    assert properties["processing:level"] == attributes["processing_level"].rsplit(" ", 1)[1]
    assert properties["gsd"] == float(attributes["spatial_resolution"].split("km")[0]) * 1000
    assert properties["goes:percent-uncorrectable-l0-errors"] == answers["percent_uncorrectable_L0_errors"]


def assert_goes_bands(item: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """Channels and their wavelengths in micrometres, which the file has as 32-bit floats; without any, its images."""
    bands = item["assets"]["data"]["bands"]
    channels = [f"C{number:02d}" for number in answers.get("band_id", [])]
    assert [band["name"] for band in bands] == (channels or [*item["properties"]["cube:variables"]])
    assert {"data_type", "unit"} <= set.intersection(*map(set, bands))
    wavelengths = [band["eo:center_wavelength"] for band in bands if "eo:center_wavelength" in band]
    assert wavelengths == pytest.approx(answers.get("band_wavelength", []), rel=1e-6)


def assert_goes_grid(properties: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """The fixed grid: its shape, its projection, and the corner of its first pixel in metres."""
    rows, columns = properties["proj:shape"]
    assert (rows, columns) == (answers["dims"]["y"], answers["dims"]["x"])
    # The other variables' names are no part of the projection.
    expected = {name: value for name, value in answers["goes_imager_projection"].items() if name != "coordinates"}
    crs = pyproj.CRS.from_wkt(properties["proj:wkt2"]).to_cf()
    assert {name: crs[name] for name in expected if not isinstance(expected[name], float)} == {
        name: value for name, value in expected.items() if not isinstance(value, float)
    }
    for name, value in expected.items():
        if isinstance(value, float):
            assert crs[name] == pytest.approx(value, rel=1e-9), name
    step_x, _, west, _, step_y, north = properties["proj:transform"]
    height = expected["perspective_point_height"]
    (x_first, x_last), (y_first, y_last) = answers["x_first_last"], answers["y_first_last"]
    # Scan angles are packed as 16-bit integers and unpacked to 32-bit floats by the reader: a hundredth of a pixel.
    assert step_x == pytest.approx((x_last - x_first) * height / (columns - 1), rel=1e-5)
    assert step_y == pytest.approx((y_last - y_first) * height / (rows - 1), rel=1e-5)
    assert west == pytest.approx(x_first * height - step_x / 2, abs=step_x / 100)
    assert north == pytest.approx(y_first * height - step_y / 2, abs=-step_y / 100)


@pytest.mark.clause("OPR-06", "OPR-15", "OPR-16")
def test_nexrad_items_equal_the_independent_reader(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference, "nexrad-l2"):
        answers = entry["reference"]
        start = min(moment(answers[name]) for name in ("volume_header_time", "first_ray_time"))
        assert moment(properties["start_datetime"]) == moment(properties["datetime"]) == start
        assert abs(moment(properties["end_datetime"]) - moment(answers["last_ray_time"])) < timedelta(seconds=1)
        assert (properties["platform"], properties["instruments"]) == ("wsr-88d", ["wsr-88d"])
        assert properties["nexrad:site"] == (answers["icao_header"] or item["id"][:4])
        assert str(properties["nexrad:message-type"]) == answers["msg_type"]
        assert properties["nexrad:archive-version"] == answers["uncompressed_magic"].rstrip(".")
        assert properties["nexrad:volume-number"] == int(answers["extension"])
        assert set(properties["nexrad:moments"]) == PYART_MOMENTS[Path(entry["path"]).name]
        if "nexrad:elevations" in properties:
            assert properties["nexrad:elevations"] == sorted(set(answers["target_elev_deg"]))
        assert (properties["nexrad:compression"] == "gzip") == answers["gzipped"]
        # Before 2008 message 5 is absent or says 0; then the radials name the pattern.
        assert properties["nexrad:vcp"] == answers["vcp"] or not answers["vcp"]
        assert_nexrad_position(item, answers)


def assert_nexrad_position(item: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """The radar stands where its volume says, or where the site table says when the volume does not."""
    properties = item["properties"]
    site = sites()[properties["nexrad:site"]]
    in_file = answers["lat"] is not None
    expected = (
        (answers["lat"], answers["lon"], answers["alt_m"])
        if in_file
        else (site.latitude, site.longitude, site.height_m)
    )
    place = tuple(properties[f"nexrad:{name}"] for name in ("latitude", "longitude", "height-m"))
    assert place == pytest.approx(expected, abs=MICRODEGREE)
    assert properties["nexrad:position-source"] == ("volume data block" if in_file else "site table")
    west, south, east, north = item["bbox"]
    # 460 km north and south of the radar, in degrees of latitude (about 111 km each).
    assert (north - south) * 111.0 == pytest.approx(2 * 460, rel=0.005)
    assert ((west + east) / 2, (south + north) / 2) == pytest.approx((expected[1], expected[0]), abs=0.01)


@pytest.mark.clause("OPR-06")
def test_hrrr_items_equal_the_independent_reader(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference, "hrrr"):
        answers = entry["reference"]
        field, grid = answers["fields"][0], next(iter(answers["grids"].values()))
        [run] = map(moment, answers["reference_times"])
        assert moment(properties["forecast:reference_datetime"]) == run
        assert times_of(properties) == held_times(answers["fields"], entry["key"])
        lead = (moment(properties["datetime"]) - run) // timedelta(hours=1)
        assert properties["forecast:horizon"] == f"PT{lead}H"
        assert properties["hrrr:lead-hours"] == lead
        assert properties["grib:message-count"] == answers["n_fields"]
        assert properties["grib:edition"] == field["edition"]
        assert properties["grib:discipline"] == field["discipline"]
        assert properties["grib:centre"] == field["centre"]
        assert properties["grib:subcentre"] == field["subCentre"]
        assert properties["grib:grid-template"] == field["gdt"]
        assert properties["proj:shape"] == [grid["Nj"], grid["Ni"]]
        assert properties["proj:transform"][0] == -properties["proj:transform"][4] == grid["DxInMetres"]
        assert item["bbox"] == pytest.approx(
            [grid["lon_min_180"], grid["lat_min"], grid["lon_max_180"], grid["lat_max"]], abs=MICRODEGREE
        )
        crs = pyproj.CRS.from_wkt(properties["proj:wkt2"]).to_cf()
        assert crs["grid_mapping_name"] == "lambert_conformal_conic"
        assert crs["standard_parallel"] == (grid["Latin1InDegrees"], grid["Latin2InDegrees"])
        assert crs["longitude_of_central_meridian"] % 360 == grid["LoVInDegrees"]
        assert_first_point(properties, grid)


@pytest.mark.clause("OPR-06", "OPR-14")
def test_surface_items_equal_the_independent_reader(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference, "surface-obs"):
        answers = entry["reference"]
        first, last = moment(answers["first"]), moment(answers["last"])
        assert item["id"] == f"{answers['usaf']}-{answers['wban']}-{first.year}"
        assert item["geometry"] == {"type": "Point", "coordinates": [answers["lon"], answers["lat"]]}
        times = (properties["start_datetime"], properties["end_datetime"], properties["datetime"])
        assert tuple(map(moment, times)) == (first, last, first)
        assert properties["isd:records"] == answers["records"]
        assert properties["isd:elevation-m"] == answers["elevation_m"]
        assert properties["isd:report-types"] == [text.strip() for text in answers["report_types"]]
        assert [[one["latitude"], one["longitude"]] for one in properties["isd:positions"]] == answers["positions"]


@pytest.mark.clause("OPR-06", "OPR-14")
@pytest.mark.parametrize("dataset", ["gfs", "mrms"])
def test_gfs_and_mrms_items_equal_the_independent_reader(
    items: Items, reference: dict[str, Any], dataset: str, contracts: ContractRegistry
) -> None:
    for item, properties, entry in with_reference(items, reference, dataset):
        answers = entry["reference"]
        field = answers["fields"][0]
        grid = answers["grids"][field["gridSha"]]
        assert times_of(properties) == held_times(answers["fields"], entry["key"])
        match = contracts.grammars[dataset].match(entry["key"])
        assert match is not None
        for name in {"model", "product", "region", "resolution", "level"} & match.groups.keys():
            assert properties[f"{dataset}:{name}"] == match.groups[name]
        assert properties["grib:message-count"] == answers["n_fields"]
        assert (properties["grib:discipline"], properties["grib:grid-template"]) == (field["discipline"], field["gdt"])
        assert (properties["grib:centre"], properties["grib:subcentre"]) == (field["centre"], field["subCentre"])
        assert properties["proj:shape"] == [grid["Nj"], grid["Ni"]]
        width, _, west, _, height, north = properties["proj:transform"]
        assert width == pytest.approx(grid["iDirectionIncrementInDegrees"], abs=MICRODEGREE)
        # GDAL begins a grid round the earth in the west, whatever column the file has first.
        turned = 180.0 if grid["Ni"] * width == pytest.approx(360) else 0.0
        first = (north + height / 2, (west + width / 2 + turned) % 360)
        assert first == pytest.approx(tuple(grid["first"]), abs=MICRODEGREE)
        if width * grid["Ni"] < 360:
            box = [grid["lon_min_180"], grid["lat_min"], grid["lon_max_180"], grid["lat_max"]]
            assert item["bbox"] == pytest.approx(box, abs=MICRODEGREE)
        else:
            assert item["bbox"] == [-180, grid["lat_min"], 180, grid["lat_max"]]


def assert_first_point(properties: Mapping[str, Any], grid: Mapping[str, Any]) -> None:
    """The grid's first point, which is its south-west one, lies half a step inside the corner of the projected box."""
    step, _, west, _, _, north = properties["proj:transform"]
    rows = properties["proj:shape"][0]
    to_degrees = pyproj.Transformer.from_crs(
        pyproj.CRS.from_wkt(properties["proj:wkt2"]), pyproj.CRS("+proj=longlat +R=6371229"), always_xy=True
    )
    longitude, latitude = to_degrees.transform(west + step / 2, north - step * (rows - 0.5))
    assert (latitude, longitude % 360) == pytest.approx(tuple(grid["first"]), abs=1e-5)


@pytest.mark.clause("OPR-06", "OPR-05")
def test_the_data_asset_names_the_object_its_size_and_its_checksum(items: Items, reference: dict[str, Any]) -> None:
    for item, properties, entry in with_reference(items, reference):
        asset = item["assets"]["data"]
        assert asset["file:size"] == entry["size"]
        # Multihash of an MD5: code 0xd5 as a varint, 16 bytes.
        assert asset["file:checksum"] == "d50110" + entry["md5"]
        issues = [issue["code"] for issue in properties.get("kfm:issues", [])]
        # Of the models' objects in the folder one has its index; the others are suspect, and their Items say so.
        unindexed = properties["kfm:dataset"] in {"gfs", "hrrr"} and "index" not in item["assets"]
        assert issues == ([MetadataIssue.SIDECAR_MISSING] if unindexed else [])


@pytest.fixture(scope="module")
def official(shared_data: Path) -> dict[str, Any]:
    """Validators of the official schemas by address: STAC core as pystac ships it, and the extensions."""
    shipped = resources.files("pystac.validation.jsonschemas")
    schemas: dict[str, Any] = {}
    for entry in (shipped / "stac-spec" / "v1.1.0").iterdir():
        if entry.name.endswith(".json"):
            document = json.loads(entry.read_text(encoding="utf-8"))
            # The $id of common.json lacks its dot.
            schemas[document["$id"].rstrip("#").replace("commonjson", "common.json")] = document
    for name in ("Feature", "Geometry"):
        text = (shipped / "geojson" / f"{name}.json").read_text(encoding="utf-8")
        schemas[f"https://geojson.org/schema/{name}.json"] = json.loads(text)
    for path in (shared_data / "schemas" / "stac-extensions").rglob("schema.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        schemas[document["$id"].rstrip("#")] = document
    # Items say WKT 2; PROJJSON is not among the local schemas, so an Item that used it would have to fail.
    schemas["https://proj.org/schemas/v0.7/projjson.schema.json"] = {"not": {}}
    registry = jsonschema_rs.Registry(list(schemas.items()), draft=jsonschema_rs.Draft7)
    return {
        address: jsonschema_rs.Draft7Validator(document, registry=registry, validate_formats=True, offline=True)
        for address, document in schemas.items()
    }


@pytest.mark.clause("OPR-08")
def test_root_to_leaf_every_document_fits_core_extensions_and_profile(
    catalog: Path, official: dict[str, Any], items: Items
) -> None:
    assert_consistent(catalog)
    core = {"Catalog": "catalog-spec/json-schema/catalog", "Collection": "collection-spec/json-schema/collection"}
    used: Counter[str] = Counter()
    for name, document in walk(catalog).items():
        kind = core.get(document["type"], "item-spec/json-schema/item")
        addresses = [f"https://schemas.stacspec.org/v1.1.0/{kind}.json", *document.get("stac_extensions", ())]
        for address in addresses:
            if address.split("/")[3] in NOT_HERE:
                continue
            assert [str(error) for error in official[address].iter_errors(document)] == [], (name, address)
        used.update(addresses[1:])
        reasons = validate_item(document) if document["type"] == "Feature" else validate_document(document)
        assert reasons == [], name
    extensions = {address.split("/")[3] for address in used}
    assert extensions >= {"projection", "file", "processing", "sat", "eo", "forecast"}
    assert sum(item["bbox"][0] > item["bbox"][2] for item in items.values()) == 5, "GOES-West over the antimeridian"


@pytest.mark.clause("OPR-08")
@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"proj:shape": "large"}, "projection"),
        ({"forecast:horizon": 12}, "forecast"),
        ({"sat:orbit_state": "wandering"}, "sat"),
        ({"datetime": "yesterday"}, "item-spec"),
    ],
)
def test_the_official_schemas_refuse_a_spoilt_item(
    official: dict[str, Any], items: Items, change: dict[str, Any], by: str
) -> None:
    address = next(
        address for address in official if f"/{by}/" in address and (by != "item-spec" or "item.json" in address)
    )
    name = next(iter(change))
    item = next(item for item in items.values() if name in item["properties"])
    assert official[address].is_valid(item)
    assert not official[address].is_valid({**item, "properties": {**item["properties"], **change}})


def test_pystac_opens_the_catalog_and_iterates_each_item_once(catalog: Path, items: Items) -> None:
    root = pystac.Catalog.from_file(str(catalog / "catalog.json"))
    found = Counter(item.assets["data"].href for item in root.get_items(recursive=True))
    assert found == Counter(dict.fromkeys(items, 1))
    assert {child.id for child in root.get_children()} == set(EXPECTED)
    for child in root.get_children():
        assert isinstance(child, pystac.Collection)
        [interval] = child.extent.temporal.intervals
        for item in child.get_items(recursive=True):
            assert item.datetime is not None
            assert interval[0] is not None
            assert interval[1] is not None
            assert interval[0] <= item.datetime <= interval[1]


@pytest.mark.clause("OPR-12")
def test_every_openlineage_event_fits_the_official_schemas(lineage: Path, shared_data: Path, items: Items) -> None:
    files = [*(shared_data / "schemas" / "openlineage").rglob("*.json"), *SPEC.glob("kfm-*-facet.schema.json")]
    known = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    registry = jsonschema_rs.Registry([(schema["$id"], schema) for schema in known])

    def validate(address: str, instance: Any) -> None:
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": address}
        jsonschema_rs.validator_for(schema, registry=registry, validate_formats=True, offline=True).validate(instance)

    lines = [line for path in lineage.glob("openlineage/**/*.ndjson") for line in path.read_text().splitlines()]
    for event in map(json.loads, lines):
        validate(event["schemaURL"], event)
        for holder in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
            for field in ("facets", "inputFacets", "outputFacets"):
                for facet in holder.get(field, {}).values():
                    validate(facet["_schemaURL"], facet)
    told = traces.events(lineage)
    traces.assert_once(told)
    assert Counter(source for kind, _, source, _ in told if kind == "COMPLETE") == Counter(dict.fromkeys(items, 1))
    hrefs = {where for kind, _, _, where in told if kind == "COMPLETE"}
    assert hrefs == {
        name for name, document in walk(lineage.parent / "catalog").items() if document["type"] == "Feature"
    }


@pytest.mark.clause("OPR-12")
@pytest.mark.filterwarnings("ignore:ConjunctiveGraph is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Dataset.[a-z_]+ is deprecated:DeprecationWarning")
def test_every_prov_document_is_read_by_rdflib_and_prov(lineage: Path, items: Items) -> None:
    import prov.model
    import rdflib
    from rdflib.namespace import PROV, RDF

    from kfm_dagster.lineage.prov import prov_json

    documents = list(lineage.glob("prov/**/*.jsonld"))
    merged = rdflib.Graph()
    for path in documents:
        merged.parse(data=path.read_text(encoding="utf-8"), format="json-ld")
        document = prov.model.ProvDocument.deserialize(content=json.dumps(prov_json(path.read_bytes())), format="json")
        assert document.get_records(prov.model.ProvActivity)
    generated = list(merged.subjects(RDF.type, PROV.Activity))
    assert len(generated) == len(items)
    told = set(merged.objects(None, rdflib.URIRef("https://kfm.dev/ns/nodd#object_uri")))
    assert {str(uri) for uri in told} == set(items)
    for activity in generated:
        assert len(list(merged.objects(activity, PROV.used))) == 1
        # The QC report and the STAC Item.
        assert len(list(merged.subjects(PROV.wasGeneratedBy, activity))) == 2


def test_each_item_leads_to_its_record_and_back(ingested: Pipeline, items: Items, contracts: ContractRegistry) -> None:
    for uri, item in items.items():
        record = ingested.ledger.get(item["properties"]["kfm:wal_id"])
        assert record is not None
        assert (record.object_uri, record.stac_item_id) == (uri, item["id"])
        assert record.stac_collection_id == item["collection"] == contracts[record.dataset].stac.collection
        assert item["properties"]["kfm:run_state"]["run_id"] == record.ingest_run_id
        links = ingested.lineage.links_of(record.wal_id)  # type: ignore[arg-type]
        assert [link.state for link in links] == ["published", "published"]
