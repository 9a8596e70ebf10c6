"""A schedule of each dataset that lists its bucket for the last whole day, for deployments that trust no queue alone.

Belongs here: when, and for which day. Does not belong here: listings that a contract itself asks for, because nothing
announces its objects: the sensor nodd_due begins them (`recovery/backfill/scheduled.py`).
"""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from datetime import date, datetime, timedelta

import dagster as dg

from kfm_dagster.contracts.cadence import settled_until
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.defs.chain import slug
from kfm_dagster.defs.jobs import INGEST_JOB

DAILY = "40 6 * * *"
"""Off the full hour, and so late that the day before has settled for GFS, too, whose last hours take six."""


def listing_schedules(registry: ContractRegistry, *, days: dg.PartitionsDefinition) -> list[dg.ScheduleDefinition]:
    """Return the schedules, switched off: what is announced needs no listing, and a listing costs requests."""
    return [_schedule(contract, days) for contract in registry if contract.storage.scheduled_listing is None]


def _schedule(contract: DatasetContract, days: dg.PartitionsDefinition) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"nodd_list_{slug(contract.id)}",
        job_name=f"{INGEST_JOB}_{slug(contract.id)}",
        cron_schedule=DAILY,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Lists the bucket for the last day that should be whole and ingests what is missing of "
        f"{contract.metadata.title}. Switched off: messages bring it as it comes, and kfm reconcile fetches "
        "single gaps.",
    )
    def list_last_day(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        day = _last_whole_day(contract, context.scheduled_execution_time).isoformat()
        if not days.has_partition_key(day):
            return dg.SkipReason(f"{day} is before the first day of the partitions; kfm backfill lowers it")
        return dg.RunRequest(run_key=day, partition_key=day)

    return list_last_day


def _last_whole_day(contract: DatasetContract, at: datetime) -> date:
    """Return the last day whose hours have all settled."""
    until = settled_until(contract.coverage, at) if contract.coverage else at
    return until.date() - timedelta(days=1)
