"""/validate: results of units and stages of the last days, and the pipeline card's KPIs.

    units       units of the ledger by status, and number of units that runs of these days returned for another attempt
    p_dim       share of quantities that close dimensionally, in each dataset's newest metadata and newest path; None
                without quantities

Belongs here: counting, and the report's tables with its figures as text, for pages and terminals. Does not belong here:
KPIs (`kpis.py`), the rules behind the counts (`stages/`), a terminal's tables (`cli/report.py`), pages
(`console/pages.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.exports.kpis import KPIS, Line, RecordedSpan, attempts_table, settled
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.nodes import MetadataExtract
from kfm_dagster.ingest.path_arrivals import NODE as PATH_ARRIVAL
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.stages.audit import AuditKind
from kfm_dagster.stages.card import StageState
from kfm_dagster.stages.envelope_table import from_parquet
from kfm_dagster.stages.gates.dimensions import dim_report, p_dim_against
from kfm_dagster.stages.gates.subject import Subject
from kfm_dagster.stages.gates.verdict import Gate, Gates
from kfm_dagster.stages.store import StageStore
from kfm_dagster.storage.artifacts import ArtifactReference, Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.set_questions import ask
from kfm_dagster.telemetry.clock.reading import ClockLog

DAYS, MOST_DAYS = 7, 3650
"""How many days a report covers by default, and at most."""
BY_DAY = "KPIs by day (UTC)"


def validate_report(pipeline: Pipeline, *, since: datetime) -> dict[str, Any]:
    """Return the report from `since` on as JSON. Raises ArtifactError for damaged outputs."""
    # Not `pipeline.stages`, which may record the run-state store as the deployment's own; a report must not write.
    store = StageStore(pipeline.database, clock=pipeline.clock)
    at = pipeline.clock()
    with pipeline.database.snapshot() as view:
        attempts = store.since(since, tx=view)
        lines = store.audit.since(since, tx=view)
        length, head = store.audit.head(tx=view)
        counts = pipeline.ledger.counts(tx=view)
        waiting_since = pipeline.ledger.oldest_waiting(tx=view)
        replays = [row.created_at for row in view.run("stages.replays_since", since=since)]
    readings = ClockLog(pipeline.database).recent(since=since)
    recorded = RecordedSpan(attempts=attempts, lines=lines, replays=replays, readings=readings)
    closure = dimensional_closure(pipeline, since=since)
    kpis = {**recorded.kpis(), "p_dim": closure["p_dim"]}
    retries = [line for line in lines if line["kind"] == AuditKind.RETRY]
    states: dict[str, dict[str, int]] = defaultdict(dict)
    # For each stage, the query counts the newest attempt of each run by state.
    for stage, state, runs in ask("reports.stage_states", attempts=attempts_table(attempts)):
        states[stage][state] = runs
    return {
        "at": rfc3339(at),
        "since": rfc3339(since),
        "units": _units(counts, lines, waiting_since=waiting_since, at=at),
        "stages": states,
        "gates": _gates(lines),
        "stops_triggered": _counted(line["event"] for line in lines if line["kind"] == AuditKind.STOP),
        "errors": _counted(attempt.error_class.value for attempt in attempts if attempt.error_class),
        "restricted": _counted(gate for attempt in attempts for gate in attempt.restricted),
        "retries": {
            "count": len(retries),
            "by_stage": _counted(line["stage"] for line in retries),
            "interval_seconds": [line["details"]["interval_seconds"] for line in retries],
        },
        "rollbacks": sum(attempt.state is StageState.ROLLED_BACK for attempt in attempts),
        "replays": {"count": kpis["replay_count"], "stages": len(recorded.replayed())},
        "dimensional_closure": {"p_dim": closure["p_dim"], "ok": closure["ok"]},
        "kpis": kpis,
        "kpi_definitions": {name: kpi._asdict() for name, kpi in KPIS.items()},
        "kpis_by_day": [{"day": day, **of_day.kpis()} for day, of_day in recorded.by_day().items()],
        "delivery": pipeline.card.machine.delivery,
        "audit": {"lines": length, "head": head},
    }


def dimensional_closure(pipeline: Pipeline, *, since: datetime) -> dict[str, Any]:
    """Return `check_dim_report.json`: p_dim, and the quantities behind it by dataset.

    The quantities are of the newest metadata and path. p_dim is None without quantities.
    """
    registry, rules = pipeline.registry, pipeline.card.machine.gates
    least = rules.G4.min_p_dim
    candidates = chain(
        (_reports_of_metadata(pipeline.database, pipeline.artifacts, contract, since, rules) for contract in registry),
        (_reports_of_paths(pipeline.nodes, contract, since, least) for contract in registry),
    )
    reports = [report for of_dataset in candidates if (report := _newest_with_quantities(of_dataset)) is not None]
    p_dim = _share(quantity for report in reports for quantity in report["quantities"])
    return {**p_dim_against(p_dim, least), "datasets": reports}


def _reports_of_metadata(
    database: Database, artifacts: Artifacts, contract: DatasetContract, since: datetime, rules: Gates
) -> Iterator[dict[str, Any]]:
    """Yield the reports of a dataset's metadata, newest first."""
    stage = f"{contract.id}.{MetadataExtract.operator}"
    with database.snapshot() as view:
        rows = view.run("stages.newest_outputs", stage=stage, since=since).all()
    seen = set()
    for row in rows:
        # Outputs are stored by content: all runs without results share an output, which is read once.
        if row.output_sha256 in seen:
            continue
        seen.add(row.output_sha256)
        stored = artifacts.get(ArtifactReference(uri=row.checkpoint_uri, sha256=row.output_sha256))
        subject = Subject(
            stage=MetadataExtract.operator,
            contract=contract,
            envelopes=from_parquet(stored),
            reference_time=row.ended_at,
            rules=rules,
        )
        yield {"run_id": row.run_id, **dim_report(subject)}


