"""How a tick or an op ends that cannot work: in one line, and without the texts of foreign exceptions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import dagster as dg

from kfm_dagster.defs.resources import PipelineResource
from kfm_dagster.errors import DependencyUnavailableError, ForeignRootError, KfmError
from kfm_dagster.redaction import redacted_error

Given = ParamSpec("Given")
Result = TypeVar("Result")


def one_line(tick: Callable[Given, Result]) -> Callable[Given, Result | dg.SkipReason]:
    """Let a tick skip, with the reason, where what it needs is not there or not ours. The next tick asks again."""
    redacting = redacted(tick)

    @functools.wraps(tick)
    def ticked(*given: Given.args, **more: Given.kwargs) -> Result | dg.SkipReason:
        try:
            return redacting(*given, **more)
        except (DependencyUnavailableError, ForeignRootError) as error:
            return dg.SkipReason(str(error))

    return ticked


def refuse_foreign_roots(pipeline: PipelineResource) -> None:
    """Raise dg.Failure, in one line, where roots are another deployment's or do not answer. Asked once per process."""
    opened = pipeline.get()
    try:
        pipeline.state().hold_roots(opened.settings, opened.database)
    except KfmError as error:
        raise dg.Failure(description=str(error), allow_retries=not isinstance(error, ForeignRootError)) from None


def redacted(work: Callable[Given, Result]) -> Callable[Given, Result]:
    """Raise what the work raises, redacted: Dagster stores an error with the texts of all its causes."""

    @functools.wraps(work)
    def worked(*given: Given.args, **more: Given.kwargs) -> Result:
        try:
            return work(*given, **more)
        except dg.Failure:
            raise  # one line of ours, with what Dagster is to do about it
        except Exception as error:
            shown = redacted_error(error)
            raise shown from shown.__cause__

    return worked
