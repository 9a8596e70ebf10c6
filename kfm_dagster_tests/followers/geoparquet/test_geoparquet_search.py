"""Reading GeoParquet: Items come back unchanged, searches are exact and read few bytes."""

from __future__ import annotations

import random
import re
import shlex
from collections import Counter
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.geoparquet import order, parts
from kfm_dagster.followers.geoparquet.follower import GeoParquet
from kfm_dagster.followers.geoparquet.order import boxes, hilbert, ordered, times
from kfm_dagster.followers.geoparquet.parts import parquet
from kfm_dagster.followers.geoparquet.rows import merged, to_items, to_table
from kfm_dagster.followers.geoparquet.search import SearchCriteria, search
from kfm_dagster.storage import publisher as publisher_of_files
from kfm_dagster.storage.publisher import FolderPublisher, ObjectStorePublisher, Publisher
from kfm_dagster_tests.catalog.envelopes import DAY, box, candidates, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.catalog.real_objects import items_of_real_objects
from kfm_dagster_tests.commands import Call
from kfm_dagster_tests.followers.changes import change

LEAF = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = st.sampled_from(["a", "b", "kfm:item", "kfm:null", "created", "grib:layers", "id", "bbox", "ä b", "x.y"])
VALUES = st.recursive(
    LEAF | st.text(st.characters(codec="utf-8"), max_size=4) | st.just("2025-12-03T00:00:00.000000Z"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TIMES = st.sampled_from([
    "2025-12-03T00:00:00.000000Z", "2025-12-03T00:00:00Z", "2025-12-03T01:00:00+01:00", "0001-01-01T00:00:00.000000Z",
    "2025-12-03T00:00:00.123456789Z", "2025-12-03T00:00:00", "soon", None,
])  # fmt: skip
ANY_LONGITUDE = st.floats(-180, 180) | st.sampled_from([-180.0, 0, 180])
GEOMETRIES = st.one_of(
    st.none(),
    st.builds(box, ANY_LONGITUDE, st.just(-10.5), ANY_LONGITUDE, st.just(20)),
    st.builds(lambda x: {"type": "Point", "coordinates": [x, 1.5]}, ANY_LONGITUDE),
    st.builds(lambda x: {"type": "Point", "coordinates": [x, 1.5, 2.5]}, ANY_LONGITUDE),
)


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    """Draw Items with any JSON value where STAC allows it."""
    item = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": draw(st.lists(st.text("ab", max_size=2), max_size=2)),
        "id": draw(st.text("abc", min_size=1, max_size=3)),
        "collection": "goes-abi",
        "geometry": draw(GEOMETRIES),
        "properties": {"datetime": draw(TIMES), **draw(st.dictionaries(NAMES, VALUES, max_size=4))},
        "links": [{"href": "./catalog.json", "rel": "parent"}],
        "assets": {"data": {"href": "s3://b/k", **draw(st.dictionaries(NAMES, VALUES, max_size=3))}},
    }
    if item["geometry"] is not None:
        item["bbox"] = draw(st.lists(st.floats(-90, 90), min_size=4, max_size=4))
    return item


@pytest.mark.clause("OPR-10")
@settings(max_examples=100)
@given(original=st.lists(items(), max_size=5), cut=st.integers(0, 5))
def test_every_item_is_read_back_equal_also_from_merged_tables(original: list[dict[str, Any]], cut: int) -> None:
    content = parquet(merged([to_table(original[:cut]), to_table(original[cut:])]))
    # Equal numbers compare equal: JSON does not distinguish 1 from 1.0.
    assert to_items(pq.read_table(pa.BufferReader(content))) == original


@pytest.mark.clause("OPR-10")
def test_real_items_are_read_back_equal_and_nearly_all_from_typed_columns_only(
    contracts: ContractRegistry, shared_data: Path
) -> None:
    by_collection: dict[str, list[dict[str, Any]]] = {}
    for _, item in items_of_real_objects(contracts, shared_data / "objects"):
        by_collection.setdefault(item["collection"], []).append(item)
    assert len(by_collection) > 5
    whole = 0
    for members in by_collection.values():
        originals = [orjson.loads(orjson.dumps(item)) for item in members]
        tables = [to_table([item]) for item in originals]
        assert to_items(merged(tables)) == originals
        table = to_table(originals)
        assert to_items(table) == originals
        columns = pq.ParquetFile(pa.BufferReader(parquet(table))).schema
        assert len(columns) < 120, "an object whose keys are data must be stored as a map"
        whole += 0 if "kfm:item" not in table.column_names else table.num_rows - table["kfm:item"].null_count
    assert whole <= sum(map(len, by_collection.values())) * 0.05


@given(numbers=st.permutations(range(8)))
@settings(max_examples=20)
def test_equal_sets_of_items_give_equal_files_in_any_order(numbers: list[int]) -> None:
    originals = [item(number, (number * 20.0 - 100, 0.0, number * 20.0 - 90, 5.0)) for number in range(8)]
    assert parquet(ordered(to_table([originals[number] for number in numbers]))) == parquet(
        ordered(to_table(originals))
    )


def test_rows_are_sorted_by_time_in_blocks_along_the_curve_and_boxes_over_the_antimeridian_come_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, rows = random.Random(7), []
    monkeypatch.setattr(order, "BLOCK_ROWS", 1_000)
    for number in range(2_000):
        west, south = chance.uniform(-180, 170), chance.uniform(-90, 85)
        east = west + 5 if number % 50 else west - 1
        start = DAY + timedelta(minutes=chance.randrange(1440))
        rows.append(item(number, (west, south, east, south + 5), start=start))
    table = ordered(to_table(rows))
    west, south, east, north = boxes(table)
    begins = times(table, "start_datetime")
    assert begins[:1_000].max() <= begins[1_000:].min()
    for block in (slice(0, 1_000), slice(1_000, 2_000)):
        crossing = (west > east)[block]
        assert crossing.any()
        assert sorted(crossing) == list(crossing)
    # Rows near in the file are near on the map: a twentieth of a block covers a small area.
    for first in range(0, 900, 50):
        some = slice(first, first + 50)
        area = (east[some].max() - west[some].min()) * (north[some].max() - south[some].min())
        assert area < 360 * 180 / 4


def test_the_curve_is_a_hilbert_curve() -> None:
    """The curve visits each cell once and each step goes to a neighbour cell."""
    import numpy as np

    side = 1 << 4
    x, y = (axis.ravel().astype(np.int64) for axis in np.meshgrid(range(side), range(side)))
    places = hilbert(x, y)
    assert sorted(places) == list(range(side * side))
    steps = np.argsort(places)
    assert set(np.abs(np.diff(x[steps])) + np.abs(np.diff(y[steps]))) == {1}


@pytest.mark.clause("OPR-10")
@pytest.mark.parametrize(
    "envelope",
    [goes(0), hrrr(), nexrad(), goes(0, bbox=(170.0, -5.0, -175.0, 5.0))],
    ids=["goes", "hrrr", "nexrad", "antimeridian"],
)
def test_common_clients_read_the_file(contracts: ContractRegistry, tmp_path: Path, envelope: Any) -> None:
    """rustac, stac-geoparquet, geopandas and DuckDB read the file by the metadata in the file."""
    import geopandas
    import rustac
    import stac_geoparquet.arrow

    pair = [envelope, with_metadata(envelope).evolve(event_time=envelope.event_time)]
    first, second = (orjson.loads(candidate.content) for candidate in candidates(contracts, pair))
    second["id"] += "-2"
    original_by_id = {item["id"]: item for item in (first, second)}
    path = tmp_path / "items.parquet"
    path.write_bytes(parquet(ordered(to_table([first, second]))))

    expected = {name: _normalised(item) for name, item in original_by_id.items()}
    read = rustac.read_sync(str(path))
    assert {item["id"]: _normalised(item) for item in read["features"]} == expected
    again = stac_geoparquet.arrow.stac_table_to_items(pq.read_table(path))
    assert {item["id"]: _normalised(item) for item in again} == expected
    frame = geopandas.read_parquet(path)
    assert set(frame["id"]) == set(original_by_id)
    assert frame.crs.equals("OGC:CRS84")
    assert frame.geometry.iloc[0].is_valid
    west, south, east, north = first["bbox"]
    if west < east:
        # The bbox column (covering) selects rows without reading geometries.
        assert len(geopandas.read_parquet(path, bbox=(west, south, west + 1, north))) == 2
        assert len(geopandas.read_parquet(path, bbox=(0, 0, 1, 1))) == 0
    with duckdb.connect() as connection:
        rows = connection.sql(
            f"SELECT id, bbox.xmin, bbox.xmax, epoch_us(datetime) FROM read_parquet('{path}') ORDER BY id"
        ).fetchall()
    assert [(row[0], row[1], row[2]) for row in rows] == [(name, west, east) for name in sorted(original_by_id)]


def _without_nulls(value: Any) -> Any:
    """Drop nulls, which some clients write for absent members of a struct."""
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    return [_without_nulls(member) for member in value] if isinstance(value, list) else value


def _normalised(item: dict[str, Any]) -> Any:
    """Normalise a client's Item: times as text, and maps that stac-geoparquet returns as pairs."""
    properties = dict(item["properties"])
    for name in {"datetime", "start_datetime", "end_datetime"} & {name for name in properties if properties[name]}:
        properties[name] = datetime.fromisoformat(properties[name])
    if variables := properties.get("cube:variables"):
        properties["cube:variables"] = dict(variables)
    return _without_nulls({**item, "type": "Feature", "bbox": list(item["bbox"]), "properties": properties})


ABI = "goes-abi"
PAGE = (Path(__file__).parents[3] / "docs/stac.md").read_text(encoding="utf-8")
Bounds = tuple[float, float, float, float]


def item(number: int, bbox: Bounds | None, *, start: datetime = DAY, hours: float = 1, **properties: Any) -> Any:
    """Return an Item with this number, box and duration."""
    text = "%Y-%m-%dT%H:%M:%S.%fZ"
    item_ = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [],
        "id": f"item-{number:05}",
        "collection": ABI,
        "geometry": None if bbox is None else box(*bbox),
        "properties": {
            "datetime": f"{start:{text}}",
            "start_datetime": f"{start:{text}}",
            "end_datetime": f"{start + timedelta(hours=hours):{text}}",
            "number": number,
            **properties,
        },
        "links": [],
        "assets": {"data": {"href": f"s3://b/{number}"}},
    }
    return item_ if bbox is None else {**item_, "bbox": list(bbox)}


