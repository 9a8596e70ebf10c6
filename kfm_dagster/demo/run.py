"""The demo: embedded cloud, notifications, a real deployment, and an account of what became of every unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from kfm_dagster.addresses import shown
from kfm_dagster.demo.cloud import EmbeddedCloud
from kfm_dagster.demo.feed import Feed, refuse_no_objects
from kfm_dagster.demo.sample_day import SAMPLE_DAY, publish_samples
from kfm_dagster.deployment.drain import drain, flush_lineage, say_what_is_held
from kfm_dagster.deployment.local import Deployment
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.ingest.chain import read_configuration
from kfm_dagster.ingest.pipeline import Pipeline, utc_now
from kfm_dagster.ingest.progress import Progress
from kfm_dagster.ingest.report import ms_per_unit
from kfm_dagster.ledger.deliveries import DeliveryState
from kfm_dagster.ledger.ignored import IgnoredFilter, count_ignored
from kfm_dagster.ledger.state_machine import Status
from kfm_dagster.settings import EARLIEST_DAY, Settings, environment

DEMO_ENVIRONMENT: Mapping[str, str] = {
    # A demo is watched: ticks and retries come in seconds instead of minutes.
    "KFM_SENSOR_INTERVAL_SECONDS": "2",
    "KFM_RETRY_BACKOFF_SECONDS": "1",
    # A few objects of a day, whosever they are: no day of a network.
    "KFM_FEED": "sample",
}
MAX_FAILING_SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo left in its home; counts are units but for `rejected`, `messages`, `ignored` and `earlier`."""

    datasets: Mapping[str, Mapping[str, int]]
    rejected: int
    messages: int
    seconds: float
    database: str
    catalog: str
    lineage: str
    ms_per_unit: Mapping[str, float] = field(default_factory=dict)
    failing: tuple[str, ...] = ()
    ignored: int = 0
    """Messages that named nothing to ingest."""
    earlier: int = 0
    """Messages that the home had received before this demo; they and their units are counted, too."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files of --objects that were not published, and why."""

    def as_json(self) -> dict[str, Any]:
        """Return the published form of `kfm demo --json`."""
        return {
            "datasets": {name: dict(counts) for name, counts in self.datasets.items()},
            "rejected": self.rejected,
            "seconds": round(self.seconds, 3),
            "database": self.database,
            "catalog": self.catalog,
            "lineage": self.lineage,
            "skipped": dict(self.skipped),
        }


def run_demo(
    home: Path,
    *,
    objects: Path | None,
    timeout_seconds: float,
    report: Callable[[Progress], None],
    say: Callable[[str], None],
) -> DemoResult:
    """Run the demo below `home`. Raises KfmError with one line; a second call goes on where the first stopped."""
    if objects is not None and not objects.is_dir():
        raise ConfigurationError(
            "--objects is no folder", observed=str(objects), expected="DIR/<bucket>/<key>", next_step="give a folder"
        )
    started = utc_now()
    settings = demo_settings(home)
    # Every part of the deployment would refuse it again and again; here it is refused before any is started.
    registry = read_configuration(settings).registry
    if objects is not None:
        refuse_no_objects(registry, objects)
    say("starting S3, SNS and SQS on loopback ...")
    with EmbeddedCloud() as cloud:
        cloud.provision(registry)
        feed = Feed(cloud, registry)
        with environment({**cloud.environment(), **DEMO_ENVIRONMENT, "KFM_HOME": str(home.absolute())}):
            settings = Settings.load()
            pipeline = Pipeline.open(settings)
            earlier = sum(pipeline.deliveries.counts().values())
            try:
                say("publishing objects and their notifications ...")
                skipped = feed_demo(pipeline, feed, objects)
                say("starting the Dagster code server and daemon ...")
                with Deployment(home, environment={}) as deployment:
                    drain(deployment, pipeline, timeout_seconds=timeout_seconds, report=report)
                flush_lineage(pipeline, say)
                say_what_is_held(pipeline, say)
                return replace(account(pipeline, since=started), skipped=skipped, earlier=earlier)
            finally:
                pipeline.close()


def demo_settings(home: Path) -> Settings:
    """Return the settings of this process with the given data root."""
    with environment({"KFM_HOME": str(home.absolute())}):
        return Settings.load()


def feed_demo(pipeline: Pipeline, feed: Feed, objects: Path | None) -> Mapping[str, str]:
    """Publish a folder of real objects, or the samples with their bad neighbours; return why files were skipped.

    Their days become partitions, and must be before a message is received.
    """
    if objects is None:
        publish_samples(feed)
        begin_with(pipeline, SAMPLE_DAY)
        return {}
    published = feed.from_folder(objects)
    if published.first_day is not None:
        begin_with(pipeline, published.first_day)
    return published.skipped


def begin_with(pipeline: Pipeline, day: date) -> None:
    """Lower the partition window to a day of the demo's objects; those before EARLIEST_DAY stay outside."""
    pipeline.window.lower(max(day, EARLIEST_DAY), actor="kfm demo", reason="objects of the demo")


def account(pipeline: Pipeline, *, since: datetime) -> DemoResult:
    """Ask ledger and deliveries what became of everything received, and run-state how long it took since a moment."""
    counts = pipeline.ledger.counts()
    duplicates = pipeline.deliveries.duplicates()
    messages = pipeline.deliveries.counts()
    failing = pipeline.ledger.find(status=Status.QUARANTINED, limit=MAX_FAILING_SHOWN)
    return DemoResult(
        datasets={
            contract.id: {
                "received": sum(counts.get(contract.id, {}).values()),
                "succeeded": counts.get(contract.id, {}).get(Status.SUCCEEDED, 0),
                "failed": counts.get(contract.id, {}).get(Status.FAILED, 0),
                "quarantined": counts.get(contract.id, {}).get(Status.QUARANTINED, 0),
                "duplicates": duplicates.get(contract.id, 0),
            }
            for contract in pipeline.registry
        },
        rejected=messages[DeliveryState.REJECTED],
        messages=sum(messages.values()),
        # By the rows that were left: an ignored message is deleted like any other that is finished.
        ignored=sum(count.messages for count in count_ignored(pipeline.database, IgnoredFilter())),
        seconds=(pipeline.clock() - since).total_seconds(),
        database=shown(pipeline.settings.database_url),
        catalog=pipeline.settings.catalog,
        lineage=pipeline.settings.lineage,
        ms_per_unit=ms_per_unit(pipeline.stages.run_states.since(since)),
        failing=tuple(f"{record.object_uri}: {record.last_error_code}" for record in failing),
    )
