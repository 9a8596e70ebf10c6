"""The pipeline's parts, put together from settings: one object that nodes, sensors and commands share.

Belongs here: construction and the one thing that needs queue and ledger together (acknowledging). Opening a pipeline
connects to the database; the queue is connected on first use, because a backfill needs none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kfm_dagster.catalog.changes import Follower
from kfm_dagster.catalog.discovery import FollowerContext, FollowerSources
from kfm_dagster.catalog.following import Following
from kfm_dagster.catalog.publisher import open_publisher
from kfm_dagster.catalog.store import Catalog
from kfm_dagster.contracts.envelope import WalId
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.errors import ConfigurationError, QueueUnavailableError
from kfm_dagster.failpoints import clock_skew, with_context
from kfm_dagster.idempotent_node.compute_hash import CodeFingerprint, code_fingerprint
from kfm_dagster.idempotent_node.steps import StepMeter
from kfm_dagster.idempotent_node.transaction import IdempotentNodes
from kfm_dagster.ingest.calibration import Calibration
from kfm_dagster.ingest.configuration import Configuration
from kfm_dagster.ingest.requested_runs import RequestedRuns
from kfm_dagster.ingest.window import PartitionWindow
from kfm_dagster.ledger.deliveries import Deliveries, DueBackoff, DueMessage
from kfm_dagster.ledger.gaps import Gaps
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.lineage.backend import ClientBackend
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.notifications.landing import Landing
from kfm_dagster.notifications.sqs import Queue, connect, connect_dead_letters
from kfm_dagster.readers.base import Reader
from kfm_dagster.readers.registry import READERS
from kfm_dagster.run_state.choice import open_run_states
from kfm_dagster.settings import Settings
from kfm_dagster.stages.card import Card
from kfm_dagster.stages.machine import review_codes
from kfm_dagster.stages.run_contract import StageRunner
from kfm_dagster.storage.artifacts import Artifacts
from kfm_dagster.storage.database import Database
from kfm_dagster.storage.objects import ObjectStores, open_store
from kfm_dagster.storage.private import private_folder
from kfm_dagster.storage.read_ahead import ReadAhead
from kfm_dagster.storage.s3 import Store
from kfm_dagster.telemetry.energy import EnergyMeter, NoEnergyMeter
from kfm_dagster.telemetry.otlp import configure_traces

if TYPE_CHECKING:
    from kfm_dagster.notifications.authenticity import Signatures

LOCKFILE = "requirements.lock"
"""Beside the package in a checkout, bundled with it in a wheel."""
Due = TypeVar("Due", bound=DueMessage)
Given = TypeVar("Given")
Made = TypeVar("Made")


def utc_now() -> datetime:
    """Return the wall clock, aware and UTC, with the skew that fault injection gives it."""
    return datetime.now(UTC) + clock_skew()


def installed_code(settings: Settings) -> CodeFingerprint:
    """Fingerprint this package and its SQL, once per process. Raises ConfigurationError without a lockfile."""
    image = settings.image_digest or None
    package = Path(__file__).resolve().parents[1]
    bundled = package / "_bundled"
    if bundled.is_dir():
        return code_fingerprint(package, lockfile=bundled / LOCKFILE, image_digest=image)
    root = package.parent
    return code_fingerprint(package, root / "sql", lockfile=root / LOCKFILE, image_digest=image)


def _make_home(settings: Settings) -> None:
    """Make the data root for this user alone, where anything is kept in it. Raises ConfigurationError."""
    home = settings.home.absolute()
    if not any(Path(place).is_relative_to(home) for place in (settings.storage, settings.catalog, settings.lineage)):
        return
    try:
        private_folder(home)
    except OSError as error:
        raise ConfigurationError(
            "the data root cannot be made", observed=f"{home}: {error.strerror}", next_step="correct KFM_HOME"
        ) from None


@dataclass
class Pipeline:
    """Everything that a node, a sensor or a command works with."""

    settings: Settings
    registry: ContractRegistry
    database: Database
    clock: Callable[[], datetime] = utc_now
    card: Card = field(default_factory=Card.load)
    sources: FollowerSources | None = None
    """Of followers; None: those that are installed, loaded when they are needed."""
    connect_queue: Callable[[Settings], Queue] = connect
    connect_dead_letters: Callable[[Settings], Queue] = connect_dead_letters
    energy: EnergyMeter = field(default_factory=NoEnergyMeter)
    asked: RequestedRuns = field(default_factory=RequestedRuns)
    """What this process's sensors have asked for."""
    read_ahead: dict[str, ReadAhead] = field(default_factory=dict, init=False, repr=False)
    """What integrity-check read of each dataset's objects, until metadata-extract takes it."""
    feeds_due: datetime | None = field(default=None, init=False, repr=False)
    """When this process looks at the feeds next (`feed_watch.py`); None: at once."""
    ready: bool = field(default=False, init=False)
    """Whether its stores took what was written when they were last asked (`preflight.py`)."""
    held: bool = field(default=False, init=False)
    """Whether its roots are marked as this deployment's (`preflight.py`)."""

    @classmethod
    def open(cls, settings: Settings, *, read_only: bool = False) -> Pipeline:
        """Read the configuration and open the database, for looking only if so said. Raises KfmError with one line."""
        # Before the database, which opening makes: a refusal leaves nothing behind.
        read = Configuration.load(settings)
        if not read_only:
            _make_home(settings)
        database = Database.open(settings.database_url, read_only=read_only)
        opened = cls(
            settings=settings,
            registry=read.registry,
            database=database,
            card=read.card,
            sources=read.followers,
            energy=read.energy,
        )
        if not read_only:
            opened.window.make()
            configure_traces()
        return opened

    def close(self) -> None:
        """Give the connections back."""
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
        """Messages received and what became of them."""
        return Deliveries(self.database, clock=self.clock)

    @cached_property
    def gaps(self) -> Gaps:
        """What is missing of the feeds."""
        return Gaps(database=self.database)

    @cached_property
    def window(self) -> PartitionWindow:
        """The days that the deployment has partitions of."""
        return PartitionWindow(database=self.database, settings=self.settings, clock=self.clock)

    @cached_property
    def store(self) -> Store:
        """Where landed messages, outputs of stages and evidence are kept. Raises ConfigurationError."""
        return open_store(self.settings.storage)

    @cached_property
    def landing(self) -> Landing:
        """The immutable landing zone."""
        return Landing(self.store)

    @cached_property
    def signatures(self) -> Signatures:
        """Who sent a message. Raises ConfigurationError for a wrong authority."""
        from kfm_dagster.notifications.authenticity import Signatures  # noqa: PLC0415, cryptography and an HTTP client

        return Signatures(self.settings)

    @cached_property
    def objects(self) -> ObjectStores:
        """The providers' object stores, read-only."""
        return ObjectStores(object_root=self.settings.object_root, anonymous=self.settings.anonymous)

    @cached_property
    def readers(self) -> Mapping[str, Reader]:
        """The readers of object headers, by the name that contracts give them."""
        return READERS

    @cached_property
    def catalog(self) -> Catalog:
        """The STAC catalog."""
        return Catalog(
            self.database,
            open_publisher(self.settings.catalog),
            self.registry,
            mirrored=self.settings.geoparquet,
        )

    @cached_property
    def following(self) -> Following:
        """How far the catalog's followers have come."""
        return Following(self.database, self.registry, open_publisher(self.settings.catalog), clock=self.clock)

    @cached_property
    def followers(self) -> Sequence[Follower]:
        """What follows the catalog, as it is installed and configured. Raises ConfigurationError."""
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
        """OpenLineage and PROV-O."""
        backend = ClientBackend.from_environment()
        return Lineage.open(
            self.database,
            url=self.settings.lineage,
            backend=backend,
            clock=self.clock,
            public=self.registry.public_id,
        )

    @cached_property
    def calibration(self) -> Calibration:
        """This machine's clock."""
        return Calibration(rule=self.card.machine.clock, database=self.database, clock=self.clock)

    @cached_property
    def queue(self) -> Queue:
        """The primary queue. Raises QueueUnavailableError when it does not answer."""
        return self.connect_queue(self.settings)

    @cached_property
    def dead_letters(self) -> Queue:
        """The dead-letter queue; makes no request."""
        return self.connect_dead_letters(self.settings)

    @cached_property
    def nodes(self) -> IdempotentNodes:
        """Intents, outputs and checkpoints."""
        meter = StepMeter.of(self.settings, energy=self.energy)
        return IdempotentNodes(self.database, clock=self.clock, meter=meter)

    @cached_property
    def code(self) -> CodeFingerprint:
        """Which code this process runs."""
        return installed_code(self.settings)

    @cached_property
    def artifacts(self) -> Artifacts:
        """What the stages have stored."""
        return Artifacts(self.store)

    @cached_property
    def stages(self) -> StageRunner:
        """The run contract."""
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

    def concurrently(self, work: Callable[[Given], Made], batch: Iterable[Given]) -> list[Made]:
        """Do the work on everything, on as many threads as read at once; in the batch's order."""
        with ThreadPoolExecutor(max_workers=self.settings.read_threads) as pool:
            return list(pool.map(with_context(work), batch))

    @contextmanager
    def repeating(self, tick: Callable[[], None], *, seconds: float, name: str) -> Iterator[None]:
        """Tick every so many seconds until the block ends, on a thread that ends with it."""
        over = threading.Event()

        def keep(over: threading.Event) -> None:
            while not over.wait(seconds):
                tick()

        thread = threading.Thread(target=with_context(keep), args=(over,), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def acknowledge(self, *, retrying: Collection[WalId] = (), limit: int = 10_000) -> int:
        """Delete the messages whose units are all terminal; let those of retrying units come back when they are due.

        Each from the queue that it was last received from: a drain receives from the dead-letter queue. Returns the
        number of deleted messages. Harmless to repeat: what SQS did not take stays due.
        """
        if retrying:
            self.postpone(self.deliveries.due_for_backoff(retrying))
        return sum(
            self._delete(queue, finished)
            for queue, finished in self._by_queue(self.deliveries.due_for_deletion(limit=limit))
        )

    def postpone(self, messages: Iterable[DueBackoff]) -> None:
        """Keep messages out of sight for so many seconds from now, each on the queue that it was last received from."""
        for queue, postponed in self._by_queue(messages):
            queue.change_visibility([(entry.receipt_handle, entry.seconds) for entry in postponed])

    def _delete(self, queue: Queue, due: Sequence[DueMessage]) -> int:
        refused = set(queue.delete([entry.receipt_handle for entry in due]))
        taken = [entry for entry in due if entry.receipt_handle not in refused]
        self.deliveries.mark_acknowledged(taken)
        return len(taken)

    def _by_queue(self, messages: Iterable[Due]) -> Iterator[tuple[Queue, list[Due]]]:
        drained: list[Due] = []
        received: list[Due] = []
        for message in messages:
            (drained if message.queue == self.settings.sqs_dlq_queue else received).append(message)
        if received:
            yield self.queue, received
        if drained:
            try:
                _ = self.dead_letters.url
            except QueueUnavailableError:
                return  # without it today's messages come and go all the same; its own stay due
            yield self.dead_letters, drained
