"""A materialisation's metadata: outcome, failing units, links, footprints, counts, evidence.

A day's page shows only the latest materialisation, which does not have the failures of earlier runs. So the stage's
outcome is followed by the ledger's counts of the whole day (`day...`), and by the run's share of the day (`run_...`).

A day without units is materialised, too: since 1.13.22 (dagster-io/dagster#34219), Dagster counts an asset backfill as
failed if one of its days has no materialisation. The beginning of the metadata, a warning of the day's check, and the
run's tags show that a day is empty.

The map of footprints has at most some twenty kilobytes, because the event log stores it with each materialisation.

Belongs here: the facts in the order of a reader's questions, and the size and caption of the map.
Does not belong here: the map (`drawing/footprints.py`), selecting failing units (`ledger/reports.py`), or the rows of
arrivals (`ingest/path_arrivals.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.defs.chain import node_of
from kfm_dagster.drawing.footprints import draw
from kfm_dagster.drawing.map_ground import Size
from kfm_dagster.drawing.svg import data_url
from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.exports.explanations.run_report import NodeAccount
from kfm_dagster.ingest.nodes import MetadataExtract, Settle, StacRegister
from kfm_dagster.ingest.path_arrivals import product_of
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.reports import DayReport, FailingUnit
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import Settings
from kfm_dagster.stages.batch import SkipCause, StageBatch
from kfm_dagster.stages.staged import StagedNode

MAX_TABLE_ROWS = 50
"""Rows of a table in the UI; the artifact has all rows."""
FAILING_COLUMNS = ("code", "message", "object_uri", "attempt", "wal_id")
"""The reason comes first, because a page cuts off the last columns."""
SHOWN_IN_PLACE = 1_000
"""Number of characters above which the UI hides Markdown behind a click."""


def failing_in_run(failing: Sequence[Envelope], *, console: str, run_id: str) -> dict[str, Any]:
    """Return a run's failing units as metadata: a table, and links if `console` is set."""
    rows = [
        # The code becomes a text, because it may be a member of an enum that Dagster does not know.
        (str(unit.failure.code), unit.failure.message, unit.object_uri, unit.attempt, unit.wal_id)
        for unit in failing[:MAX_TABLE_ROWS]
        if unit.failure is not None
    ]
    return _shown(rows, console, every=f"runs/{run_id}")


def failing_of_day(failing: Sequence[FailingUnit], *, console: str, dataset: str) -> dict[str, Any]:
    """Return a day's failing units as metadata: a table, and links if `console` is set."""
    rows = [(unit.code, unit.message, unit.object_uri, unit.attempts, unit.wal_id) for unit in failing]
    return _shown(rows, console, every=f"failures?dataset={dataset}")


def console_links(named: Iterable[tuple[str, str]], console: str) -> dict[str, dg.MarkdownMetadataValue]:
    """Return at most SHOWN_IN_PLACE characters of links to units (text, wal_id).

    A table's cells cannot have links.
    """
    lines: list[str] = []
    for text, wal_id in named if console else ():
        # Brackets would end the link's text.
        line = f"- [{text.replace('[', '(').replace(']', ')')}]({console.rstrip('/')}/units/{wal_id})"
        if len("\n".join([*lines, line])) >= SHOWN_IN_PLACE:
            break
        lines.append(line)
    return {"in_console": dg.MetadataValue.md("\n".join(lines))} if lines else {}


def _shown(rows: Sequence[tuple[str, str, str, int, str]], console: str, *, every: str) -> dict[str, Any]:
    """Return table and links, if any; `every` is the console's page of all these units."""
    if not rows:
        return {}
    named = ((f"{code}: {uri.rpartition('/')[2]}", wal_id) for code, _, uri, _, wal_id in rows)
    table = dg.MetadataValue.table([dg.TableRecord(dict(zip(FAILING_COLUMNS, row, strict=True))) for row in rows])
    shown: dict[str, Any] = {"failing_units": table, **console_links(named, console)}
    if console:
        shown["all_in_console"] = dg.MetadataValue.url(f"{console.rstrip('/')}/{every}")
    return shown


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
    """Return the metadata of a materialisation; `account` is the node's part of `kfm runs show`.

    `run_passed`, `run_failed` and, if not zero, `run_failed_earlier` and `run_given_back` (units whose claim the run
    has lost) sum to `run_units`. A wholly reused output is not read again, so its Items and footprints are only shown
    with the run that computed the output.
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
    """Return the metadata of the observation that reports a skipped stage."""
    by = stage.skipped.applied_by if stage.skipped else None
    return {
        **_lead("skipped", day_sentence(day), account, cause=cause.value),
        **({"applied_by": by} if by else {}),
        **day_counts(day),
        **account.took,
        **_evidence({"inputs_hash": stage.key.inputs_hash}, account),
    }


def _day_by(noun: str, day: DayReport) -> str:
    """Return the day's sentence; while units are in progress, it says that it is not final."""
    at_work = day.counts[Status.IN_PROGRESS] and noun != Settle.asset
    return f"{day_sentence(day)} when this step ended; final: asset {Settle.asset}" if at_work else day_sentence(day)


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


def arrivals_metadata(batch: StageBatch) -> dict[str, Any]:
    """Return the metadata of `path_arrival` besides its units: the tables and their rows."""
    summary = batch.state.validation_summary
    return {"rows": summary["rows"], "table": product_of(summary).uri, "paths": product_of(summary, "paths").uri}


def account_of(pipeline: Pipeline, dataset_id: str, run_id: str) -> NodeAccount:
    """Return what a root run recorded about a node."""
    recorded = Explanations(database=pipeline.database, run_states=pipeline.stages.run_states)
    return recorded.node(dataset_id, run_id)


def _failed_earlier(noun: str, failing: Sequence[Envelope]) -> int:
    """Count the units that left the chain before this operator."""
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
    # Padded, because the UI only collapses long texts.
    return {"evidence": dg.MetadataValue.md("\n\n".join(parts).ljust(SHOWN_IN_PLACE))}


_OF_ACCOUNT = ("content_hash", "intent", "applied_by")
"""Fields of an account that are evidence: the content, the intent, and the run that applied the content."""


def _inputs(inputs: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for entry in inputs for name in entry))
    shown = [[str(entry.get(name, "")) for name in names] for entry in inputs[:MAX_TABLE_ROWS]]
    title = f"inputs, {len(shown)} of {len(inputs)}:" if len(inputs) > len(shown) else "inputs:"
    return f"{title}\n\n{markdown_table(names, shown)}"


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as Markdown, with bars in cells escaped."""
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


WIDTH = 720
"""Pixels of a map."""
_SIZE = Size(width=WIDTH, min_height=240, max_height=480, lines=10)


def footprint_map(geometries: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a map of geometries' outer rings and points as Markdown; None if it would be empty."""
    picture = draw(geometries, _SIZE)
    if picture is None:
        return None
    svg, distinct, drawn = picture
    caption = f"Footprints: {len(geometries)}; distinct outlines: {distinct}; drawn: {drawn}."
    return f"![footprints]({data_url(svg)})\n\n{caption}"
