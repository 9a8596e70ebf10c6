"""Explain runs from a database's records and Dagster's re-executions.

Does not belong here: the records (`exports/explanations`), Dagster's answers (`defs/reexecutions.py`).
"""

from __future__ import annotations

from kfm_dagster.exports.explanations.explanation import Explanations
from kfm_dagster.run_state.choice import looked_up_states
from kfm_dagster.settings import Settings
from kfm_dagster.storage.database import Database


def explanations(database: Database, settings: Settings) -> Explanations:
    """Return explanations, with re-executions of DAGSTER_HOME (default: KFM_HOME/dagster)."""
    states, home = looked_up_states(database, settings), settings.dagster_home
    if not home.is_dir():
        return Explanations(database=database, run_states=states)
    # Imported here, because importing Dagster takes seconds.
    from kfm_dagster.defs.reexecutions import InstanceReexecutions  # noqa: PLC0415

    return Explanations(database=database, run_states=states, reexecutions=InstanceReexecutions(home))
