"""Run-state: the record that tells whether a node already did its work in a run.

`open_run_states` gives the store of an environment; a store of your own fills the protocol `RunStateStore`.
"""

from kfm_dagster.run_state.choice import open_run_states
from kfm_dagster.run_state.inputs_hash import InputReference, inputs_hash
from kfm_dagster.run_state.record import Outcome, RunState, RunStateError, ValidationSummary
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
