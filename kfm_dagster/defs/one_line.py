"""A tick that cannot work says why in one line, in place of a traceback. Nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import dagster as dg

from kfm_dagster.errors import DependencyUnavailableError

Given = ParamSpec("Given")
Result = TypeVar("Result")


def one_line(tick: Callable[Given, Result]) -> Callable[Given, Result | dg.SkipReason]:
    """Let a tick skip, with the reason, where something that it needs is not there. The next tick asks again."""

    @functools.wraps(tick)
    def ticked(*given: Given.args, **more: Given.kwargs) -> Result | dg.SkipReason:
        try:
            return tick(*given, **more)
        except DependencyUnavailableError as error:
            return dg.SkipReason(str(error))

    return ticked