def _reports_of_paths(
    nodes: IdempotentNodes, contract: DatasetContract, since: datetime, least: float
) -> Iterator[dict[str, Any]]:
    """Yield recorded reports of a dataset's radar beam paths, newest first; none without beams."""
    for output in nodes.newest_of_stage(f"{contract.id}.{PATH_ARRIVAL}", since=since):
        quantities = output.record["validation_summary"].get("quantities", ())  # missing in earlier releases
        yield {
            "run_id": output.record["run_id"],
            "dataset": contract.public_id,
            "stage": PATH_ARRIVAL,
            "reference_time": None if output.valid_from is None else output.valid_from.isoformat(),
            **p_dim_against(_share(quantities), least),
            "quantities": quantities,
        }


def _newest_with_quantities(reports: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the first report with a quantity, else the first; some runs have no results."""
    first = None
    for report in reports:
        if report["p_dim"] is not None:
            return report
        first = first or report
    return first


def _share(quantities: Iterable[Line]) -> float | None:
    """Return the share of closed values, or None without values."""
    counts = [(line["closed"], line["values"]) for line in quantities]
    values = sum(value for _, value in counts)
    return sum(closed for closed, _ in counts) / values if values else None


def _units(
    counts: Mapping[str, Mapping[Status, int]], lines: Sequence[Line], *, waiting_since: datetime | None, at: datetime
) -> dict[str, Any]:
    """Count units by status, urgent statuses first, and units returned for another attempt."""
    totals = {status.value: sum(of_dataset[status] for of_dataset in counts.values()) for status in Status}
    return {
        "quarantined": totals.pop(Status.QUARANTINED),
        "failed": totals.pop(Status.FAILED),
        "oldest_waiting_since": None if waiting_since is None else rfc3339(waiting_since),
        "oldest_waiting_seconds": None if waiting_since is None else (at - waiting_since).total_seconds(),
        **totals,
        "retries": sum(line["details"].get("retrying", 0) for line in settled(lines)),
    }


def _gates(lines: Iterable[Line]) -> dict[str, dict[str, Any]]:
    outcomes: dict[str, Counter[str]] = {gate.value: Counter() for gate in Gate}
    for line in lines:
        if line["kind"] == AuditKind.GATE:
            outcomes[line["event"]][line["details"]["outcome"]] += 1
    return {
        gate: {
            "title": Gate(gate).words,
            "looked_at": (total := counts.total()),
            "pass_rate": counts["passed"] / total if total else None,
            "outcomes": dict(sorted(counts.items())),
        }
        for gate, counts in outcomes.items()
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


class ReportTable(NamedTuple):
    """A titled table of the report's values."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def report_tables(report: Mapping[str, Any]) -> Iterator[ReportTable]:
    """Yield the tables of a report, for a page and a terminal; urgent tables come first."""
    states = sorted({state for counts in report["stages"].values() for state in counts})
    stages = [(stage, *(counts.get(state, "") for state in states)) for stage, counts in report["stages"].items()]
    gates = [
        (f"{name} {gate['title']}", gate["looked_at"], gate["pass_rate"], gate["outcomes"])
        for name, gate in report["gates"].items()
    ]
    counts = {f"{name} of stages": report[name]["count"] for name in ("retries", "replays")}
    counts |= {"rollbacks": report["rollbacks"]}
    kpis = [(name, value, *report["kpi_definitions"][name].values()) for name, value in report["kpis"].items()]
    by_day = [tuple(day.values()) for day in report["kpis_by_day"]]
    yield ReportTable("Units", ("what", "value"), list(report["units"].items()))
    yield ReportTable("Stages", ("stage", *states), stages)
    yield ReportTable("Gates", ("gate", "looked at", "pass rate", "outcomes"), gates)
    yield ReportTable("Stops", ("stop", "times"), list(report["stops_triggered"].items()))
    yield ReportTable("Errors", ("class", "stages"), list(report["errors"].items()))
    yield ReportTable("Restricted outputs", ("because of", "stages"), list(report["restricted"].items()))
    yield ReportTable("Retries and replays", ("what", "count"), list(counts.items()))
    yield ReportTable("KPIs", ("KPI", "value", "definition", "source"), kpis)
    yield ReportTable(BY_DAY, ("day", *report["kpi_definitions"]), by_day)


def figure(value: Any) -> str:
    """Return a value of the report as text: six significant digits, `none` for a missing value.

    A share below 1 is never rounded to 1.
    """
    if value is None or value == {}:
        return "none"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if text != "1" or value == 1 else repr(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {figure(entry)}" for name, entry in value.items())
    return str(value)
