"""What a materialisation shows: counts, a table of failing units, links, and a picture of the footprints."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.stages.run_contract import StageBatch

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact holds them all."""
MAX_FOOTPRINTS = 200
"""Distinct footprints drawn; a day of one radar network has about 160."""

_FOOTPRINT_NOUNS = {"metadata", "stac_items"}


def stage_metadata(noun: str, batch: StageBatch, *, catalog: str) -> dict[str, Any]:
    """Return the metadata of one materialisation; counts sum to `units`."""
    units, state = batch.envelopes, batch.state
    failing = [unit for unit in units if unit.failure is not None]
    summary = state.validation_summary
    shown: dict[str, Any] = {
        "units": len(units),
        "passed": summary["passed"],
        "failed": summary["failed"],
        "outcome": "skipped" if batch.skipped else state.outcome.value,
        "inputs_hash": state.inputs_hash,
        "run_state": f"{state.dataset_id} / {state.run_id}",
        "artifact": str(state.artifact_uri),
    }
    if batch.skipped:
        shown["skip_cause"] = batch.skipped.value
    shown |= {f"settled_{name}": count for name, count in summary.items() if name not in {"checks", "passed", "failed"}}
    if noun == "stac_items":
        written = Counter(unit.stac.write_status.value for unit in units if unit.stac is not None)
        shown |= {f"items_{status}": count for status, count in sorted(written.items())}
        shown["catalog"] = _link(catalog)
    if failing:
        shown["failing_units"] = failing_units(failing)
    if noun in _FOOTPRINT_NOUNS and (picture := footprint_picture(units)):
        shown["footprints"] = dg.MetadataValue.md(picture)
    return shown


def failing_units(failing: Sequence[Envelope]) -> dg.TableMetadataValue:
    """Return a table of failing units, at most MAX_TABLE_ROWS of them."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "wal_id": unit.wal_id,
                    "object_uri": unit.object_uri,
                    "code": unit.failure.code,
                    "message": unit.failure.message,
                    "attempt": unit.attempt,
                }
            )
            for unit in failing[:MAX_TABLE_ROWS]
            if unit.failure is not None
        ],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("wal_id", "string"),
                dg.TableColumn("object_uri", "string"),
                dg.TableColumn("code", "string"),
                dg.TableColumn("message", "string"),
                dg.TableColumn("attempt", "int"),
            ]
        ),
    )


def footprint_picture(units: Sequence[Envelope]) -> str | None:
    """Return the units' footprints as Markdown with an embedded SVG (equirectangular, 2 px per degree), or None."""
    rings = sorted({ring for unit in units for ring in _rings(unit)})[:MAX_FOOTPRINTS]
    if not rings:
        return None
    grid = "".join(f'<path d="M{x} 0V360" stroke="#dde"/>' for x in range(0, 721, 60))
    grid += "".join(f'<path d="M0 {y}H720" stroke="#dde"/>' for y in range(0, 361, 60))
    shapes = "".join(f'<polygon points="{ring}"/>' for ring in rings)
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 360" width="720" height="360">'
        f'<rect width="720" height="360" fill="#f7f9fc"/>{grid}'
        f'<g fill="#2a6fdb" fill-opacity="0.12" stroke="#2a6fdb" stroke-width="1">{shapes}</g></svg>'
    )
    return f"![footprints](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _rings(unit: Envelope) -> Iterator[str]:
    geometry: Mapping[str, Any] | None = unit.metadata.geometry if unit.metadata else None
    if geometry is None:
        return
    polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
    for polygon in polygons:
        yield " ".join(f"{(point[0] + 180) * 2:.1f},{(90 - point[1]) * 2:.1f}" for point in polygon[0])


def _link(catalog: str) -> dg.PathMetadataValue | dg.UrlMetadataValue:
    if "://" in catalog:
        return dg.MetadataValue.url(f"{catalog.rstrip('/')}/catalog.json")
    return dg.MetadataValue.path(str(Path(catalog) / "catalog.json"))
