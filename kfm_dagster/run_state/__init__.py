"""Run-state: the record of a node's outcome in a run.

`open_run_states` opens the store of an environment; a store of your own implements the protocol `RunStateStore`.
"""

from kfm_dagster.run_state.choice import open_run_states
from kfm_dagster.run_state.record import (
    InputReference,
    Outcome,
    RunState,
    RunStateError,
    ValidationSummary,
    inputs_hash,
)
from kfm_dagster.run_state.store import RelationalRunState, RunStateStore

__all__ = [
    "InputReference",
    "Outcome",
    "RelationalRunState",
    "RunState",
    "RunStateError",
    "RunStateStore",
    "ValidationSummary",
    "inputs_hash",
    "open_run_states",
]
