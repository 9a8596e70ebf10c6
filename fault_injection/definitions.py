"""Entry point of a code location whose processes apply the faults of KFM_CHAOS_PLAN.

Replaces `kfm_dagster.definitions` to inject faults: the code server (sensors) and every run process load it, and each
activates the plan. Belongs here: assembly only.
"""

from __future__ import annotations

from functools import cache

import dagster as dg

from fault_injection.injector import Injector, activate
from kfm_dagster.definitions import build_definitions
from kfm_dagster.settings import Settings


@cache
def in_force(settings: Settings) -> Injector:
    """Activate the plan once per process, even if the definitions are loaded repeatedly; refused in prod."""
    return activate(settings)


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the environment, after activating its plan."""
    settings = Settings.load()
    in_force(settings)
    return build_definitions(settings)
