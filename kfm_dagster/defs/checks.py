"""Asset checks of failing units and of feeds' gaps (`gate_checks.py` has those of gates).

`feeds_are_whole` is a check of the queue. Its schedule evaluates it every hour without a run, because a run would cost
seconds. The schedule reports the result if it has changed, and once a day.
"""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import QUEUE_KEY, asset_key
from kfm_dagster.defs.display import MAX_TABLE_ROWS, day_counts, day_sentence, failing_of_day
from kfm_dagster.defs.failing import one_line, redacted
from kfm_dagster.defs.gate_checks import by_day
from kfm_dagster.defs.jobs import GAP_JOB
from kfm_dagster.defs.resources import PipelineResource, WalResource
from kfm_dagster.drawing.svg import data_url
from kfm_dagster.exports.gap_picture import GapPicture, draw, gap_picture
from kfm_dagster.ingest.feed_watch import FeedReport, FeedWatch
from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.plural import counted
from kfm_dagster.stages.batch import StageBatch

MAX_MISMATCHES = 10_000
"""Number of newest differences that a check reads; a run has at most as many units (KFM_MAX_UNITS_PER_RUN)."""
FEED_CHECK = dg.AssetCheckKey(QUEUE_KEY, "feeds_are_whole")
HOURLY = "7 * * * *"
"""Some minutes after the hour, so that the units of objects announced before the hour are settled."""
DAYS = 3
"""Days that the picture shows."""


def unit_checks(registry: ContractRegistry, *, days: dg.PartitionsDefinition) -> list[dg.AssetChecksDefinition]:
    """Return a check per dataset on its `ledger` asset: every unit of the day succeeded."""
    with by_day():
        return [_every_unit_succeeded(contract.id, days) for contract in registry]


def _every_unit_succeeded(dataset: str, days: dg.PartitionsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(dataset, "ledger"),
        name="every_unit_succeeded",
        partitions_def=days,
        description="Fails when a unit of the day failed or is quarantined, in whichever run; the table names each "
        "such unit with its reason. Fails when a repeated unit gave another result than before and nobody approved "
        "this. Warns when another run took over units before this run settled them, or if no unit of the day is known.",
    )
    @redacted
    def every_unit_succeeded(
        context: dg.AssetCheckExecutionContext, ledger: StageBatch, wal: WalResource
    ) -> dg.AssetCheckResult:
        known, day = wal.get(), context.partition_key
        report = known.day(dataset=dataset, partition=day)
        failing = known.failing_of_day(dataset=dataset, partition=day, limit=MAX_TABLE_ROWS)
        mismatched = _mismatched(ledger, known)
        if mismatched:
            context.log.error("results of %s differ from earlier results: %s", dataset, ", ".join(mismatched))
        table = failing_of_day(failing, console=wal.settings().console_url, dataset=dataset)
        return _result(ledger, report, table, mismatched)

    return every_unit_succeeded


def _result(
    ledger: StageBatch, day: DayReport, table: Mapping[str, Any], mismatched: Sequence[str]
) -> dg.AssetCheckResult:
    """Return the check's result: the day by the ledger, and the run's share of the day."""
    # `failing` leaves out units that another run has claimed since, because that run may have ended them successfully.
    units_of_run = () if ledger.reused_whole else ledger.envelopes
    units, lost = len(ledger.envelopes), ledger.state.validation_summary.get("lost", 0)
    failing = sum(1 for unit in units_of_run if unit.failure is not None and unit.failure.code != FenceIssue.CLAIM_LOST)
    out, of_run = sum(day.failing.values()), f"of {counted(units, 'unit')} of this run"
    faults = [
        (out, f"{out} of {counted(day.units, 'unit')} of the day failed or are quarantined"),
        (failing, f"{failing} {of_run} failed"),
        (mismatched, f"{len(mismatched)} {of_run} gave another result than before"),
        (lost, f"{lost} {of_run} were claimed by another run before this run settled them"),
        (not day.units, day_sentence(day)),
    ]
    sentences = [sentence for holds, sentence in faults if holds]
    return dg.AssetCheckResult(
        passed=not sentences,
        severity=dg.AssetCheckSeverity.ERROR if out or failing or mismatched else dg.AssetCheckSeverity.WARN,
        description="; ".join(sentences) or None,
        metadata={
            "rule": "every unit of the day ends with a STAC Item and its lineage",
            "observed": out,
            "expected": 0,
            **table,
            "day": day_sentence(day),
            **day_counts(day),
            "run_units": units,
            "run_failing": failing,
            "run_lost": lost,
            "mismatched_units": list(mismatched),
        },
    )