def publish(publisher: Publisher, contracts: ContractRegistry, items: list[Any], *, at_once: int = 1_000) -> None:
    """Publish a root catalog that links the Items' Collections, then the Items in batches of `at_once`."""
    collections = sorted({item["collection"] for item in items})
    links = [{"rel": "child", "href": f"./{name}/collection.json"} for name in collections]
    publisher_of_files.publish(publisher, [{"catalog.json": orjson.dumps({"links": links})}])
    follower = GeoParquet(publisher)
    changes = [change(number, item_) for number, item_ in enumerate(items, 1)]
    for dataset in collections:
        of_dataset = [change for change in changes if change.item["collection"] == dataset]
        for first in range(0, len(of_dataset), at_once):
            follower.follow(contracts[dataset], of_dataset[first : first + at_once])


def ids_found(publisher: Publisher, **criteria: Any) -> list[str]:
    """Return the ids of the Items that match."""
    return sorted(
        item["id"] for _, rows in search(publisher, [ABI], SearchCriteria(**criteria)) for item in to_items(rows)
    )


def arcs(west: float, east: float) -> list[tuple[float, float]]:
    """Return a box's longitudes as intervals that do not cross the antimeridian."""
    return [(west, east)] if west <= east else [(west, 180.0), (-180.0, east)]


