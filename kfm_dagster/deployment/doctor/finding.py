"""A finding of `kfm doctor`, and how checks are made: side by side, each bounded in time, none able to end the others.

Does not belong here: what is checked (the other modules), or how findings are shown (`cli/doctor.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum, unique

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


@dataclass(frozen=True, kw_only=True, slots=True)
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


def ok(what: str) -> Diagnosis:
    """Return that something is well."""
    return Diagnosis(verdict=Health.OK, what=what)


def warning(what: str, *, observed: object, expected: object, next_step: str) -> Diagnosis:
    """Return what works today."""
    return Diagnosis(
        verdict=Health.WARNING, what=what, observed=str(observed), expected=str(expected), next_step=next_step
    )


def fault(what: str, *, observed: object, expected: object, next_step: str) -> Diagnosis:
    """Return what does not work."""
    return Diagnosis(
        verdict=Health.FAULT, what=what, observed=str(observed), expected=str(expected), next_step=next_step
    )


def refused(error: KfmError, *, expected: str, next_step: str) -> Diagnosis:
    """Return a refusal as a fault; what it does not say is taken from here."""
    return fault(
        error.what,
        observed="nothing" if error.observed is None else error.observed,
        expected=expected if error.expected is None else error.expected,
        next_step=error.next_step or next_step,
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
        made = [refused(error, expected="an answer", next_step="correct it, then ask again")]
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
