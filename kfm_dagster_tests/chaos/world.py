"""Passes of the whole chain in one process: queues of an SQS server, objects in a folder, lineage that is not sent.

If a fault ends a pass, the next pass continues the work, as sensors and runs would.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import boto3
from openlineage.client import OpenLineageClient
from openlineage.client.transport.noop import NoopConfig, NoopTransport

from fault_injection.injector import injecting
from fault_injection.plan import parse_plan
from kfm_dagster.ingest.acknowledgement import progress
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.lineage.delivery import ClientBackend
from kfm_dagster.lineage.store import Lineage
from kfm_dagster.notifications.sqs import connect
from kfm_dagster.storage.fence import open_fence
from kfm_dagster_tests.catalog.envelopes import RUN_ID, candidates, goes
from kfm_dagster_tests.followers.announcements.changes import subscribed
from kfm_dagster_tests.integration import chain, traces
from kfm_dagster_tests.transactions import own_tx

HIDDEN_SECONDS = 1
"""The visibility timeout of the queue, after which messages of a dead process are received again."""
MAX_PASSES = 40


@dataclass(frozen=True, kw_only=True)
class World:
    """The locations of objects, database and queues; it can be sent to another process."""

    root: Path
    url: str
    queue: str
    announced: str
    """URL of the queue that receives announcements of Items."""

    @property
    def home(self) -> Path:
        return self.root / "home"

    @classmethod
    def make(cls, root: Path, url: str) -> World:
        """Store the objects and create the queues at AWS_ENDPOINT_URL."""
        sqs = boto3.client("sqs")
        announced = sqs.create_queue(QueueName=f"a-{uuid.uuid4()}")["QueueUrl"]
        world = cls(root=root, url=url, queue=f"q-{uuid.uuid4()}", announced=announced)
        chain.put(root / "objects", items())
        sqs.create_queue(QueueName=world.queue, Attributes={"VisibilityTimeout": str(HIDDEN_SECONDS)})
        return world

    def open(self) -> Pipeline:
        """Open the pipeline; the caller closes it."""
        configs = subscribed(self.root / "configs", f'sqs: "{self.announced}"')
        pipeline = chain.open_pipeline(
            self.home, self.root / "objects", url=self.url, retry_backoff_seconds=1, configs_dir=configs
        )
        pipeline.connect_queue = lambda settings: connect(settings, name=self.queue)
        pipeline.lineage = Lineage(
            pipeline.database,
            pipeline.settings.lineage,
            backend=ClientBackend(OpenLineageClient(transport=NoopTransport(NoopConfig()))),
            clock=pipeline.clock,
        )
        return pipeline


def items() -> list[chain.StoredObject]:
    """Return two volumes that succeed and a missing one, whose message is received again."""
    return [*chain.volumes(2), chain.missing(chain.volumes(3)[2])]


def one_pass(world: World, pipeline: Pipeline, number: int) -> bool:
    """Do all pending work once; return whether no work is left. Raises the error of a fault."""
    clock = pipeline.clock
    clock.forward(3600 * (number + 1))
    _send(world, pipeline)
    # No other process is active, so every run with a claim is dead.
    own_tx(pipeline.ledger).release_lost(run_ids=pipeline.ledger.in_progress_runs())
    own_tx(pipeline.ledger).retry_due(now=clock(), limit=100)
    take_in(pipeline, ProcessState())
    for entry in pipeline.ledger.pending_by_partition():
        chain.run_chain(pipeline, entry.dataset, entry.partition, f"run-{uuid.uuid4()}", Source.LEDGER)
    pipeline.lineage.publish_staged()
    pipeline.lineage.deliver()
    pipeline.acknowledger.acknowledge()
    if not progress(pipeline.queue, pipeline.ledger).drained or any(_undelivered(pipeline)):
        return False
    # A backfill of a finished day has no work.
    run_id = f"run-{uuid.uuid4()}"
    assert not chain.run_chain(pipeline, chain.DATASET, chain.PARTITION, run_id, Source.LISTING).envelopes
    # Register an Item of another dataset and roll its run back, again if an earlier pass was interrupted.
    pipeline.catalog.register(candidates(pipeline.registry, [goes()]), fence=open_fence)
    own_tx(pipeline.catalog).undo("goes-abi", RUN_ID)
    pipeline.following.catch_up(pipeline.followers)
    return all(state.behind == 0 for state in pipeline.following.states())


def finish(world: World) -> dict[str, Any]:
    """Repeat passes until no work is left, also after errors; return the result."""
    last: Exception | None = None
    with closing(world.open()) as pipeline:
        for number in range(MAX_PASSES):
            try:
                if one_pass(world, pipeline, number):
                    return {**everything(pipeline), "announced": announced_items(world, pipeline)}
            except Exception as error:
                last = error
            time.sleep(HIDDEN_SECONDS / 4)  # messages are perhaps still hidden
        raise AssertionError(f"not done after {MAX_PASSES} passes: {own_tx(pipeline.ledger).counts()}") from last


def everything(pipeline: Pipeline) -> dict[str, Any]:
    """Return the records, which must not depend on interruptions."""
    chain.assert_conserved(pipeline)
    records = traces.everything(pipeline)
    # Count edges by kind, because each message has another id.
    edges = Counter(name for _, name, _ in records["edges"])
    return {**records, "edges": edges, "undelivered": _undelivered(pipeline)}


def announced_items(world: World, pipeline: Pipeline) -> set[str]:
    """Return the announced Items that are not withdrawn, checked against the Items' files."""
    sqs = boto3.client("sqs")
    by_id: dict[str, str] = {}
    last: dict[str, dict[str, Any]] = {}
    while messages := sqs.receive_message(QueueUrl=world.announced, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            event = json.loads(message["Body"])
            assert by_id.setdefault(event["id"], message["Body"]) == message["Body"]
            before = last.setdefault(event["subject"], event)
            if before["sequence"] <= event["sequence"]:
                last[event["subject"]] = event
    current = {subject: event for subject, event in last.items() if not event["type"].endswith(".withdrawn")}
    for subject, event in current.items():
        [path] = Path(pipeline.settings.catalog).glob(f"**/{subject.rpartition('/')[2]}.json")
        assert json.loads(path.read_bytes()) == event["data"]
    return set(current)


def _undelivered(pipeline: Pipeline) -> tuple[int, int]:
    waiting = pipeline.lineage.undelivered()
    return waiting.files.batches, waiting.backend.batches


def run_with_faults(world: World, plan: str) -> int | None:
    """Run passes with a chaos plan in another process, and return its exit code."""
    process = _processes().Process(target=_run_with_plan, args=(world, plan))
    process.start()
    process.join(120)
    return process.exitcode


def _run_with_plan(world: World, plan: str) -> None:
    pipeline = world.open()
    with injecting(parse_plan(plan, source="plan"), world.root / "state"):
        for number in range(MAX_PASSES):
            if one_pass(world, pipeline, number):
                return


def _processes() -> ForkServerContext:
    # Fork from a server that has imported everything, because the imports take seconds.
    context = multiprocessing.get_context("forkserver")
    # pandas and duckdb are otherwise imported at their first use.
    context.set_forkserver_preload([__name__, "pandas", "duckdb"])
    return context


def _send(world: World, pipeline: Pipeline) -> None:
    """Announce all objects unless they were announced before; if SQS's answer is lost, they are announced twice."""
    done = world.root / "sent"
    if not done.exists():
        bodies = [chain.announce([item.event()], registry=pipeline.registry).body for item in items()]
        if any(outcome.refusal for outcome in pipeline.queue.send(bodies)):
            raise RuntimeError("not every message was sent")
        done.write_text(json.dumps(Counter(bodies)))
