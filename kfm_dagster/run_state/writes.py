"""The counter of run-state writes, through the OpenTelemetry API: it costs nothing until an SDK is configured.

How many records stand is asked of the store (`RunStateStore.counts`), which no process can lose; this tells how fast
they are written. Nothing else belongs here.
"""

from __future__ import annotations

from functools import cache

from opentelemetry import metrics

from kfm_dagster.run_state.record import Outcome

COUNTER = "kfm.run_state.writes"


def count_write(outcome: Outcome) -> None:
    """Count one record that stands from now on."""
    _counter().add(1, {"outcome": outcome.value})


@cache
def _counter() -> metrics.Counter:
    # One instrument: made before an SDK is configured, it is handed over to that SDK.
    return metrics.get_meter("kfm_dagster").create_counter(
        COUNTER, unit="{record}", description="Run-state records written, by outcome."
    )
