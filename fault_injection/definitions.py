"""Entry point of a code location whose processes suffer the faults of KFM_CHAOS_PLAN.

Loaded in the place of `kfm_dagster.definitions` where faults are wanted: the code server (sensors) and every run
process load it, and each puts the plan in force. Belongs here: assembly only.
"""

from __future__ import annotations

from functools import cache

import dagster as dg

from fault_injection.injector import Injector, activate
from kfm_dagster.definitions import build_definitions
from kfm_dagster.settings import Settings


@cache
def in_force(settings: Settings) -> Injector:
    """Put the plan in force once per process, however often the definitions are loaded; refused in prod."""
    return activate(settings)


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the environment, once its plan is in force."""
    settings = Settings.load()
    in_force(settings)
    return build_definitions(settings)
