"""Asset checks: a run with failing units never shows as a blanket success."""

# No postponed annotations here: Dagster reads the types of decorated functions from the annotations themselves.

from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from kfm_dagster.contracts.issues import FenceIssue
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.defs.chain import asset_key
from kfm_dagster.defs.display import day_counts, day_sentence
from kfm_dagster.defs.failing_units import MAX_TABLE_ROWS, failing_of_day
from kfm_dagster.defs.gate_checks import by_day
from kfm_dagster.defs.one_line import redacted
from kfm_dagster.defs.resources import WalResource
from kfm_dagster.ledger.reports import DayReport, FailingUnit
from kfm_dagster.ledger.store import Ledger
from kfm_dagster.stages.batch import StageBatch

MAX_MISMATCHES = 10_000
"""Newest differences that a check looks through; a run settles no more units than that."""


def unit_checks(registry: ContractRegistry, *, days: dg.PartitionsDefinition) -> list[dg.AssetChecksDefinition]:
    """Return one check per dataset on its `ledger` asset: every unit of the day succeeded."""
    with by_day():
        return [_every_unit_succeeded(contract.id, days) for contract in registry]


def _every_unit_succeeded(dataset: str, days: dg.PartitionsDefinition) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=asset_key(dataset, "ledger"),
        name="every_unit_succeeded",
        partitions_def=days,
        description="Fails when a unit of the day failed or is quarantined, in whichever run; the table names each "
        "with its reason. Fails when a unit that was done again gave another result than before, which nobody had "
        "permitted. Warns when units were not the run's any more when it settled them, and when nothing of the day is "
        "known.",
    )
    @redacted
    def every_unit_succeeded(
        context: dg.AssetCheckExecutionContext, ledger: StageBatch, wal: WalResource
    ) -> dg.AssetCheckResult:
        console = wal.settings().console_url
        found = _found(ledger, wal.get(), dataset=dataset, day=context.partition_key, console=console)
        if found.mismatched:
            context.log.error("results of %s differ from earlier ones: %s", dataset, ", ".join(found.mismatched))
        return found.result()

    return every_unit_succeeded


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What the check found: of the day, by the ledger, and of the run."""

    dataset: str
    day: DayReport
    failing: Sequence[FailingUnit]
    """Of the day, as many as a table shows."""
    units: int
    """Of the run, and the next ones, too."""
    run_failing: int
    mismatched: Sequence[str]
    lost: int
    console: str
    """Where the console is, or nothing."""

    def result(self) -> dg.AssetCheckResult:
        """Return it as Dagster shows it: the day first, the run's share beside it."""
        out = sum(self.day.failing.values())
        bad = out or self.run_failing or self.mismatched
        of_run = f"of {self.units} units of this run"
        said = [
            (out, f"{out} of {self.day.units} units of the day failed or are quarantined"),
            (self.run_failing, f"{self.run_failing} {of_run} failed"),
            (self.mismatched, f"{len(self.mismatched)} {of_run} gave another result than before"),
            (self.lost, f"{self.lost} {of_run} were another run's when this one settled them"),
            (not self.day.units, day_sentence(self.day)),
        ]
        return dg.AssetCheckResult(
            passed=not any(holds for holds, _ in said),
            severity=dg.AssetCheckSeverity.ERROR if bad else dg.AssetCheckSeverity.WARN,
            description="; ".join(text for holds, text in said if holds) or None,
            metadata={
                "rule": "every unit of the day ends with a STAC Item and its lineage",
                "observed": out,
                "expected": 0,
                **failing_of_day(self.failing, console=self.console, dataset=self.dataset),
                "day": day_sentence(self.day),
                **day_counts(self.day),
                "run_units": self.units,
                "run_failing": self.run_failing,
                "run_lost": self.lost,
                "mismatched_units": list(self.mismatched),
            },
        )


def _found(ledger: StageBatch, known: Ledger, *, dataset: str, day: str, console: str) -> _Found:
    # A unit that another run has taken fails here for that reason alone, and may have succeeded there.
    seen = () if ledger.reused_whole else ledger.envelopes
    return _Found(
        dataset=dataset,
        day=known.day(dataset=dataset, partition=day),
        failing=known.failing_of_day(dataset=dataset, partition=day, limit=MAX_TABLE_ROWS),
        units=len(ledger.envelopes),
        run_failing=sum(1 for u in seen if u.failure is not None and u.failure.code != FenceIssue.CLAIM_LOST),
        mismatched=_mismatched(ledger, known),
        lost=ledger.state.validation_summary.get("lost", 0),
        console=console,
    )


def _mismatched(ledger: StageBatch, known: Ledger) -> list[str]:
    """Return the units of a run whose result differs from an earlier one without permission."""
    if not ledger.state.validation_summary.get("mismatched"):
        return []
    attempts = {(unit.wal_id, unit.attempt) for unit in ledger.envelopes}
    found = known.mismatches(limit=MAX_MISMATCHES)
    return sorted(one.wal_id for one in found if not one.permitted and (one.wal_id, one.attempt) in attempts)
