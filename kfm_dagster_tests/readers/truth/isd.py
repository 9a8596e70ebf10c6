"""ISD station-years: what a few lines of Python read from the fixed columns of the format document."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from kfm_dagster.contracts.bounding_box import bounding_box
from kfm_dagster.readers.base import HeaderMetadata
from kfm_dagster_tests.readers.truth.comparison import (
    CONTRACTS,
    Compared,
    Opened,
    RealObject,
    compares,
    degrees,
    leaves,
    same,
    seconds,
)


def open_file(path: str, content: bytes, _: Mapping[str, Any]) -> Opened:
    """Open a station-year that its source has unpacked, gzipped as NODD has it."""
    name = Path(path).name
    key = f"data/{name.rpartition('-')[2]}/{name}.gz"
    match = CONTRACTS.grammars["surface-obs"].match(key)
    assert match is not None, key
    return key, match.groups, gzip.compress(content, mtime=0)


@compares("isd", reader="isd", open_file=open_file)
def isd(real: RealObject, found: HeaderMetadata) -> Iterator[Compared]:
    expected, properties = real.expected, found.properties
    first, last = (datetime.fromisoformat(expected[side]) for side in ("first", "last"))
    place = (expected["lon"], expected["lat"])
    said = {
        "usaf": properties.get("isd:usaf", "999999"),
        "wban": properties.get("isd:wban", "99999"),
        "first": found.start,
        "last": found.end,
        "records": properties["isd:records"],
        "lon": found.geometry["coordinates"][0],
        "lat": found.geometry["coordinates"][1],
        "positions": [[one["latitude"], one["longitude"]] for one in properties["isd:positions"]],
        "elevation_m": properties["isd:elevation-m"],
        "report_types": properties["isd:report-types"],
    }
    # The reference has the call sign of the last report, blanks at the ends of types, and 99999 for none.
    kinds = [text.strip() for text in expected["report_types"]]
    signs = ["99999", *properties.get("isd:call-signs", [])]
    stated = {**expected, "first": first, "last": last, "report_types": kinds}
    yield same("isd:call-signs", stated.pop("call_sign") in signs, True)
    yield from leaves("said", said, stated)
    yield seconds("start", found.start, first, within=0)
    yield seconds("end", found.end, last, within=0)
    yield seconds("datetime", found.datetime, first, within=0)
    yield same("geometry", found.geometry, {"type": "Point", "coordinates": place})
    yield degrees("bbox", bounding_box(found.geometry), (*place, *place))
    yield same("platform", properties["platform"], f"{expected['usaf']}-{expected['wban']}")
    yield same("records", found.native["records"], expected["records"])
    yield same("isd:position-count", properties["isd:position-count"], len(expected["positions"]))
    yield same("findings", found.findings, ())
