"""GHCNh and GHCN-Daily: compare rows with those read by csv, pandas and pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.contracts.issues import MetadataIssue
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import Compared, RealObject, compares, degrees, leaves, same, times


@compares("ghcnh", reader="ghcn-hourly")
def ghcn_hourly(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, metadata.native, metadata.properties
    first, last = (datetime.fromisoformat(expected[side]) for side in ("first", "last"))
    yield from times(metadata, first, last, first)
    latitude, longitude = expected["positions"][-1]
    yield degrees("bbox", bounding_box(metadata.geometry), (longitude, latitude, longitude, latitude))
    positions = [[position["latitude"], position["longitude"]] for position in properties["ghcn:positions"]]
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
    yield same("findings", {code for code, _ in metadata.findings}, odd)


@compares("ghcnd", reader="ghcn-daily")
def ghcn_daily(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, native, properties = real.expected, metadata.native, metadata.properties
    first, last = (datetime.strptime(expected[side], "%Y%m%d").replace(tzinfo=UTC) for side in ("first", "last"))
    yield from times(metadata, first, last, first)
    # A Parquet object has its element only in the key.
    elements = expected.get("elements", {real.groups.get("element"): expected["rows"]})
    yield from leaves("elements", native["elements"], elements)
    for name, value, stated in (
        ("geometry", metadata.geometry, {}),
        ("ghcn:columns", properties["ghcn:columns"], expected["columns"]),
        ("ghcn:rows", properties["ghcn:rows"], expected["rows"]),
        ("ghcn:station-count", properties["ghcn:station-count"], expected["n_stations"]),
        ("platform", [properties["platform"]], expected["stations"]),
        ("cube:variables", sorted(properties["cube:variables"]), sorted(elements)),
        ("ghcn:csv", properties.get("ghcn:csv"), None if "schema" in expected else {"delimiter": ",", "header": False}),
        ("findings", metadata.findings, ()),
    ):
        yield same(name, value, stated)
