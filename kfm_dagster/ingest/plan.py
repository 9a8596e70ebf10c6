"""Planning: which partitions get how many runs, from what the ledger has pending.

Starting a run costs seconds and a unit a millisecond, so a partition gets a run only when it has more pending units
than the runs that are coming will take; what arrives meanwhile waits in the ledger for the next one.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kfm_dagster.ingest.nodes import Source
from kfm_dagster.ledger.reports import PendingPartition


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """One run to ask for: a partition, the datasets that have work in it, and where they take it from."""

    partition: str
    datasets: tuple[str, ...]
    source: Source
    landing: Mapping[str, tuple[str, ...]]
    """Digests of landed batches by dataset; empty for the ledger."""
    run_key: str


def plan_runs(
    pending: Iterable[PendingPartition],
    *,
    landed: Mapping[tuple[str, str], Sequence[str]],
    active: Counter[str],
    coming: Counter[str],
    max_units_per_run: int,
    salt: Callable[[str], str],
) -> list[PlannedRun]:
    """Return the runs that the pending units need beyond those that are there.

    `active` counts, by partition, the queued and running runs, `coming` those of them that have not claimed yet. An
    idle partition gets runs for all that is pending, one with active runs only for batches that are at least half full:
    what a live feed brings in while a run works would else cost a run's start for a handful of units.

    The first run of an idle partition takes the landed batches, further ones what is pending. A run_key is remembered
    for ever, so a run over landed batches is named by their digests, and one over the ledger by `salt(partition)`,
    which has to change once an earlier run of the partition has come.
    """
    units: dict[str, dict[str, int]] = defaultdict(dict)
    for entry in pending:
        units[entry.partition][entry.dataset] = entry.units
    planned = []
    for partition, by_dataset in sorted(units.items()):
        # A run takes up to max_units_per_run of each dataset, so the fullest dataset sets the number of runs.
        full, rest = divmod(max(by_dataset.values()), max_units_per_run)
        worth_a_run = rest > 0 and (not active[partition] or rest * 2 >= max_units_per_run)
        needed = full + worth_a_run
        for index in range(coming[partition], needed):
            datasets = tuple(sorted(name for name, count in by_dataset.items() if count > index * max_units_per_run))
            landing = {name: tuple(sorted(landed[name, partition])) for name in datasets if (name, partition) in landed}
            first = index == coming[partition]
            source = Source.LANDING if first and len(landing) == len(datasets) else Source.LEDGER
            chosen = landing if source is Source.LANDING else {}
            key = json.dumps(
                [partition, datasets, source.value, chosen, index, "" if chosen else salt(partition)], sort_keys=True
            )
            planned.append(
                PlannedRun(
                    partition=partition,
                    datasets=datasets,
                    source=source,
                    landing=chosen,
                    run_key=hashlib.sha256(key.encode()).hexdigest(),
                )
            )
    return planned
