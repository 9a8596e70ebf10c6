"""The check `feeds_are_whole` of the queue and its schedule: missing objects, hour by hour.

The schedule evaluates it without a run, which would cost seconds every hour. It reports the check where
a result has changed, and once a day.
"""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from typing import Any

import dagster as dg

from kfm_dagster.defs.chain import QUEUE_KEY
from kfm_dagster.defs.failing import one_line, redacted
from kfm_dagster.defs.jobs import GAP_JOB
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.drawing.svg import data_url
from kfm_dagster.exports.gap_picture import GapPicture, draw, gap_picture
from kfm_dagster.ingest.feed_watch import FeedReport, FeedWatch
from kfm_dagster.plural import counted

CHECK = dg.AssetCheckKey(QUEUE_KEY, "feeds_are_whole")
HOURLY = "7 * * * *"
"""Some minutes after the hour, when objects due by the hour have settled."""
DAYS = 3
"""Days of the picture."""


def feed_check() -> dg.AssetChecksDefinition:
    """Return the check, which a person can run at any time."""

    @dg.asset_check(
        asset=QUEUE_KEY,
        name=CHECK.name,
        description="Warns when an hour of a followed product lacks objects, or a product is silent or slow now. The "
        "picture shows the last three days. The schedule nodd_gaps keeps it; see docs/gaps.md.",
    )
    @redacted
    def feeds_are_whole(pipeline: PipelineResource) -> dg.AssetCheckResult:
        opened = pipeline.get()
        FeedWatch(opened).look()
        return dg.AssetCheckResult(severity=dg.AssetCheckSeverity.WARN, **_found(gap_picture(opened, days=DAYS)))

    return feeds_are_whole


def gap_schedule(pipeline: PipelineResource) -> dg.ScheduleDefinition:
    """Return the schedule, switched on. It uses the resource itself, as the sensors do."""

    @dg.schedule(
        name="nodd_gaps",
        job_name=GAP_JOB,
        cron_schedule=HOURLY,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Notes every hour what the followed feeds lack, and counts how late the objects of days that are "
        "over came. Asks for no run.",
    )
    @one_line
    def nodd_gaps(context: dg.ScheduleEvaluationContext) -> dg.SkipReason:
        opened = pipeline.get()
        report = FeedWatch(opened).look()
        picture = gap_picture(opened, days=DAYS)
        first_of_day = opened.clock().hour == 0 and bool(picture.rows)
        if report.changed or report.closed or first_of_day:
            evaluation = dg.AssetCheckEvaluation(
                asset_key=QUEUE_KEY, check_name=CHECK.name, severity=dg.AssetCheckSeverity.WARN, **_found(picture)
            )
            context.instance.report_runless_asset_event(evaluation)
        return dg.SkipReason(_said(report, picture))

    return nodd_gaps


def _found(picture: GapPicture) -> dict[str, Any]:
    sentences = picture.sentences()
    metadata: dict[str, Any] = {"rule": "every hour of a followed product has the objects that its contract expects"}
    metadata |= {"observed": len(picture.gaps), "expected": 0}
    if sentences:
        metadata["missing"] = dg.MetadataValue.md("\n".join(f"- {line}" for line in sentences))
    metadata["picture"] = dg.MetadataValue.md(f"![{_alternative(sentences)}]({data_url(draw(picture))})")
    return {"passed": not picture.gaps, "description": sentences[0] if sentences else None, "metadata": metadata}


def _alternative(said: list[str]) -> str:
    return "gaps by hour: " + ("; ".join(said).replace("]", ")").replace("[", "(") or "nothing is missing")


def _said(report: FeedReport, picture: GapPicture) -> str:
    if not picture.rows:
        return "no feed is followed yet"
    if not picture.gaps:
        return f"nothing is missing; {counted(report.days, 'day')} looked at"
    named = "; ".join(picture.sentences())
    return f"{counted(len(picture.gaps), 'gap')} open, {report.closed} closed: {named}"
