"""What a materialisation shows: counts, a table of failing units, links, and a picture of the footprints.

The latest materialisation of a day is what its page shows, and a later run may have had nothing to do with what an
earlier one left behind. So the day comes first, as the ledger knows it (`day...`), and the run's share beside it
(`run_...`).

A day of which nothing is known is materialised all the same, and says that it is empty: without a materialisation,
Dagster (since 1.13.22, dagster-io/dagster#34219) takes the day of an asset backfill for failed, and its backfill with
it. So it says so where people look: first in the metadata, as a warning of its check, and in the run's tags.

Belongs here: which facts, in the order in which a person asks for them. Does not belong here: the drawing
(`footprint_map.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.arrival_plot import arrival_plot
from kfm_dagster.defs.chain import node_of
from kfm_dagster.defs.footprint_map import footprint_map
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.exports.explanations.run_report import NodeAccount
from kfm_dagster.ingest.arrival_table import read_table
from kfm_dagster.ingest.nodes import MetadataExtract, StacRegister
from kfm_dagster.ingest.path_arrivals import product_of
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.reports import DayReport, FailingUnit
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.staged import StagedNode

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact holds them all."""

_NO_COUNTS = {
    "checks",
    "passed",
    "failed",
    "cause",
    "applied_by",
    "restricted",
    "rows",
    "product",
    "paths",
    "quantities",
}
"""Members of a validation summary that count no units by their end, or are shown under names of their own."""
_LEFT = (Status.QUARANTINED, Status.FAILED, Status.PENDING, Status.IN_PROGRESS)
"""What is not done of a day, in the order in which it needs care."""
_FOOTPRINT_NOUNS = {MetadataExtract.asset, StacRegister.asset}


def day_sentence(day: DayReport) -> str:
    """Say what became of a day, what needs care first."""
    if not day.units:
        return "empty: nothing of this day is known"
    left = [f"{day.counts[status]} {status.replace('_', ' ')}" for status in _LEFT if day.counts[status]]
    return f"{', '.join(left)}{'; ' if left else ''}{day.counts[Status.SUCCEEDED]} of {day.units} succeeded"


def day_metadata(day: DayReport) -> dict[str, Any]:
    """Return a day's totals: numbers, which Dagster plots over the partitions, below the sentence that they make."""
    counts = {f"day_{status}": day.counts[status] for status in (*_LEFT, Status.SUCCEEDED)}
    return {"day": day_sentence(day), "day_units": day.units, **counts}


def stage_metadata(
    noun: str, batch: StageBatch, *, day: DayReport, catalog: str, account: NodeAccount | None = None
) -> dict[str, Any]:
    """Return the metadata of one materialisation; `account` is what `kfm explain` tells of the node.

    `run_passed`, `run_failed` and, where there are some, `run_failed_earlier` and `run_given_back` (no longer this
    run's) sum to `run_units`. What was handed on whole is not read again: its Items and footprints stand with the run
    that made it.
    """
    units, state = batch.envelopes, batch.state
    summary = state.validation_summary
    seen: Sequence[Envelope] = () if batch.reused_whole else units
    failing = [unit for unit in seen if unit.failure is not None]
    earlier = _failed_earlier(noun, failing)
    given_back = len(units) - summary["checks"] - earlier
    shown: dict[str, Any] = day_metadata(day)
    shown |= {"run_units": len(units), "run_passed": summary["passed"], "run_failed": summary["failed"]}
    shown |= {name: n for name, n in (("run_failed_earlier", earlier), ("run_given_back", given_back)) if n}
    shown |= {f"run_{name}": count for name, count in summary.items() if name not in _NO_COUNTS}
    if noun == StacRegister.asset:
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


def skip_metadata(stage: StagedNode, cause: SkipCause, *, day: DayReport, account: NodeAccount) -> dict[str, Any]:
    """Return the metadata of an observation that a stage had nothing to do."""
    by = stage.skipped.applied_by if stage.skipped else None
    return {
        **day_metadata(day),
        "outcome": "skipped",
        "cause": cause.value,
        "inputs_hash": stage.key.inputs_hash,
        **account_metadata(account),
        **({"applied_by": by} if by else {}),
    }


def arrivals_metadata(pipeline: Pipeline, batch: StageBatch) -> dict[str, Any]:
    """Return what a materialisation of `path_arrival` shows besides its units: the table's rows, and their plot."""
    summary = batch.state.validation_summary
    table = product_of(summary)
    shown: dict[str, Any] = {"rows": summary["rows"], "table": table.uri, "paths": product_of(summary, "paths").uri}
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
    """Return a table of a run's failing units, at most MAX_TABLE_ROWS of them."""
    return _units_table(
        {
            # In the process that gave it, it is a member of an enum that Dagster does not know.
            "code": str(unit.failure.code),
            "message": unit.failure.message,
            "object_uri": unit.object_uri,
            "attempt": unit.attempt,
            "wal_id": unit.wal_id,
        }
        for unit in failing[:MAX_TABLE_ROWS]
        if unit.failure is not None
    )


def day_failing_units(failing: Sequence[FailingUnit]) -> dg.TableMetadataValue:
    """Return a table of a day's failing units."""
    return _units_table(
        {
            "code": unit.code,
            "message": unit.message,
            "object_uri": unit.object_uri,
            "attempt": unit.attempts,
            "wal_id": unit.wal_id,
        }
        for unit in failing
    )


def _units_table(rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return a table with the reason first, for a page cuts the rest."""
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in rows],
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
    maker = node_of(noun)
    section = maker.section if maker else None
    return 0 if section is None else sum(1 for unit in failing if getattr(unit, section) is None)


def _link(catalog: str) -> dg.PathMetadataValue | dg.UrlMetadataValue:
    if "://" in catalog:
        return dg.MetadataValue.url(f"{catalog.rstrip('/')}/catalog.json")
    return dg.MetadataValue.path(str(Path(catalog) / "catalog.json"))
