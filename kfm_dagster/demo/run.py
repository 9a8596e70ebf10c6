"""The demo: embedded cloud, notifications, a deployment, and each object's expected outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.families import write_families
from kfm_dagster.demo.feed import Feed, FolderReport, refuse_no_objects
from kfm_dagster.demo.sample_day import DATASETS, MENDED, SAMPLE_DAY, publish_samples, serve_folder
from kfm_dagster.deployment.drain import DrainResult, account, drain, flush_lineage, report_held_days
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.governance.log import Decision
from kfm_dagster.ingest.acknowledgement import Progress
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.preflight import hold_roots
from kfm_dagster.ingest.window import PartitionWindow
from kfm_dagster.ledger.queries import LedgerQueries
from kfm_dagster.ledger.record import NoddWalRecord
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.recovery.backfill.days import Backfills
from kfm_dagster.settings import FeedKind, Settings, environment

DEMO_ENVIRONMENT: Mapping[str, str] = {
    # A person watches the demo, so ticks and retries come after seconds instead of minutes.
    "KFM_SENSOR_INTERVAL_SECONDS": "2",
    "KFM_RETRY_BACKOFF_SECONDS": "1",
    # A demo has a part of a day's objects: samples, or objects of the user, who may set KFM_FEED for a whole day.
    "KFM_FEED": FeedKind.SAMPLE,
    # Scheduled listings list today, but the objects are older; a backfill lists unannounced days (`_feed_folder`).
    "KFM_SCHEDULED_LISTINGS": "false",
    # The default port of `kfm console`.
    "KFM_CONSOLE_URL": "http://127.0.0.1:3001",
}


SOUND = frozenset({Status.SUCCEEDED})
SPOILT = frozenset({Status.QUARANTINED})
ANY_END = SOUND | SPOILT
"""Outcomes of an object of unknown quality: ingested, or in quarantine with its reason."""
ALL_SAMPLES = "samples-of-all-datasets"
"""Folder in the data root with the samples of datasets that the sample day lacks."""
MOST_RECORDS = 1_000_000
"""More than any demo publishes."""
_UNANNOUNCED = Decision(actor="kfm demo", reason="objects of the demo that no topic announces")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Permitted final statuses of each published object, by address.

    `rejected` is the number of messages that give no unit; `skipped` has the unpublished files, with the reasons.
    """

    ends: Mapping[str, frozenset[Status]] = field(default_factory=dict)
    rejected: int = 0
    skipped: Mapping[str, str] = field(default_factory=dict)


def run_demo(
    home: Path,
    *,
    objects: Path | None,
    all_datasets: bool = False,
    timeout_seconds: float,
    report: Callable[[Progress], None],
    say: Callable[[str], None],
) -> DrainResult:
    """Run the demo below `home`; a later call continues where an earlier call stopped.

    `objects`: a folder instead of the samples; `all_datasets`: samples of every dataset. Raises KfmError.
    """
    if objects is not None and not objects.is_dir():
        raise ConfigurationError(
            "--objects is not a folder", observed=str(objects), expected="DIR/<bucket>/<key>", next_step="give a folder"
        )
    started = utc_now()
    settings = demo_settings(home)
    # A wrong configuration is refused here, once, because otherwise each part of the deployment would refuse it.
    registry = read_configuration(settings).registry
    if objects is not None:
        refuse_no_objects(registry, objects)
    say("starting S3, SNS and SQS on loopback ...")
    with EmbeddedCloud() as cloud:
        cloud.provision(registry)
        feed = Feed(cloud, registry)
        chosen = {"KFM_FEED": settings.feed.value} if "feed" in settings.model_fields_set else {}
        if objects is None and not all_datasets and not settings.datasets:
            chosen["KFM_DATASETS"] = " ".join(sorted(DATASETS))
        own = {**DEMO_ENVIRONMENT, **chosen, "KFM_HOME": str(home.absolute())}
        with environment({**cloud.environment(), **own}):
            settings = Settings.load()
            pipeline = Pipeline.open(settings)
            earlier = sum(pipeline.deliveries.counts().values())
            try:
                hold_roots(settings, pipeline.database)
                say("publishing objects and their notifications ...")
                expected = feed_demo(pipeline, feed, objects, all_datasets=all_datasets)
                say("starting the Dagster code server and daemon ...")
                with Deployment(home, environment={}) as deployment:
                    drain(deployment, pipeline, timeout_seconds=timeout_seconds, report=report)
                flush_lineage(pipeline.lineage, say)
                report_held_days(pipeline.ledger, say)
                result = account(pipeline, since=started)
                return replace(
                    result,
                    skipped=expected.skipped,
                    earlier=earlier,
                    published=len(expected.ends),
                    unexpected=tuple(unexpected_ends(expected, pipeline.ledger, rejected=result.rejected)),
                )
            finally:
                pipeline.close()


