"""The workers of a campaign: one process per role, which runs until it is killed or stopped.

    receiver  receives and records messages, as the sensor `nodd_messages` does
    keeper    recovers, retries, acknowledges and publishes lineage, as the sensor `nodd_ledger` does
    worker    runs the six nodes over pending units, as a Dagster run does
    resident  does the work of all three in one process, as `kfm worker` does

Without Dagster, a death costs the start of a process instead of a run, so hundreds of deaths fit into minutes; all
other code is the product's. Run as `python -m benchmarks.campaign_workers ROLE`. Belongs here: the roles. Does not
belong here: starting and checking the processes (`campaign.py`).
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from fault_injection.injector import activate
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.ingest.chain import run_chain
from kfm_dagster.ingest.intake import take_in
from kfm_dagster.ingest.nodes import MessageParse, Source
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ingest.process_state import ProcessState
from kfm_dagster.settings import Settings
from kfm_dagster.worker.resident import RunLocks, Worker

PAUSE_SECONDS = 0.2
MAX_ATTEMPTS = 20
"""The maximum of a contract: a campaign causes more failures than any outage, and yet every unit must succeed."""


def patient(registry: ContractRegistry) -> ContractRegistry:
    """Return the contracts with the maximum number of attempts."""
    return ContractRegistry.of([_patient(contract) for contract in registry])


def _patient(contract: DatasetContract) -> DatasetContract:
    retry = contract.retry.model_copy(update={"max_attempts": MAX_ATTEMPTS})
    return contract.model_copy(update={"retry": retry})


def receive(pipeline: Pipeline) -> None:
    """Receive and record the messages of the queue."""
    take_in(pipeline, ProcessState())


def keep(pipeline: Pipeline) -> None:
    """Maintain the ledger; claims of dead workers are released when their leases expire."""
    with pipeline.database.transaction() as tx:
        pipeline.ledger.release_lost(tx=tx)
        pipeline.ledger.retry_due(now=pipeline.clock(), limit=pipeline.settings.max_in_flight_units, tx=tx)
    pipeline.acknowledger.acknowledge()
    pipeline.lineage.publish_staged()


def work(pipeline: Pipeline) -> None:
    """Run the chain over a partition with pending units."""
    for entry in pipeline.ledger.pending_by_partition():
        run_chain(
            MessageParse(
                pipeline=pipeline,
                dataset=entry.dataset,
                partition=entry.partition,
                run_id=str(uuid.uuid4()),
                source=Source.LEDGER,
                limit=pipeline.settings.max_units_per_run,
                lane=entry.lane,
            )
        )
        return


def reside(pipeline: Pipeline) -> None:
    """Ingest until no work is left."""
    locks = RunLocks.of(pipeline.settings)
    Worker(pipeline=pipeline, locks=locks, report=lambda _: None, warn=logging.warning).work(until_empty=True)


ROLES: Mapping[str, Callable[[Pipeline], None]] = {
    "receiver": receive,
    "keeper": keep,
    "worker": work,
    "resident": reside,
}


def main(role: str) -> None:
    """Repeat a role's work under the plan of KFM_CHAOS_PLAN; end when the file `stop` appears."""
    logging.basicConfig(level=logging.WARNING)
    settings = Settings.load()
    activate(settings)
    pipeline = Pipeline.open(settings)
    pipeline.registry = patient(pipeline.registry)
    stop = Path(settings.home) / "stop"
    while not stop.exists():
        ROLES[role](pipeline)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