def meet(box: Bounds, other_box: Bounds) -> bool:
    """Return whether two boxes intersect, computed interval by interval."""
    return (
        box[1] <= other_box[3]
        and other_box[1] <= box[3]
        and any(
            first[0] <= second[1] and second[0] <= first[1]
            for first in arcs(box[0], box[2])
            for second in arcs(other_box[0], other_box[2])
        )
    )


LONGITUDES = st.integers(-18, 18).map(lambda tens: tens * 10.0)
BOXES = st.builds(
    lambda west, east, south, height: (west, float(south), east, float(south + height)),
    LONGITUDES, LONGITUDES, st.integers(-90, 60), st.integers(0, 30),
)  # fmt: skip


@pytest.mark.clause("OPR-10")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.none() | BOXES, min_size=1, max_size=12),
    box=BOXES,
    hours=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    times=st.none() | st.tuples(st.integers(-5, 70), st.integers(0, 20)),
)
@example(places=[(0.0, 0.0, 0.0, 0.0)], box=(0.0, 0.0, -10.0, 0.0), hours=[0] * 12, times=None)
def test_a_search_finds_the_items_that_intersect_box_and_time(
    contracts: ContractRegistry,
    places: list[Bounds | None],
    box: Bounds,
    hours: list[int],
    times: tuple[int, int] | None,
) -> None:
    starts = [DAY + timedelta(hours=hour) for hour in hours]
    items = [item(number, place, start=starts[number], hours=5) for number, place in enumerate(places)]
    publisher = ObjectStorePublisher(MemoryStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "GROUP_ROWS", 2)
        publish(publisher, contracts, items, at_once=5)
    first, last = (None, None) if times is None else (DAY + timedelta(hours=hour) for hour in (times[0], sum(times)))
    expected = {
        f"item-{number:05}"
        for number, place in enumerate(places)
        if place is not None
        and meet(place, box)
        and (first is None or last is None or (starts[number] <= last and starts[number] + timedelta(hours=5) >= first))
    }
    assert ids_found(publisher, bbox=box, start=first, end=last) == sorted(expected)


