"""The counter of run-state writes (OpenTelemetry API); free until an SDK is configured.

The number of records comes from the store (`RunStateStore.counts`) and survives every process; this counter shows the
rate of writes. Nothing else belongs here.
"""

from __future__ import annotations

from functools import cache

from opentelemetry import metrics

from kfm_dagster.run_state.record import Outcome

COUNTER = "kfm.run_state.writes"


def count_write(outcome: Outcome) -> None:
    """Count one written record."""
    _counter().add(1, {"outcome": outcome.value})


@cache
def _counter() -> metrics.Counter:
    # One instrument: created before an SDK is configured, it passes to that SDK.
    return metrics.get_meter("kfm_dagster").create_counter(
        COUNTER, unit="{record}", description="Run-state records written, by outcome."
    )
