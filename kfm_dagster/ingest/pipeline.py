"""The pipeline's parts, built from settings: shared by nodes, sensors and commands.

Belongs here: construction only, no work with the parts. Opening a pipeline connects to the database; the queue is
connected on first use, because a backfill needs no queue. Slow parts are imported where they are built, because a
command that reads the database needs neither the stages nor their libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kfm_dagster.catalog.follower_sources import FollowerContext, FollowerSources
from kfm_dagster.contracts.loader import ContractRegistry, DeferredRegistry
from kfm_dagster.errors import ConfigurationError
from kfm_dagster.failpoints import clock_skew
from kfm_dagster.ingest.acknowledgement import Acknowledger
from kfm_dagster.ingest.threads import Threads
from kfm_dagster.ingest.window import PartitionWindow
from kfm_dagster.ledger.deliveries import Deliveries
from kfm_dagster.ledger.gaps import Gaps
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.sqs import Queue, connect, connect_dead_letters
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.machine import review_codes
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores, open_store
from kfm_dagster.storage.private import private_folder
from kfm_dagster.storage.publisher import open_publisher
from kfm_dagster.storage.s3 import Store
from kfm_dagster.telemetry.traces import configure_traces

if TYPE_CHECKING:
    from kfm_dagster.alerts.evaluator import AlertEvaluator
    from kfm_dagster.catalog.changes import Follower
    from kfm_dagster.catalog.following import FollowerRunner
    from kfm_dagster.catalog.store import Catalog
    from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint
    from kfm_dagster.idempotent_node.transaction import IdempotentNodes
    from kfm_dagster.ingest.calibration import Calibration
    from kfm_dagster.lineage.store import Lineage
    from kfm_dagster.notifications.authenticity import Signatures
    from kfm_dagster.readers.base import LazyReader
    from kfm_dagster.stages.run_contract import StageRunner
    from kfm_dagster.telemetry.energy import CodecarbonMeter

LOCKFILE = "requirements.lock"
"""The file of locked requirements: beside the package in a checkout, bundled with it in a wheel."""


def utc_now() -> datetime:
    """Return the wall clock's time, aware and UTC, with the skew of fault injection."""
    return datetime.now(UTC) + clock_skew()


def installed_code(settings: Settings) -> CodeFingerprint:
    """Fingerprint package and SQL. Raises ConfigurationError without a lockfile."""
    from kfm_dagster.idempotent_node.compute_hash import code_fingerprint  # noqa: PLC0415

    image = settings.image_digest or None
    package = Path(__file__).resolve().parents[1]
    bundled = package / "_bundled"
    if bundled.is_dir():
        return code_fingerprint(package, lockfile=bundled / LOCKFILE, image_digest=image)
    root = package.parent
    return code_fingerprint(package, root / "sql", lockfile=root / LOCKFILE, image_digest=image)


def _make_home(settings: Settings) -> None:
    """Create a private data root, if a store is below it. Raises ConfigurationError."""
    home = settings.home.absolute()
    if not any(Path(place).is_relative_to(home) for place in (settings.storage, settings.catalog, settings.lineage)):
        return
    try:
        private_folder(home)
    except OSError as error:
        raise ConfigurationError(
            "the data root cannot be created", observed=f"{home}: {error.strerror}", next_step="correct KFM_HOME"
        ) from None


