"""A materialisation's metadata: outcome, failing units, links, footprints, counts, evidence.

A day's page shows its latest materialisation, and a later run may have had no part in the failures of an earlier one.
So the stage's outcome is followed by the whole day as the ledger knows it (`day...`), and by the run's share of it
(`run_...`).

An unknown day is materialised all the same, as empty: without a materialisation, Dagster (since 1.13.22,
dagster-io/dagster#34219) counts the day of an asset backfill as failed, and the backfill with it. Emptiness is
therefore shown first in the metadata, as a warning of the day's check, and in the run's tags.

Belongs here: the facts and their order, which is that of a reader's questions. Does not belong here: the drawing
(`pictures.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.chain import node_of
from kfm_dagster.defs.failing_units import MAX_TABLE_ROWS, SHOWN_IN_PLACE, failing_in_run
from kfm_dagster.defs.pictures import arrival_plot, footprint_map
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.exports.explanations.run_report import NodeAccount
from kfm_dagster.ingest.nodes import MetadataExtract, Settle, StacRegister
from kfm_dagster.ingest.path_arrivals import product_of, read_table
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.staged import StagedNode
from kfm_dagster.storage.artifacts import Artifacts

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
"""Members of a validation summary that do not count units by outcome, or are shown under other names."""
_LEFT = (Status.QUARANTINED, Status.FAILED, Status.PENDING, Status.IN_PROGRESS)
"""Statuses of a day's unfinished units, the most urgent first."""
_FOOTPRINT_NOUNS = {MetadataExtract.asset, StacRegister.asset}


def day_sentence(day: DayReport) -> str:
    """Return a day's counts as a sentence, the most urgent status first."""
    if not day.units:
        return "empty: nothing of this day is known"
    left = [f"{day.counts[status]} {status.replace('_', ' ')}" for status in _LEFT if day.counts[status]]
    return f"{', '.join(left)}{'; ' if left else ''}{day.counts[Status.SUCCEEDED]} of {day.units} succeeded"


def day_counts(day: DayReport) -> dict[str, int]:
    """Return a day's totals, which Dagster plots over the partitions."""
    return {"day_units": day.units, **{f"day_{status}": day.counts[status] for status in (*_LEFT, Status.SUCCEEDED)}}


def stage_metadata(
    noun: str, batch: StageBatch, *, day: DayReport, settings: Settings, account: NodeAccount | None = None
) -> dict[str, Any]:
    """Return the metadata of one materialisation; `account` is the node's part of `kfm explain`.

    `run_passed`, `run_failed` and, where there are some, `run_failed_earlier` and `run_given_back` (no longer this
    run's) sum to `run_units`. A wholly reused output is not read again: its Items and footprints are shown with the
    run that computed it.
    """
    units, state = batch.envelopes, batch.state
    seen: Sequence[Envelope] = () if batch.reused_whole else units
    failing = [unit for unit in seen if unit.failure is not None]
    cause = batch.skipped.value if batch.skipped else None
    shown = _lead("skipped" if cause else state.outcome.value, _day_by(noun, day), account, cause=cause)
    if batch.restricted:
        shown["tag"] = f"[Restricted] {', '.join(batch.restricted)}"
    if failing:
        shown |= failing_in_run(failing, console=settings.console_url, run_id=state.run_id)
    if noun == StacRegister.asset:
        written = Counter(unit.stac.write_status.value for unit in seen if unit.stac is not None)
        shown |= {f"items_{status}": count for status, count in sorted(written.items())}
        shown["catalog"] = _link(settings.catalog)
    geometries = [unit.metadata.geometry for unit in seen if unit.metadata and unit.metadata.geometry is not None]
    if noun in _FOOTPRINT_NOUNS and (picture := footprint_map(geometries)):
        shown["footprints"] = dg.MetadataValue.md(picture)
    known = {
        "run_state": f"{state.dataset_id} / {state.run_id}",
        "inputs_hash": state.inputs_hash,
        "artifact": str(state.artifact_uri),
    }
    return shown | {
        **day_counts(day),
        **_run_counts(noun, batch, failing),
        **(account.took if account else {}),
        **_evidence(known, account),
    }