def test_a_condition_parses_its_value_by_the_type_of_the_property(contracts: ContractRegistry, root: Path) -> None:
    publisher = FolderPublisher(root)
    rows = [
        {"platform": "goes-19", "share": 0.25, "instruments": ["abi"], "odd": {"a": 1}},
        {"platform": "goes-18", "share": 0, "instruments": ["abi", "glm"], "flag": True},
        {"platform": "goes-19", "share": 1, "flag": False},
        {"instruments": ["glm"]},
    ]
    starts = [DAY + timedelta(hours=number) for number in range(len(rows))]
    publish(publisher, contracts, [item(number, None, start=starts[number], **row) for number, row in enumerate(rows)])
    for condition, expected in [
        (("platform", "=", "goes-19"), {0, 2}),
        (("platform", "=", "goes"), set()),
        (("number", ">", "1"), {2, 3}),
        (("number", "<", "1.5"), set()),  # the property is an integer, and 1.5 is not
        (("share", "<", "0.5"), {0, 1}),
        (("share", "=", "1"), {2}),
        (("instruments", "=", "glm"), {1, 3}),
        (("flag", "=", "true"), {1}),
        (("datetime", ">", "2025-12-03T01:30:00Z"), {2, 3}),
        (("id", "=", "item-00003"), {3}),
        (("nothing", "=", "1"), set()),
        (("odd", "=", "1"), set()),
    ]:
        assert ids_found(publisher, conditions=(condition,)) == [f"item-{number:05}" for number in sorted(expected)]


class CountedFile(FileIO):
    """A file that counts the bytes read from it."""

    counter: ClassVar[Counter[str]] = Counter()

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size) or b""
        self.counter["bytes"] += len(content)
        return content


class Counting(FolderPublisher):
    """A folder that counts the bytes read from Parquet files."""

    def open(self, path: str, *, size: int) -> BinaryIO:
        with super().open(path, size=size) as file:
            return CountedFile(file.name)  # type: ignore[return-value]