@dataclass
class Pipeline:
    """The parts that nodes, sensors and commands work with."""

    settings: Settings
    registry: ContractRegistry
    database: Database
    clock: Callable[[], datetime] = utc_now
    card: Card = field(default_factory=Card.load)
    sources: FollowerSources | None = None
    """Sources of followers; None: the installed sources, loaded on first use."""
    connect_queue: Callable[[Settings], Queue] = connect
    connect_dead_letters: Callable[[Settings], Queue] = connect_dead_letters
    energy: CodecarbonMeter | None = None

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        read_only: bool = False,
        connect_queue: Callable[[Settings], Queue] = connect,
        connect_dead_letters: Callable[[Settings], Queue] = connect_dead_letters,
    ) -> Pipeline:
        """Read the configuration, open the database (unchanged if `read_only`). Raises KfmError."""
        if read_only:
            return cls(
                settings=settings,
                registry=DeferredRegistry(settings.contracts_dir),
                card=Card.load(settings.configs_dir),
                database=Database.open(settings.database_url, read_only=True),
            )
        from kfm_dagster.ingest.configuration import Configuration  # noqa: PLC0415

        # Read first, because opening creates the database file, and a refusal must leave nothing behind.
        configuration = Configuration.load(settings)
        _make_home(settings)
        opened = cls(
            settings=settings,
            registry=configuration.registry,
            database=Database.open(settings.database_url),
            card=configuration.card,
            sources=configuration.followers,
            energy=configuration.energy,
            connect_queue=connect_queue,
            connect_dead_letters=connect_dead_letters,
        )
        opened.window.make()
        configure_traces()
        return opened

    def close(self) -> None:
        """Close the database's connections."""
        self.database.dispose()

    @cached_property
    def ledger(self) -> Ledger:
        """The NODD WAL."""
        return Ledger(
            self.database,
            registry=self.registry,
            worker_id=self.settings.worker_id,
            clock=self.clock,
            lease=timedelta(seconds=self.settings.lease_seconds),
            retry_backoff_seconds=self.settings.retry_backoff_seconds,
            human_review=review_codes(self.card.machine),
            reasons=self.card.replay_plan.reasons,
        )

    @cached_property
    def deliveries(self) -> Deliveries:
        """Received messages and their outcomes."""
        return Deliveries(self.database, clock=self.clock)

    @cached_property
    def gaps(self) -> Gaps:
        """The feeds' missing data."""
        return Gaps(database=self.database)

    @cached_property
    def window(self) -> PartitionWindow:
        """The days with partitions in the deployment."""
        return PartitionWindow(database=self.database, settings=self.settings, clock=self.clock)

    @cached_property
    def store(self) -> Store:
        """The store of landed messages, outputs of stages and evidence. Raises ConfigurationError."""
        return open_store(self.settings.storage)

    @cached_property
    def landing(self) -> Landing:
        """The immutable landing zone."""
        return Landing(self.store)

    @cached_property
    def signatures(self) -> Signatures:
        """The verification of messages' senders. Raises ConfigurationError for an invalid CA."""
        from kfm_dagster.notifications.authenticity import Signatures  # noqa: PLC0415, cryptography and an HTTP client

        return Signatures(self.settings)

    @cached_property
    def objects(self) -> ObjectStores:
        """The providers' object stores, read-only."""
        return ObjectStores(object_root=self.settings.object_root, anonymous=self.settings.anonymous)

    @cached_property
    def readers(self) -> Mapping[str, LazyReader]:
        """The readers of object headers, by the name in contracts; the simulation replaces them."""
        from kfm_dagster.readers.base import READERS  # noqa: PLC0415

        return READERS

    @cached_property
    def catalog(self) -> Catalog:
        """The STAC catalog."""
        from kfm_dagster.catalog.index import Places  # noqa: PLC0415
        from kfm_dagster.catalog.store import Catalog  # noqa: PLC0415

        return Catalog(
            self.database,
            open_publisher(self.settings.catalog),
            self.registry,
            places=Places(geoparquet=self.settings.geoparquet, virtual=self.settings.virtual_root),
        )

    @cached_property
    def following(self) -> FollowerRunner:
        """The runner of the catalog's followers."""
        from kfm_dagster.catalog.following import FollowerRunner  # noqa: PLC0415

        return FollowerRunner(self.database, self.registry, open_publisher(self.settings.catalog), clock=self.clock)

    @cached_property
    def followers(self) -> Sequence[Follower]:
        """The installed and configured followers of the catalog. Raises ConfigurationError."""
        sources = self.sources or FollowerSources.load(self.settings, self.registry)
        return sources.followers(
            FollowerContext(
                database=self.database,
                catalog=open_publisher(self.settings.catalog),
                objects=self.objects,
                clock=self.clock,
            )
        )

    @cached_property
    def lineage(self) -> Lineage:
        """The store of lineage: OpenLineage and PROV-O."""
        from kfm_dagster.lineage.delivery import ClientBackend  # noqa: PLC0415
        from kfm_dagster.lineage.store import Lineage  # noqa: PLC0415

        return Lineage(
            self.database,
            self.settings.lineage,
            backend=ClientBackend.from_environment(),
            clock=self.clock,
            public=self.registry.public_id,
        )

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of this machine's clock."""
        from kfm_dagster.ingest.calibration import Calibration  # noqa: PLC0415

        return Calibration(rule=self.card.machine.clock, database=self.database, clock=self.clock)

    def alert_evaluator(self) -> AlertEvaluator:
        """Return an evaluator of the card's alert rules, for KFM_ALERT_URLS."""
        from kfm_dagster.alerts.evaluator import AlertEvaluator  # noqa: PLC0415, apprise is slow to load

        clock = self.card.machine.clock
        return AlertEvaluator(
            plan=self.card.alerts,
            on_divergence=self.card.replay_plan.alerts.on_divergence,
            max_offset=clock.max_offset,
            tau_calib=clock.tau_calib,
            database=self.database,
            clock=self.clock,
            urls=self.settings.alert_urls,
        )

    @cached_property
    def queue(self) -> Queue:
        """The primary queue. Raises QueueUnavailableError when it does not answer."""
        return self.connect_queue(self.settings)

    @cached_property
    def dead_letters(self) -> Queue:
        """The dead-letter queue; makes no request."""
        return self.connect_dead_letters(self.settings)

    @cached_property
    def threads(self) -> Threads:
        """The threads that read objects, and keep leases."""
        return Threads(most=self.settings.read_threads)

    @cached_property
    def acknowledger(self) -> Acknowledger:
        """Deletes and hides messages."""
        return Acknowledger(
            deliveries=self.deliveries,
            primary=lambda: self.queue,
            dead_letters=lambda: self.dead_letters,
            dead_letter_queue=self.settings.sqs_dlq_queue,
        )

    @cached_property
    def nodes(self) -> IdempotentNodes:
        """Intents, outputs and checkpoints."""
        from kfm_dagster.idempotent_node.steps import StepMeter  # noqa: PLC0415
        from kfm_dagster.idempotent_node.transaction import IdempotentNodes  # noqa: PLC0415

        meter = StepMeter.of(self.settings, energy=self.energy)
        return IdempotentNodes(self.database, clock=self.clock, meter=meter)

    @cached_property
    def code(self) -> CodeFingerprint:
        """The fingerprint of this process's code."""
        return installed_code(self.settings)

    @cached_property
    def artifacts(self) -> Artifacts:
        """The stages' stored outputs."""
        return Artifacts(lambda: self.store)

    @cached_property
    def stages(self) -> StageRunner:
        """The run contract."""
        from kfm_dagster.run_state.choice import open_run_states  # noqa: PLC0415
        from kfm_dagster.stages.run_contract import StageRunner  # noqa: PLC0415

        return StageRunner(
            database=self.database,
            run_states=open_run_states(
                self.database,
                configured=self.settings.run_state,
                branch=self.settings.lakefs_branch,
                clock=self.clock,
            ),
            nodes=self.nodes,
            code=self.code,
            artifacts=self.artifacts,
            clock=self.clock,
            card=self.card.machine,
            lakefs_branch=self.settings.lakefs_branch,
        )
