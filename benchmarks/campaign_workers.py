"""The workers of a campaign: one process per role, which lives until it is killed or told to stop.

    receiver  takes messages in, as the sensor `nodd_messages` does
    keeper    recovers, retries, acknowledges and publishes lineage, as the sensor `nodd_ledger` does
    worker    runs the six nodes over what is pending, as a Dagster run does
    resident  does all of that in one process, as `kfm worker` does

No Dagster: a death costs a process start and not a run's, so that hundreds fit into minutes; everything below is the
product's own code. Run as `python -m benchmarks.campaign_workers ROLE`. Belongs here: the roles. Does not belong here:
who starts them, and what is checked (`campaign.py`).
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
"""The most that a contract allows: a campaign kills more often than any outage, and every unit has to succeed."""


def patient(registry: ContractRegistry) -> ContractRegistry:
    """Return the contracts with as many attempts as a contract may grant."""
    return ContractRegistry.of([_patient(contract) for contract in registry])


def _patient(contract: DatasetContract) -> DatasetContract:
    retry = contract.retry.model_copy(update={"max_attempts": MAX_ATTEMPTS})
    return contract.model_copy(update={"retry": retry})


def receive(pipeline: Pipeline) -> None:
    """Take in what the queue has."""
    take_in(pipeline, ProcessState())


def keep(pipeline: Pipeline) -> None:
    """Look after the ledger. Claims of dead workers come back when their lease runs out."""
    with pipeline.database.transaction() as tx:
        pipeline.ledger.release_lost(tx=tx)
        pipeline.ledger.retry_due(now=pipeline.clock(), limit=pipeline.settings.max_in_flight_units, tx=tx)
    pipeline.acknowledger.acknowledge()
    pipeline.lineage.publish_staged()


def work(pipeline: Pipeline) -> None:
    """Run the chain over one partition that has something pending."""
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
    """Ingest until nothing is left to do."""
    locks = RunLocks.of(pipeline.settings)
    Worker(pipeline=pipeline, locks=locks, report=lambda _: None, warn=logging.warning).work(until_empty=True)


ROLES: Mapping[str, Callable[[Pipeline], None]] = {
    "receiver": receive,
    "keeper": keep,
    "worker": work,
    "resident": reside,
}


def main(role: str) -> None:
    """Do a role's work again and again, under the plan of KFM_CHAOS_PLAN; end when the file `stop` appears."""
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