def _mismatched(ledger: StageBatch, known: Ledger) -> list[str]:
    """Return the units of a run whose result differs from an earlier result without approval."""
    if not ledger.state.validation_summary.get("mismatched"):
        return []
    attempts = {(unit.wal_id, unit.attempt) for unit in ledger.envelopes}
    rows = known.mismatches(limit=MAX_MISMATCHES)
    return sorted(row.wal_id for row in rows if not row.permitted and (row.wal_id, row.attempt) in attempts)


def feed_check() -> dg.AssetChecksDefinition:
    """Return the check of feeds' gaps, which a person can run at any time."""

    @dg.asset_check(
        asset=QUEUE_KEY,
        name=FEED_CHECK.name,
        description="Warns when an hour of a followed product lacks objects, or a product is silent or slow now. The "
        "picture shows the last three days. The schedule nodd_gaps updates it; see docs/gaps.md.",
    )
    @redacted
    def feeds_are_whole(pipeline: PipelineResource) -> dg.AssetCheckResult:
        opened = pipeline.get()
        FeedWatch(opened).look()
        return dg.AssetCheckResult(severity=dg.AssetCheckSeverity.WARN, **_shown(gap_picture(opened, days=DAYS)))

    return feeds_are_whole


def gap_schedule(pipeline: PipelineResource) -> dg.ScheduleDefinition:
    """Return the check's schedule, switched on; like the sensors it keeps its resource."""

    @dg.schedule(
        name="nodd_gaps",
        job_name=GAP_JOB,
        cron_schedule=HOURLY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Records every hour which objects the followed feeds lack, and how late the objects of past days "
        "arrived. Requests no run.",
    )
    @one_line
    def nodd_gaps(context: dg.ScheduleEvaluationContext) -> dg.SkipReason:
        opened = pipeline.get()
        report = FeedWatch(opened).look()
        picture = gap_picture(opened, days=DAYS)
        first_of_day = opened.clock().hour == 0 and bool(picture.rows)
        if report.changed or report.closed or first_of_day:
            evaluation = dg.AssetCheckEvaluation(
                asset_key=QUEUE_KEY,
                check_name=FEED_CHECK.name,
                severity=dg.AssetCheckSeverity.WARN,
                **_shown(picture),
            )
            context.instance.report_runless_asset_event(evaluation)
        return dg.SkipReason(_summary(report, picture))

    return nodd_gaps


def _shown(picture: GapPicture) -> dict[str, Any]:
    sentences = picture.sentences()
    metadata: dict[str, Any] = {"rule": "every hour of a followed product has the objects that its contract expects"}
    metadata |= {"observed": len(picture.gaps), "expected": 0}
    if sentences:
        metadata["missing"] = dg.MetadataValue.md("\n".join(f"- {line}" for line in sentences))
    metadata["picture"] = dg.MetadataValue.md(f"![{_alternative(sentences)}]({data_url(draw(picture))})")
    return {"passed": not picture.gaps, "description": sentences[0] if sentences else None, "metadata": metadata}


def _alternative(sentences: list[str]) -> str:
    return "gaps by hour: " + ("; ".join(sentences).replace("]", ")").replace("[", "(") or "nothing is missing")


def _summary(report: FeedReport, picture: GapPicture) -> str:
    if not picture.rows:
        return "no feed is followed yet"
    if not picture.gaps:
        return f"nothing is missing; {counted(report.days, 'day')} looked at"
    named = "; ".join(picture.sentences())
    return f"{counted(len(picture.gaps), 'gap')} open, {report.closed} closed: {named}"
