"""Asset checks: a run with failing units never shows as a blanket success."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

import dagster as dg

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
        description="Fails when a unit of the run failed or was quarantined; the table names each with its reason.",
    )
    def every_unit_succeeded(ledger: StageBatch) -> dg.AssetCheckResult:
        failing = [unit for unit in ledger.envelopes if unit.failure is not None]
        return dg.AssetCheckResult(
            passed=not failing,
            description=f"{len(failing)} of {len(ledger.envelopes)} units failed" if failing else None,
            metadata={
                "rule": "every claimed unit ends with a STAC Item and its lineage",
                "observed": len(failing),
                "expected": 0,
                "failing_units": failing_units(failing),
            },
        )

    return every_unit_succeeded
