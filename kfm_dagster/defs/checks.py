"""Asset checks: a run with failing units never shows as a blanket success."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import dagster as dg

from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_key
from kfm_dagster.defs.display import failing_units
from kfm_dagster.stages.run_contract import StageBatch


def unit_checks(registry: ContractRegistry) -> list[dg.AssetChecksDefinition]:
    """Return one check per dataset on its `ledger` asset: every unit of the run succeeded."""
    return [_every_unit_succeeded(contract.id) for contract in registry]


def _every_unit_succeeded(dataset: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(dataset, "ledger"),
        name="every_unit_succeeded",
        description="Fails when a unit of the run failed or was quarantined; the table names each with its reason. "
        "Warns when units were not the run's any more when it settled them: their outcome is another run's.",
    )
    def every_unit_succeeded(ledger: StageBatch) -> dg.AssetCheckResult:
        # A unit that another run has taken fails here for that reason alone, and may have succeeded there.
        failing = [u for u in ledger.envelopes if u.failure is not None and u.failure.code != FenceIssue.CLAIM_LOST]
        lost = ledger.state.validation_summary.get("lost", 0)
        units = len(ledger.envelopes)
        found = [(len(failing), "failed"), (lost, "were another run's when this one settled them")]
        return dg.AssetCheckResult(
            passed=not failing and not lost,
            severity=dg.AssetCheckSeverity.ERROR if failing else dg.AssetCheckSeverity.WARN,
            description="; ".join(f"{count} of {units} units {what}" for count, what in found if count) or None,
            metadata={
                "rule": "every claimed unit ends with a STAC Item and its lineage",
                "observed": len(failing),
                "expected": 0,
                "lost": lost,
                "failing_units": failing_units(failing),
            },
        )

    return every_unit_succeeded
