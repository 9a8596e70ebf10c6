"""Rows of GeoParquet: every Item comes back as it was, in files that other clients read."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.geoparquet import order
from kfm_dagster.followers.geoparquet.order import boxes, hilbert, ordered, times
from kfm_dagster.followers.geoparquet.parts import parquet
from kfm_dagster.followers.geoparquet.rows import OPEN, merged, to_items, to_table
from kfm_dagster_tests.catalog.envelopes import DAY, box, candidates, goes, hrrr, nexrad, with_metadata
from kfm_dagster_tests.catalog.real_objects import items_of_real_objects
from kfm_dagster_tests.followers.geoparquet.test_geoparquet_search import item as item_over

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
LONGITUDES = st.floats(-180, 180) | st.sampled_from([-180.0, 0, 180])
GEOMETRIES = st.one_of(
    st.none(),
    st.builds(box, LONGITUDES, st.just(-10.5), LONGITUDES, st.just(20)),
    st.builds(lambda x: {"type": "Point", "coordinates": [x, 1.5]}, LONGITUDES),
    st.builds(lambda x: {"type": "Point", "coordinates": [x, 1.5, 2.5]}, LONGITUDES),
)


@st.composite
def items(draw: st.DrawFn) -> dict[str, Any]:
    """Items with anything that JSON has where an Item may have anything."""
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
@given(given=st.lists(items(), max_size=5), cut=st.integers(0, 5))
def test_every_item_comes_back_equal_from_the_file_also_from_merged_tables(
    given: list[dict[str, Any]], cut: int
) -> None:
    content = parquet(merged([to_table(given[:cut]), to_table(given[cut:])]))
    # Numbers that are equal are: 1 and 1.0 are one number in JSON.
    assert to_items(pq.read_table(pa.BufferReader(content))) == given


@pytest.mark.clause("OPR-10")
def test_real_items_come_back_equal_and_nearly_all_from_their_columns_alone(
    contracts: ContractRegistry, shared_data: Path
) -> None:
    by_collection: dict[str, list[dict[str, Any]]] = {}
    for _, item in items_of_real_objects(contracts, shared_data / "objects"):
        by_collection.setdefault(item["collection"], []).append(item)
    assert len(by_collection) > 5
    whole = 0
    for found in by_collection.values():
        given = [orjson.loads(orjson.dumps(item)) for item in found]
        tables = [to_table([item]) for item in given]
        assert to_items(merged(tables)) == given
        table = to_table(given)
        assert to_items(table) == given
        assert table.num_columns < 120, "an object whose keys are data is a map"
        whole += 0 if "kfm:item" not in table.column_names else table.num_rows - table["kfm:item"].null_count
    assert whole <= sum(map(len, by_collection.values())) * 0.05


def test_an_object_whose_keys_are_data_is_a_map(contracts: ContractRegistry) -> None:
    layers = {f"TMP:{number} mb": {"start_byte": number, "byte_size": 7} for number in range(500)}
    (candidate,) = candidates(contracts, [hrrr()])
    item = orjson.loads(candidate.content)
    item["assets"]["data"]["grib:layers"] = layers
    table = to_table([item])
    assert {"grib:layers"} <= OPEN
    assert pa.types.is_map(table.schema.field("assets").type.field("data").type.field("grib:layers").type)
    assert to_items(table) == [item]


@given(numbers=st.permutations(range(8)))
@settings(max_examples=20)
def test_equal_sets_of_items_give_equal_files_whatever_their_order(numbers: list[int]) -> None:
    given = [item_over(number, (number * 20.0 - 100, 0.0, number * 20.0 - 90, 5.0)) for number in range(8)]
    assert parquet(ordered(to_table([given[number] for number in numbers]))) == parquet(ordered(to_table(given)))


def test_rows_stand_in_blocks_by_time_then_along_the_curve_and_what_crosses_the_antimeridian_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, given = random.Random(7), []
    monkeypatch.setattr(order, "BLOCK_ROWS", 1_000)
    for number in range(2_000):
        west, south = chance.uniform(-180, 170), chance.uniform(-90, 85)
        east = west + 5 if number % 50 else west - 1
        start = DAY + timedelta(minutes=chance.randrange(1440))
        given.append(item_over(number, (west, south, east, south + 5), start=start))
    table = ordered(to_table(given))
    west, south, east, north = boxes(table)
    begins = times(table, "start_datetime")
    assert begins[:1_000].max() <= begins[1_000:].min()
    for block in (slice(0, 1_000), slice(1_000, 2_000)):
        crossing = (west > east)[block]
        assert crossing.any()
        assert sorted(crossing) == list(crossing)
    # Neighbours in the file are neighbours on the map: a twentieth of a block covers a small part of it.
    for first in range(0, 900, 50):
        some = slice(first, first + 50)
        area = (east[some].max() - west[some].min()) * (north[some].max() - south[some].min())
        assert area < 360 * 180 / 4


def test_the_curve_is_hilberts() -> None:
    """Each cell once, and each step to a neighbour: the corners of the square that the first cells make."""
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
def test_the_clients_that_people_use_read_the_file(contracts: ContractRegistry, tmp_path: Path, envelope: Any) -> None:
    """rustac, stac-geoparquet, geopandas and DuckDB, each by what the file says of itself."""
    import geopandas
    import rustac
    import stac_geoparquet.arrow

    pair = [envelope, with_metadata(envelope).evolve(event_time=envelope.event_time)]
    first, second = (orjson.loads(one.content) for one in candidates(contracts, pair))
    second["id"] += "-2"
    standing = {item["id"]: item for item in (first, second)}
    path = tmp_path / "items.parquet"
    path.write_bytes(parquet(ordered(to_table([first, second]))))

    expected = {name: _said(item) for name, item in standing.items()}
    read = rustac.read_sync(str(path))
    assert {item["id"]: _said(item) for item in read["features"]} == expected
    again = stac_geoparquet.arrow.stac_table_to_items(pq.read_table(path))
    assert {item["id"]: _said(item) for item in again} == expected
    frame = geopandas.read_parquet(path)
    assert set(frame["id"]) == set(standing)
    assert frame.crs.equals("OGC:CRS84")
    assert frame.geometry.iloc[0].is_valid
    west, south, east, north = first["bbox"]
    if west < east:
        # By the covering: who reads a part of the map reads no geometry for it.
        assert len(geopandas.read_parquet(path, bbox=(west, south, west + 1, north))) == 2
        assert len(geopandas.read_parquet(path, bbox=(0, 0, 1, 1))) == 0
    with duckdb.connect() as connection:
        rows = connection.sql(
            f"SELECT id, bbox.xmin, bbox.xmax, epoch_us(datetime) FROM read_parquet('{path}') ORDER BY id"
        ).fetchall()
    assert [(row[0], row[1], row[2]) for row in rows] == [(name, west, east) for name in sorted(standing)]


def _without_nulls(value: Any) -> Any:
    """What a client that knows no absent member of a struct says: nothing of it, or null."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _said(item: dict[str, Any]) -> Any:
    """What an Item says, in whatever form a client gives times and maps; stac-geoparquet gives maps as pairs."""
    properties = dict(item["properties"])
    for name in {"datetime", "start_datetime", "end_datetime"} & {name for name in properties if properties[name]}:
        properties[name] = datetime.fromisoformat(properties[name])
    if variables := properties.get("cube:variables"):
        properties["cube:variables"] = dict(variables)
    return _without_nulls({**item, "type": "Feature", "bbox": list(item["bbox"]), "properties": properties})