def demo_settings(home: Path) -> Settings:
    """Return the settings of this process with the given data root."""
    with environment({"KFM_HOME": str(home.absolute())}):
        return Settings.load()


def feed_demo(pipeline: Pipeline, feed: Feed, objects: Path | None, *, all_datasets: bool = False) -> Expected:
    """Publish a folder of objects, else the samples; return the expected outcomes."""
    home = pipeline.settings.home
    if objects is not None:
        published = _feed_folder(pipeline, feed, objects)
        return Expected(ends=dict.fromkeys(published.published, ANY_END), skipped=published.skipped)
    samples = publish_samples(feed)
    begin_with(pipeline.window, SAMPLE_DAY)
    # Mended units may have succeeded by a retry.
    spoilt = ANY_END if (home / MENDED).exists() else SPOILT
    ends = dict.fromkeys(samples.objects, SOUND) | dict.fromkeys((samples.truncated, samples.missing), spoilt)
    if all_datasets:
        folder = home / ALL_SAMPLES
        write_families(folder, SAMPLE_DAY)
        ends |= dict.fromkeys(_feed_folder(pipeline, feed, folder).published, SOUND)
    return Expected(ends=ends, rejected=1)


def _feed_folder(pipeline: Pipeline, feed: Feed, objects: Path) -> FolderReport:
    """Publish a folder, extend the partition window to it, and list its unannounced days."""
    published = feed.from_folder(objects)
    serve_folder(pipeline.settings.home, objects)
    if published.first_day is not None:
        begin_with(pipeline.window, published.first_day)
    for dataset, day in sorted(published.unannounced):
        Backfills(pipeline).start(datasets=[dataset], first_day=day, last_day=day, decision=_UNANNOUNCED)
    return published


def begin_with(window: PartitionWindow, day: date) -> None:
    """Extend the partition window back to a day of the demo's objects."""
    with window.database.transaction() as tx:
        window.lower(day, actor="kfm demo", reason="objects of the demo", tx=tx)


def unexpected_ends(expected: Expected, ledger: LedgerQueries, *, rejected: int) -> Iterator[str]:
    """Yield a line for each missing object, each unexpected status, and missing rejections.

    `rejected` counts the rejected messages. A rewritten object has a record for each version; each one is checked.
    """
    records_of: dict[str, list[NoddWalRecord]] = {uri: [] for uri in expected.ends}
    with ledger.database.snapshot() as tx:
        everything = ledger.find(limit=MOST_RECORDS, tx=tx)
    for record in everything:
        if record.object_uri in records_of:
            records_of[record.object_uri].append(record)
    for uri, records in records_of.items():
        permitted = " or ".join(sorted(expected.ends[uri]))
        if not records:
            yield f"{uri}: nothing is known of it; expected {permitted}"
        for record in records:
            if record.status not in expected.ends[uri]:
                why = f" ({record.last_error_code})" if record.last_error_code else ""
                yield f"{uri}: {record.status}{why}; expected {permitted}"
    if rejected < expected.rejected:
        yield f"{rejected} messages rejected; expected {expected.rejected}"
