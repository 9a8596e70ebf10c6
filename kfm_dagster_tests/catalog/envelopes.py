"""Synthetic envelopes, as returned by metadata-extract, and the candidates built from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kfm_dagster.catalog.item import Candidate
from kfm_dagster.contracts.envelope import CheckStatus, Envelope, Integrity, Metadata
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.governance.masking import outline
from kfm_dagster.operators.stac_register import stac_register
from kfm_dagster_tests import factories

MD5 = "0123456789abcdef0123456789abcdef"
DAY = datetime(2025, 12, 3, tzinfo=UTC)
RUN_ID = "5d3e0f1c-8f0e-4c6e-9f0a-2a41c1f7b7aa"

_GOES_PROPERTIES: dict[str, Any] = {
    "platform": "goes-19",
    "instruments": ["abi"],
    "goes:orbital-slot": "GOES-East",
    "goes:image-type": "CONUS",
    "goes:product": "ABI-L1b-RadC",
    "goes:percent-uncorrectable": 0.0,
    "processing:level": "L1b",
    "sat:orbit_state": "geostationary",
    "sat:platform_international_designator": "2024-119A",
    "bands": [{
        "name": "C13", "eo:common_name": "lwir11", "eo:center_wavelength": 10.35, "data_type": "uint16",
        "nodata": 4095, "unit": "mW m-2 sr-1 (cm-1)-1", "raster:scale": 0.04572892, "raster:offset": -1.6443,
    }],
    "cube:dimensions": {"x": {"type": "spatial", "axis": "x", "extent": [-3626269.3, 1381726.7], "step": 2004.0,
                              "reference_system": 'PROJCRS["GOES fixed grid"]'}},
    "cube:variables": {"Rad": {"dimensions": ["y", "x"], "type": "data", "unit": "mW m-2 sr-1 (cm-1)-1"}},
    "proj:wkt2": 'PROJCRS["GOES fixed grid"]',
    "proj:shape": [1500, 2500],
    "proj:transform": [2004.0, 0.0, -3627271.3, 0.0, -2004.0, 4589199.8],
}  # fmt: skip
_HRRR_PROPERTIES: dict[str, Any] = {
    "forecast:reference_datetime": "2025-12-03T00:00:00Z",
    "forecast:horizon": "PT6H",
    "hrrr:region": "conus",
    "hrrr:product": "sfc",
    "grib:messages": 170,
    "proj:wkt2": 'PROJCRS["HRRR Lambert"]',
    "proj:shape": [1059, 1799],
}
_NEXRAD_PROPERTIES: dict[str, Any] = {
    "platform": "wsr-88d",
    "instruments": ["nexrad"],
    "nexrad:site": "KTWX",
    "nexrad:vcp": 212,
    "nexrad:message-type": 31,
    "processing:level": "L2",
}


def box(west: float, south: float, east: float, north: float) -> dict[str, Any]:
    """Return a rectangle, split at the antimeridian if west > east."""
    return outline((west, south, east, north))


def goes(
    number: int = 0,
    *,
    day: datetime = DAY,
    created: int = 0,
    bbox: tuple[float, float, float, float] = (-113.1, 14.6, -52.9, 56.8),
    version: str = MD5,
    sequencer: str | None = None,
    **properties: Any,
) -> Envelope:
    """Return the ABI scan `number`, one every 5 seconds; a higher `created` is a later re-issue."""
    start = day + timedelta(seconds=5 * number)
    end = start + timedelta(seconds=2.5)
    key = (
        f"ABI-L1b-RadC/{start:%Y/%j/%H}/OR_ABI-L1b-RadC-M6C13_G19_s{_stamp(start)}_e{_stamp(end)}"
        f"_c{_stamp(end + timedelta(seconds=5 + created))}.nc"
    )
    values = {"version": version, "sequencer": sequencer, "properties": {**_GOES_PROPERTIES, **properties}}
    return _envelope("goes-abi", f"s3://noaa-goes19/{key}", start, end, bbox, **values)


def hrrr() -> Envelope:
    """Return a forecast with its index."""
    uri = "s3://noaa-hrrr-bdp-pds/hrrr.20251203/conus/hrrr.t00z.wrfsfcf06.grib2"
    end, bbox = DAY + timedelta(hours=6), (-134.1, 21.1, -60.9, 52.6)
    values = {"version": f"{MD5}-12", "properties": _HRRR_PROPERTIES, "sidecars": {".idx": f"{uri}.idx"}}
    return _envelope("hrrr", uri, DAY, end, bbox, **values)


def nexrad() -> Envelope:
    """Return a radar volume."""
    uri = "s3://unidata-nexrad-level2/2025/12/03/KTWX/KTWX20251203_040506_V06"
    start, bbox = DAY + timedelta(hours=4, minutes=5, seconds=6), (-101.3, 34.8, -91.1, 43.1)
    return _envelope("nexrad-l2", uri, start, start + timedelta(minutes=6), bbox, properties=_NEXRAD_PROPERTIES)


def run_state(dataset: str, run_id: str = RUN_ID) -> dict[str, str]:
    """Return the node and run that register an Item."""
    return {"dataset_id": f"{dataset}.stac_register", "run_id": run_id}


def candidates(contracts: ContractRegistry, envelopes: Sequence[Envelope], run_id: str = RUN_ID) -> list[Candidate]:
    """Return the candidates that a run's stac-register builds; the Items name the run."""
    return [
        stac_register(
            envelope,
            contract=contracts[envelope.dataset],
            grammar=contracts.grammars[envelope.dataset],
            run_state=run_state(envelope.dataset, run_id),
        )
        for envelope in envelopes
    ]


def with_metadata(envelope: Envelope, **changes: Any) -> Envelope:
    """Return the envelope with changed metadata."""
    return envelope.evolve(metadata=replace(envelope.metadata, **changes))


def _envelope(
    dataset: str,
    uri: str,
    start: datetime,
    end: datetime,
    bbox: tuple[float, float, float, float],
    *,
    properties: dict[str, Any],
    version: str = MD5,
    sequencer: str | None = None,
    sidecars: dict[str, str] | None = None,
) -> Envelope:
    if "forecast:horizon" in properties:
        times = {"datetime": rfc3339(end)}
    else:
        times = {"datetime": rfc3339(start), "start_datetime": rfc3339(start), "end_datetime": rfc3339(end)}
    return factories.envelope(
        dataset=dataset,
        object_uri=uri,
        event_time=end + timedelta(seconds=30),
        time_range_start=start,
        time_range_end=end,
        object_version=version,
        object_size=4_000_000,
        sequencer=sequencer,
        integrity=Integrity(status=CheckStatus.OK, actual_size_bytes=4_000_123, actual_etag=version),
        metadata=Metadata(
            status=CheckStatus.OK,
            geometry=box(*bbox),
            bbox=bbox,
            stac_properties={**times, **properties},
            sidecars=sidecars or {},
        ),
    )


def _stamp(time: datetime) -> str:
    return f"{time:%Y%j%H%M%S}{time.microsecond // 100_000}"
