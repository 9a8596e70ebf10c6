"""GHCNh and GHCN-Daily: what Python's csv, pandas and pyarrow read of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import Compared, RealObject, compares, degrees, leaves, same, seconds


@compares("ghcnh", reader="ghcn-hourly")
def ghcn_hourly(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    first, last = (datetime.fromisoformat(expected[side]) for side in ("first", "last"))
    yield seconds("start", found.start, first, within=0)
    yield seconds("end", found.end, last, within=0)
    yield seconds("datetime", found.datetime, first, within=0)
    latitude, longitude = expected["positions"][-1]
    yield degrees("bbox", bounding_box(found.geometry), (longitude, latitude, longitude, latitude))
    positions = [[place["latitude"], place["longitude"]] for place in properties["ghcn:positions"]]
    for name, value, stated in (
        ("columns", native["columns"], expected["columns"]),
        ("ghcn:rows", properties["ghcn:rows"], expected["rows"]),
        ("odd_rows", native["odd_rows"], len(expected["short_or_undated_rows"])),
        ("platform", properties["platform"], expected["station_id"]),
        ("ghcn:station-name", properties["ghcn:station-name"], expected["station_name"]),
        ("ghcn:positions", positions, sorted(expected["positions"])),
        ("ghcn:elevation-m", f"{properties['ghcn:elevation-m']:.1f}", expected["elevations"][-1]),
        ("cube:variables", sorted(properties["cube:variables"]), sorted(expected["variables_with_values"])),
        ("ghcn:csv", properties["ghcn:csv"], {"delimiter": "|", "header": True}),
    ):
        yield same(name, value, stated)
    yield from leaves("values", native["values"], expected["variables_with_values"])
    odd = {MetadataIssue.COMPLETENESS_UNCHECKED} if expected["short_or_undated_rows"] else set()
    yield same("findings", {code for code, _ in found.findings}, odd)


@compares("ghcnd", reader="ghcn-daily")
def ghcn_daily(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, found.native, found.properties
    first, last = (datetime.strptime(expected[side], "%Y%m%d").replace(tzinfo=UTC) for side in ("first", "last"))
    yield seconds("start", found.start, first, within=0)
    yield seconds("end", found.end, last, within=0)
    yield seconds("datetime", found.datetime, first, within=0)
    # Parquet has the element in its key alone.
    elements = expected.get("elements", {real.groups.get("element"): expected["rows"]})
    yield from leaves("elements", native["elements"], elements)
    for name, value, stated in (
        ("geometry", found.geometry, {}),
        ("ghcn:columns", properties["ghcn:columns"], expected["columns"]),
        ("ghcn:rows", properties["ghcn:rows"], expected["rows"]),
        ("ghcn:station-count", properties["ghcn:station-count"], expected["n_stations"]),
        ("platform", [properties["platform"]], expected["stations"]),
        ("cube:variables", sorted(properties["cube:variables"]), sorted(elements)),
        ("ghcn:csv", properties.get("ghcn:csv"), None if "schema" in expected else {"delimiter": ",", "header": False}),
        ("findings", found.findings, ()),
    ):
        yield same(name, value, stated)