@pytest.mark.clause("OPR-10")
def test_a_search_by_day_and_box_reads_a_twentieth_of_the_bytes(contracts: ContractRegistry, root: Path) -> None:
    """Sites worldwide with scans over ten days: selecting the day alone would read a tenth."""
    chance, publisher = random.Random(7), Counting(root)
    CountedFile.counter.clear()
    sites = [(chance.uniform(-170, 160), chance.uniform(-80, 70)) for _ in range(160)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "GROUP_ROWS", 128)
        items = []
        for number in range(10 * 2_000):
            west, south = sites[number % 160]
            start = DAY + timedelta(seconds=number * 86_400 / 2_000)
            # The text makes the Item as long as a real one, so that footers have a realistic share.
            text = chance.randbytes(300).hex()
            items.append(item(number, (west, south, west + 5, south + 5), start=start, hours=0.1, text=text))
        publish(publisher, contracts, items)
    whole = sum(path.stat().st_size for path in root.rglob("*.parquet"))
    day = DAY + timedelta(days=3)
    box = (-102.0, 20.0, -60.0, 50.0)
    ids = ids_found(publisher, bbox=box, start=day, end=day + timedelta(hours=23, minutes=59))
    expected = [
        member["id"]
        for member in items
        if meet(tuple(member["bbox"]), box)
        and member["properties"]["end_datetime"] >= f"{day:%Y-%m-%dT%H:%M:%S.%fZ}"
        and member["properties"]["start_datetime"] < f"{day + timedelta(hours=23, minutes=59):%Y-%m-%dT%H:%M:%S.%fZ}"
    ]
    assert ids == expected
    assert len(ids) > 30
    assert 0 < CountedFile.counter["bytes"] < whole / 20


def test_a_search_restarts_if_a_file_is_replaced_meanwhile(contracts: ContractRegistry, root: Path) -> None:
    publisher = FolderPublisher(root)
    publish(publisher, contracts, [item(0, None)])

    class Overtaken(FolderPublisher):
        def names(self, folder: str) -> Any:
            listed = super().names(folder)
            if listed and not overtaken:
                overtaken.append(folder)
                GeoParquet(publisher).follow(contracts[ABI], [change(9, item(1, None))])
            return listed

    overtaken: list[str] = []
    assert ids_found(Overtaken(root)) == ["item-00000", "item-00001"]


@pytest.fixture
def published(home: Path, contracts: ContractRegistry) -> Path:
    """A catalog of four scans on two days, with its GeoParquet, in KFM_HOME."""
    batch = candidates(contracts, [goes(0), goes(1, bbox=(170.0, 0.0, -170.0, 5.0)), goes(2, platform="goes-18")])
    batch += candidates(contracts, [goes(0, day=datetime(2025, 12, 5, tzinfo=UTC))])
    items = [orjson.loads(candidate.content) for candidate in batch]
    publish(FolderPublisher(home / "catalog"), contracts, items)
    return home / "catalog"


@pytest.mark.clause("OPR-10")
def test_the_command_finds_items_by_time_box_and_property(published: Path, call: Call) -> None:
    for arguments, scans in [
        ((), ["s20253370000000", "s20253370000050", "s20253370000100", "s20253390000000"]),
        (("--time", "2025-12-03"), ["s20253370000000", "s20253370000050", "s20253370000100"]),
        (("--time", "2025-12-03T00:00:04Z/.."), ["s20253370000050", "s20253370000100", "s20253390000000"]),
        (("--time", "../2025-12-03T00:00:05Z"), ["s20253370000000", "s20253370000050"]),
        (("--time", "2025-12-03T01:00:06+01:00"), ["s20253370000050"]),
        (("--bbox", "175,-5,-175,1"), ["s20253370000050"]),
        (("--bbox", "-175,-5,-171,1"), ["s20253370000050"]),
        (("--bbox", "0,0,10,10"), []),
        (("--where", "platform=goes-18"), ["s20253370000100"]),
        (("--where", "platform=goes-19", "--where", "datetime>2025-12-04T00:00:00Z"), ["s20253390000000"]),
        (("--collection", "hrrr"), []),
        # A dataset that writes into the Collection of another dataset.
        (("--dataset", "nexrad-l2-chunks"), []),
        (("--dataset", "goes-abi", "--limit", "2"), ["s20253370000000", "s20253370000100"]),
    ]:
        answer = call("items", "search", *arguments, "--json")
        assert answer.code == 0
        assert sorted(str(row["id"]).split("_")[3] for row in answer.rows) == scans
        assert all(row["type"] == "Feature" and row["stac_version"] == "1.1.0" for row in answer.rows)
        shown = call("items", "search", *arguments)
        assert shown.out.count("OR_ABI") == len(scans)
        assert call("items", "search", *arguments, "--ids").out.split() == [row["id"] for row in answer.rows]


