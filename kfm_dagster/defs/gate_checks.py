"""Gates as asset checks: the gates of each stage, and their verdicts in Dagster's form.

Belongs here: the checks' names and their form. Does not belong here: the rules (`stages/gates/`), or their
consequences (`configs/state_machine.yaml`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from kfm_dagster.contracts.issues import GateIssue
from kfm_dagster.defs.display import console_links
from kfm_dagster.ledger.reports import DayReport
from kfm_dagster.plural import counted
from kfm_dagster.stages.gates.verdict import STOPS, Gate, Verdict
from kfm_dagster.stages.machine import GateDecision
from kfm_dagster.stages.staged import StagedNode

NAMES: Mapping[Gate, str] = {gate: f"{gate}_{gate.words.replace(' ', '_')}" for gate in Gate}
RESTRICTED = "the output is passed on, [Restricted]"
MAX_UNITS_SHOWN = 50
"""Maximum failing units that a check names; the audit names more."""


@contextmanager
def by_day() -> Iterator[None]:
    """Allow checks by partition, which Dagster 1.13 offers as a preview.

    Without partitions, a check only shows the result of the day that was evaluated last.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        yield


def gate_specs(key: dg.AssetKey, gates: Iterable[Gate], *, days: dg.PartitionsDefinition) -> list[dg.AssetCheckSpec]:
    """Return a blocking check by day for each gate of an output."""
    with by_day():
        return [
            dg.AssetCheckSpec(
                name=NAMES[gate],
                asset=key,
                blocking=True,
                partitions_def=days,
                description=f"{gate.description} {f'It can trigger the stop {STOPS[gate]}. ' if gate in STOPS else ''}"
                "See docs/pipeline-card.md.",
            )
            for gate in gates
        ]


def gate_results(
    key: dg.AssetKey, gates: Iterable[Gate], decision: GateDecision, *, day: DayReport, console: str
) -> Iterator[dg.AssetCheckResult]:
    """Yield each gate's result: an error if it stops later steps, a warning for single units.

    `console` is the base address of links to failing units, or empty. A gate without input passes, unless it removed
    units of the day in an earlier run.
    """
    verdicts = {verdict.gate: verdict for verdict in decision.verdicts}
    for gate in gates:
        yield _result(key, verdicts[gate], decision, out=_out_by(gate, day), console=console)


def not_evaluated(
    key: dg.AssetKey, gates: Iterable[Gate], stage: StagedNode, *, day: DayReport
) -> Iterator[dg.AssetCheckResult]:
    """Yield a check result for each gate of a skipped node.

    It warns if the gate restricted the output that is reused, or removed units of the day earlier.
    """
    skipped = stage.skipped
    cause = skipped.skipped.value if skipped and skipped.skipped else ""
    for gate in gates:
        out = _out_by(gate, day)
        restricted = skipped is not None and gate.value in skipped.restricted
        yield dg.AssetCheckResult(
            passed=not out and not restricted,
            asset_key=key,
            check_name=NAMES[gate],
            severity=dg.AssetCheckSeverity.WARN,
            description=_sentence(RESTRICTED if restricted else None, _earlier(out)),
            metadata={
                "observed": f"skipped: {cause}",
                "day_units_out": out,
                **({"tag": "[Restricted]"} if restricted else {}),
            },
        )


def _out_by(gate: Gate, day: DayReport) -> int:
    """Count the day's units that a gate removed, except units of a run still in progress."""
    return day.failing.get(GateIssue[gate.name].value, 0)


def _earlier(out: int) -> str | None:
    return f"{counted(out, 'unit')} of the day dropped by this gate in an earlier run" if out else None


def _sentence(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _result(
    key: dg.AssetKey, verdict: Verdict, decision: GateDecision, *, out: int, console: str
) -> dg.AssetCheckResult:
    stops = verdict.gate not in decision.passed
    restricted = verdict.gate in decision.restricted
    named = {str(finding.wal_id): finding.what for finding in verdict.findings[:MAX_UNITS_SHOWN] if finding.wal_id}
    whole = [finding.what for finding in verdict.findings if finding.wal_id is None][:MAX_UNITS_SHOWN]
    return dg.AssetCheckResult(
        passed=verdict.passed and not out,
        asset_key=key,
        check_name=NAMES[verdict.gate],
        severity=dg.AssetCheckSeverity.ERROR if stops else dg.AssetCheckSeverity.WARN,
        description=_sentence(
            None if verdict.passed else _consequence(verdict, stops=stops, restricted=restricted), _earlier(out)
        ),
        metadata={
            "rule": verdict.rule,
            "observed": verdict.observed,
            "expected": verdict.expected,
            "day_units_out": out,
            **({"tag": "[Restricted]"} if restricted or (stops and verdict.gate in STOPS) else {}),
            **({"failing_units": dg.MetadataValue.json(named)} if named else {}),
            **console_links(((f"{what}: {wal_id}", wal_id) for wal_id, what in named.items()), console),
            **({"failing": dg.MetadataValue.json(whole)} if whole else {}),
        },
    )


def _consequence(verdict: Verdict, *, stops: bool, restricted: bool) -> str:
    if restricted:
        return RESTRICTED
    if stops:
        return f"the batch is stopped{f' ({STOPS[verdict.gate]})' if verdict.gate in STOPS else ''}"
    return f"{counted(len(verdict.units), 'unit')} dropped, the others continue"
