"""Asset checks: a run with failing units never shows as a blanket success."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import dagster as dg

from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_key
from kfm_dagster.defs.display import failing_units
from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.stages.batch import StageBatch

MAX_MISMATCHES = 10_000
"""Newest differences that a check looks through; a run settles no more units than that."""


def unit_checks(registry: ContractRegistry) -> list[dg.AssetChecksDefinition]:
    """Return one check per dataset on its `ledger` asset: every unit of the run succeeded."""
    return [_every_unit_succeeded(contract.id) for contract in registry]


def _every_unit_succeeded(dataset: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(dataset, "ledger"),
        name="every_unit_succeeded",
        description="Fails when a unit of the run failed or was quarantined; the table names each with its reason. "
        "Fails when a unit that was done again gave another result than before, which nobody had permitted. "
        "Warns when units were not the run's any more when it settled them: their outcome is another run's.",
    )
    def every_unit_succeeded(
        context: dg.AssetCheckExecutionContext, ledger: StageBatch, pipeline: PipelineResource
    ) -> dg.AssetCheckResult:
        # A unit that another run has taken fails here for that reason alone, and may have succeeded there.
        seen = () if ledger.handed_on_whole else ledger.envelopes
        failing = [u for u in seen if u.failure is not None and u.failure.code != FenceIssue.CLAIM_LOST]
        lost = ledger.state.validation_summary.get("lost", 0)
        mismatched = _mismatched(ledger, pipeline)
        if mismatched:
            context.log.error("results of %s differ from earlier ones: %s", dataset, ", ".join(mismatched))
        units = len(ledger.envelopes)
        found = [
            (len(failing), "failed"),
            (len(mismatched), "gave another result than before"),
            (lost, "were another run's when this one settled them"),
        ]
        return dg.AssetCheckResult(
            passed=not failing and not mismatched and not lost,
            severity=dg.AssetCheckSeverity.ERROR if failing or mismatched else dg.AssetCheckSeverity.WARN,
            description="; ".join(f"{count} of {units} units {what}" for count, what in found if count) or None,
            metadata={
                "rule": "every claimed unit ends with a STAC Item and its lineage",
                "observed": len(failing),
                "expected": 0,
                "lost": lost,
                "mismatched_units": mismatched,
                "failing_units": failing_units(failing),
            },
        )

    return every_unit_succeeded


def _mismatched(ledger: StageBatch, pipeline: PipelineResource) -> list[str]:
    """Return the units of a run whose result differs from an earlier one without permission."""
    if not ledger.state.validation_summary.get("mismatched"):
        return []
    attempts = {(unit.wal_id, unit.attempt) for unit in ledger.envelopes}
    found = pipeline.get().ledger.mismatches(limit=MAX_MISMATCHES)
    return sorted(one.wal_id for one in found if not one.permitted and (one.wal_id, one.attempt) in attempts)