def test_an_unknown_property_is_named_and_the_parquet_result_equals_the_list(
    published: Path, call: Call, tmp_path: Path
) -> None:
    misspelt = call("items", "search", "--where", "plattform=goes-18")
    assert (misspelt.code, misspelt.out) == (0, "none\n")
    assert misspelt.err == "no Item of the newest days has the property 'plattform'; similar: platform\n"
    strange = call("items", "search", "--where", "eo:cloud_cover<10")
    assert strange.err.startswith("no Item of the newest days has the property 'eo:cloud_cover'; known: assets, ")
    assert "platform, " in strange.err
    assert call("items", "search", "--where", "platform=goes-1").err == ""
    # The option --parquet writes the result as one file.
    answer = call("items", "search", "--time", "2025-12-03", "--parquet", str(tmp_path / "result.parquet"))
    assert answer.out.startswith("3 Items in ")
    listed = call("items", "search", "--time", "2025-12-03", "--json").rows
    rows = to_items(pq.read_table(tmp_path / "result.parquet"))
    assert {row["id"]: row for row in rows} == {str(item["id"]): item for item in listed}
    assert len(rows) == len(listed)
    assert call("items", "search", "--bbox", "0,0,1,1", "--parquet", str(tmp_path / "none.parquet")).code == 0
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


@pytest.mark.clause("OPR-10")
def test_a_box_finds_the_footprints_that_intersect_it(contracts: ContractRegistry) -> None:
    """A triangle's box has corners outside of the triangle; a box can cross the antimeridian."""
    items = [
        orjson.loads(candidate.content) for candidate in candidates(contracts, [goes(number) for number in range(2)])
    ]
    triangles = ([(0, 0), (10, 0), (0, 10), (0, 0)], [(-180, 0), (-170, 0), (-170, 10), (-180, 0)])
    for item, corners, bbox in zip(items, triangles, ([0, 0, 10, 10], [-180, 0, -170, 10]), strict=True):
        item |= {"geometry": {"type": "Polygon", "coordinates": [corners]}, "bbox": bbox}
    publisher = ObjectStorePublisher(MemoryStore())
    publish(publisher, contracts, items)
    for bbox, expected in (
        ((1, 1, 2, 2), items[:1]),
        ((8, 8, 9, 9), []),
        ((175, 1, -175, 4), items[1:]),
        ((175, 8, -175, 9), []),
        ((-180, -90, 180, 90), items),
    ):
        assert ids_found(publisher, bbox=bbox) == sorted(item["id"] for item in expected)


@pytest.mark.clause("OPR-10", "OPR-28")
def test_each_search_of_the_documentation_runs_over_real_items(
    home: Path, contracts: ContractRegistry, shared_data: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [item for _, item in items_of_real_objects(contracts, shared_data / "objects")]
    assert len({item["collection"] for item in items}) >= 8
    publish(FolderPublisher(home / "catalog"), contracts, items)
    monkeypatch.chdir(home / "catalog")
    # The view omits a replaced file that still exists.
    file = next(Path().glob("goes-abi/items/*/*.parquet"))
    replaced = file.with_name(f"{file.name[:10]}-0000000000000000-000000000000.parquet")
    replaced.write_bytes(file.read_bytes())
    with duckdb.connect() as connection:
        for statements in re.findall(r"(?s)```sql\n(.*?)```", PAGE):
            connection.execute(statements).fetchall()
        shown = connection.sql("SELECT id, day FROM items").fetchall()
    assert sorted(row[0] for row in shown) == sorted(item["id"] for item in items)
    assert {str(row[1]) for row in shown} >= {file.name[:10]}
    commands = re.findall(r"(?m)^    kfm (items search .*)", PAGE)
    answers = [call(*shlex.split(command)) for command in commands]
    assert [answer.code for answer in answers] == [0] * len(commands)
    assert len(commands) == 3
