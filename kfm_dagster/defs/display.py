"""What a materialisation shows: counts, a table of failing units, links, and a picture of the footprints.

Belongs here: which facts, in the order in which a person asks for them. Does not belong here: the drawing
(`footprint_map.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.arrival_plot import arrival_plot
from kfm_dagster.defs.footprint_map import footprint_map
from kfm_dagster.ingest.arrival_table import read_table
from kfm_dagster.ingest.explanation import Explanations
from kfm_dagster.ingest.path_arrivals import product_of
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.run_account import NodeAccount
from kfm_dagster.stages.batch import StageBatch

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact holds them all."""

_NO_COUNTS = {"checks", "passed", "failed", "cause", "applied_by", "restricted", "rows", "product", "quantities"}
"""Members of a validation summary that count no units by their end, or are shown under names of their own."""
_FOOTPRINT_NOUNS = {"metadata", "stac_items"}
_SECTIONS = {"integrity": "integrity", "metadata": "metadata", "stac_items": "stac", "provenance": "provenance"}
"""Asset noun > the section that its operator adds to every unit it works on."""


def stage_metadata(noun: str, batch: StageBatch, *, catalog: str, account: NodeAccount | None = None) -> dict[str, Any]:
    """Return the metadata of one materialisation; `account` is what `kfm explain` tells of the node.

    `passed`, `failed` and, where there are some, `failed_earlier` and `given_back` (no longer this run's) sum to
    `units`. What was handed on whole is not read again: its Items and footprints stand with the run that made it.
    """
    units, state = batch.envelopes, batch.state
    summary = state.validation_summary
    seen: Sequence[Envelope] = () if batch.handed_on_whole else units
    failing = [unit for unit in seen if unit.failure is not None]
    earlier = _failed_earlier(noun, failing)
    given_back = len(units) - summary["checks"] - earlier
    shown: dict[str, Any] = {"units": len(units), "passed": summary["passed"], "failed": summary["failed"]}
    shown |= {name: n for name, n in (("failed_earlier", earlier), ("given_back", given_back)) if n}
    shown |= {f"settled_{name}": count for name, count in summary.items() if name not in _NO_COUNTS}
    if noun == "stac_items":
        written = Counter(unit.stac.write_status.value for unit in seen if unit.stac is not None)
        shown |= {f"items_{status}": count for status, count in sorted(written.items())}
        shown["catalog"] = _link(catalog)
    if failing:
        shown["failing_units"] = failing_units(failing)
    if noun in _FOOTPRINT_NOUNS and (picture := footprint_picture(seen)):
        shown["footprints"] = dg.MetadataValue.md(picture)
    if batch.restricted:
        shown["tag"] = f"[Restricted] {', '.join(batch.restricted)}"
    if batch.skipped:
        shown["skip_cause"] = batch.skipped.value
    # What a person needs only to go deeper comes last.
    return shown | {
        "outcome": "skipped" if batch.skipped else state.outcome.value,
        "run_state": f"{state.dataset_id} / {state.run_id}",
        "inputs_hash": state.inputs_hash,
        "artifact": str(state.artifact_uri),
        **(account_metadata(account) if account else {}),
    }


def arrivals_metadata(pipeline: Pipeline, batch: StageBatch) -> dict[str, Any]:
    """Return what a materialisation of `path_arrival` shows besides its units: the table's rows, and their plot."""
    summary = batch.state.validation_summary
    table = product_of(summary)
    shown: dict[str, Any] = {"rows": summary["rows"], "table": table.uri}
    if picture := arrival_plot(read_table(pipeline.artifacts, table)):
        shown["arrivals"] = dg.MetadataValue.md(picture)
    return shown


def account_of(pipeline: Pipeline, dataset_id: str, run_id: str) -> NodeAccount:
    """Return what a node has recorded in a root run."""
    return Explanations(database=pipeline.database, run_states=pipeline.stages.run_states).node(dataset_id, run_id)


def account_metadata(account: NodeAccount) -> dict[str, Any]:
    """Return what an account says besides counts: which content it was, who applied it, and from which inputs."""
    told = {
        "content_hash": account.content_hash,
        "intent": account.intent,
        "applied_by": account.applied_by,
        "forced": account.forced,
    }
    shown: dict[str, Any] = {name: str(value) for name, value in told.items() if value is not None}
    if account.inputs:
        shown["inputs"] = dg.MetadataValue.json([dict(entry) for entry in account.inputs[:MAX_TABLE_ROWS]])
    return shown | dict(account.took)


def failing_units(failing: Sequence[Envelope]) -> dg.TableMetadataValue:
    """Return a table of failing units, at most MAX_TABLE_ROWS of them; the reason first, for a page cuts the rest."""
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    # In the process that gave it, it is a member of an enum that Dagster does not know.
                    "code": str(unit.failure.code),
                    "message": unit.failure.message,
                    "object_uri": unit.object_uri,
                    "attempt": unit.attempt,
                    "wal_id": unit.wal_id,
                }
            )
            for unit in failing[:MAX_TABLE_ROWS]
            if unit.failure is not None
        ],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("code", "string"),
                dg.TableColumn("message", "string"),
                dg.TableColumn("object_uri", "string"),
                dg.TableColumn("attempt", "int"),
                dg.TableColumn("wal_id", "string"),
            ]
        ),
    )


def footprint_picture(units: Sequence[Envelope]) -> str | None:
    """Return a map of the units' footprints as Markdown, or None when no unit has one."""
    return footprint_map(
        [unit.metadata.geometry for unit in units if unit.metadata is not None and unit.metadata.geometry is not None]
    )


def _failed_earlier(noun: str, failing: Sequence[Envelope]) -> int:
    """Count the units that had left the chain before this operator, which therefore did not look at them."""
    section = _SECTIONS.get(noun)
    return 0 if section is None else sum(1 for unit in failing if getattr(unit, section) is None)


def _link(catalog: str) -> dg.PathMetadataValue | dg.UrlMetadataValue:
    if "://" in catalog:
        return dg.MetadataValue.url(f"{catalog.rstrip('/')}/catalog.json")
    return dg.MetadataValue.path(str(Path(catalog) / "catalog.json"))