def skip_metadata(stage: StagedNode, cause: SkipCause, *, day: DayReport, account: NodeAccount) -> dict[str, Any]:
    """Return the metadata of an observation that a stage had nothing to do."""
    by = stage.skipped.applied_by if stage.skipped else None
    return {
        **_lead("skipped", day_sentence(day), account, cause=cause.value),
        **({"applied_by": by} if by else {}),
        **day_counts(day),
        **account.took,
        **_evidence({"inputs_hash": stage.key.inputs_hash}, account),
    }


def _day_by(noun: str, day: DayReport) -> str:
    """Return the day's sentence as of this step: its page shows it after later steps, too."""
    at_work = day.counts[Status.IN_PROGRESS] and noun != Settle.asset
    return f"{day_sentence(day)} when this step ended; {Settle.asset} has the end" if at_work else day_sentence(day)


def _lead(outcome: str, day: str, account: NodeAccount | None, *, cause: str | None) -> dict[str, Any]:
    """Return the first entries of a page: the stage's outcome and any reason, then the day."""
    why = {"cause": cause, "forced": account.forced if account else None}
    return {"outcome": outcome, **{name: text for name, text in why.items() if text}, "day": day}


def _run_counts(noun: str, batch: StageBatch, failing: Sequence[Envelope]) -> dict[str, int]:
    summary = batch.state.validation_summary
    earlier = _failed_earlier(noun, failing)
    given_back = len(batch.envelopes) - summary["checks"] - earlier
    shown = {"run_units": len(batch.envelopes), "run_passed": summary["passed"], "run_failed": summary["failed"]}
    shown |= {name: n for name, n in (("run_failed_earlier", earlier), ("run_given_back", given_back)) if n}
    return shown | {f"run_{name}": count for name, count in summary.items() if name not in _NO_COUNTS}


def arrivals_metadata(artifacts: Artifacts, batch: StageBatch) -> dict[str, Any]:
    """Return the metadata of `path_arrival` besides its units: the table's rows and a plot."""
    summary = batch.state.validation_summary
    table = product_of(summary)
    shown: dict[str, Any] = {"rows": summary["rows"], "table": table.uri, "paths": product_of(summary, "paths").uri}
    if picture := arrival_plot(read_table(artifacts, table)):
        shown["arrivals"] = dg.MetadataValue.md(picture)
    return shown


def account_of(pipeline: Pipeline, dataset_id: str, run_id: str) -> NodeAccount:
    """Return a node's records of a root run."""
    recorded = Explanations(database=pipeline.database, run_states=pipeline.stages.run_states)
    return recorded.node(dataset_id, run_id)


def _failed_earlier(noun: str, failing: Sequence[Envelope]) -> int:
    """Count the units that left the chain before this operator, which did not evaluate them."""
    maker = node_of(noun)
    section = maker.section if maker else None
    return 0 if section is None else sum(1 for unit in failing if getattr(unit, section) is None)


def _link(catalog: str) -> dg.PathMetadataValue | dg.UrlMetadataValue:
    if "://" in catalog:
        return dg.MetadataValue.url(f"{catalog.rstrip('/')}/catalog.json")
    return dg.MetadataValue.path(str(Path(catalog) / "catalog.json"))


def _evidence(known: Mapping[str, str | None], account: NodeAccount | None) -> dict[str, dg.MarkdownMetadataValue]:
    """Return the metadata entry `evidence`: `known`, the node's account, and its inputs."""
    of_account = {} if account is None else {name: getattr(account, name) for name in _OF_ACCOUNT}
    rows = [[name, str(value)] for name, value in {**known, **of_account}.items() if value is not None]
    parts = [markdown_table(["what", "value"], rows)]
    if account is not None and account.inputs:
        parts.append(_inputs(account.inputs))
    # Padded, because the UI collapses long texts only.
    return {"evidence": dg.MetadataValue.md("\n\n".join(parts).ljust(SHOWN_IN_PLACE))}


_OF_ACCOUNT = ("content_hash", "intent", "applied_by")
"""The applied content, and the run that applied it."""


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in inputs for name in entry))
    shown = [[str(entry.get(name, "")) for name in names] for entry in inputs[:MAX_TABLE_ROWS]]
    title = f"inputs, {len(shown)} of {len(inputs)}:" if len(inputs) > len(shown) else "inputs:"
    return f"{title}\n\n{markdown_table(names, shown)}"


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown, with bars in cells escaped."""
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
