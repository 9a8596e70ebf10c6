"""A finding of `kfm doctor`, and how checks are made: side by side, each bounded in time, none able to end the others.

Does not belong here: what is checked (the other modules), or how findings are shown (`cli/doctor.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique
from functools import partial

from kfm_dagster.errors import KfmError
from kfm_dagster.redaction import error_text


@unique
class Health(StrEnum):
    """What a finding means for the deployment."""

    OK = "ok"
    WARNING = "warning"
    """It works today, and will not some day or under some load."""
    FAULT = "fault"
    """It does not work, or loses what it should keep."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at; what is not well says what was observed, what was expected, and what to do."""

    verdict: Health
    what: str
    observed: str | None = None
    expected: str | None = None
    next_step: str | None = None
    check: str = ""
    """Name of the check that found it."""


Check = Callable[[], Iterable[Diagnosis]]
"""Looks at one thing of a deployment. May raise KfmError, which is a fault; changes nothing."""


def _diagnosis(verdict: Health, what: str, *, observed: object, expected: object, next_step: str) -> Diagnosis:
    return Diagnosis(verdict, what, str(observed), str(expected), next_step)


ok = partial(Diagnosis, Health.OK)
warning = partial(_diagnosis, Health.WARNING)
fault = partial(_diagnosis, Health.FAULT)


def refused(error: KfmError) -> Diagnosis:
    """Return a refusal as a fault; what it does not say is taken from here."""
    return fault(
        error.what,
        observed="nothing" if error.observed is None else error.observed,
        expected="an answer" if error.expected is None else error.expected,
        next_step=error.next_step or "correct it, then ask again",
    )


def examine(checks: Mapping[str, Check], *, seconds: float) -> list[Diagnosis]:
    """Make all checks side by side and return what they found, in the order of the checks.

    A check that has not ended after so many seconds is a fault, and is left alone: its thread ends with the process.
    """
    found: dict[str, list[Diagnosis]] = {}
    threads = {
        name: threading.Thread(target=_make, args=(name, check, found), name=f"doctor-{name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    late = fault(
        "the check has not come to an end",
        observed=f"no answer within {seconds:g} s",
        expected="an answer",
        next_step="look whether what it asks is reachable from here, or give it more time with --timeout",
    )
    return [replace(one, check=name) for name in checks for one in found.get(name, [late])]


def _make(name: str, check: Check, found: dict[str, list[Diagnosis]]) -> None:
    try:
        made = list(check())
    except KfmError as error:
        made = [refused(error)]
    except Exception as error:
        # A doctor that dies of one patient says nothing of the others.
        made = [
            fault(
                "the check itself failed",
                observed=error_text(error),
                expected="a finding",
                next_step="report it with this line",
            )
        ]
    found[name] = made
