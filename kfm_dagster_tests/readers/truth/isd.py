"""ISD station-years: compare their fixed columns with those read by a short Python program."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.reading import match_of
from kfm_dagster_tests.readers.truth.comparison import (
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    leaves,
    same,
    times,
)


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened:
    """Open an unpacked station-year, gzipped as in NODD."""
    name = Path(path).name
    key = f"data/{name.rpartition('-')[2]}/{name}.gz"
    return key, match_of("surface-obs", key).groups, gzip.compress(content, mtime=0)


@compares("isd", reader="isd", open_file=open_file)
def isd(real: RealObject, metadata: HeaderMetadata) -> Iterator[Compared]:
    expected, properties = real.expected, metadata.properties
    first, last = (datetime.fromisoformat(expected[side]) for side in ("first", "last"))
    position = (expected["lon"], expected["lat"])
    values = {
        "usaf": properties.get("isd:usaf", "999999"),
        "wban": properties.get("isd:wban", "99999"),
        "first": metadata.start,
        "last": metadata.end,
        "records": properties["isd:records"],
        "lon": metadata.geometry["coordinates"][0],
        "lat": metadata.geometry["coordinates"][1],
        "positions": [[item["latitude"], item["longitude"]] for item in properties["isd:positions"]],
        "elevation_m": properties["isd:elevation-m"],
        "report_types": properties["isd:report-types"],
    }
    # The reference has the last report's call sign, or 99999 for none, and blanks at the ends of types.
    kinds = [text.strip() for text in expected["report_types"]]
    signs = ["99999", *properties.get("isd:call-signs", [])]
    stated = {**expected, "first": first, "last": last, "report_types": kinds}
    yield same("isd:call-signs", stated.pop("call_sign") in signs, True)
    yield from leaves("values", values, stated)
    yield from times(metadata, first, last, first)
    yield same("geometry", metadata.geometry, {"type": "Point", "coordinates": position})
    yield degrees("bbox", bounding_box(metadata.geometry), (*position, *position))
    yield same("platform", properties["platform"], f"{expected['usaf']}-{expected['wban']}")
    yield same("records", metadata.native["records"], expected["records"])
    yield same("isd:position-count", properties["isd:position-count"], len(expected["positions"]))
    yield same("findings", metadata.findings, ())
