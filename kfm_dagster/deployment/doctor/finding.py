"""Findings of `kfm doctor`, and how its checks run: side by side, bounded in time.

Does not belong here: the checks (the other modules), their list and display (`cli/doctor.py`).
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
    """Severity of a finding for the deployment."""

    OK = "ok"
    WARNING = "warning"
    """The checked part works now, but will fail some day or under some load."""
    FAULT = "fault"
    """The checked part does not work, or loses data."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A result of a check; warnings and faults have observed, expected and the next step."""

    verdict: Health
    what: str
    observed: str | None = None
    expected: str | None = None
    next_step: str | None = None
    check: str = ""
    """Name of the check."""


Check = Callable[[], Iterable[Diagnosis]]
"""A check of a part of a deployment. It changes nothing; a KfmError that it raises is a fault."""


def _diagnosis(verdict: Health, what: str, *, observed: object, expected: object, next_step: str) -> Diagnosis:
    return Diagnosis(verdict, what, str(observed), str(expected), next_step)


ok = partial(Diagnosis, Health.OK)
warning = partial(_diagnosis, Health.WARNING)
fault = partial(_diagnosis, Health.FAULT)


def refused(error: KfmError) -> Diagnosis:
    """Return a refusal as a fault, with defaults for the parts that the error lacks."""
    return fault(
        error.what,
        observed="nothing" if error.observed is None else error.observed,
        expected="an answer" if error.expected is None else error.expected,
        next_step=error.next_step or "correct this, then run kfm doctor again",
    )


def examine(checks: Mapping[str, Check], *, seconds: float) -> list[Diagnosis]:
    """Run all checks side by side and return their findings, in the order of the checks.

    A check that runs longer than `seconds` is a fault and is abandoned; its thread ends with the process.
    """
    findings: dict[str, list[Diagnosis]] = {}
    threads = {
        name: threading.Thread(target=_make, args=(name, check, findings), name=f"doctor-{name}", daemon=True)
        for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, deadline - time.monotonic()))
    timed_out = fault(
        "the check did not finish",
        observed=f"no answer within {seconds:g} s",
        expected="an answer",
        next_step="see whether the checked part is reachable from here, or raise --timeout",
    )
    return [replace(finding, check=name) for name in checks for finding in findings.get(name, [timed_out])]


def _make(name: str, check: Check, by_check: dict[str, list[Diagnosis]]) -> None:
    try:
        findings = list(check())
    except KfmError as error:
        findings = [refused(error)]
    except Exception as error:
        # A check's error must not hide the findings of other checks.
        findings = [
            fault(
                "the check itself failed",
                observed=error_text(error),
                expected="a finding",
                next_step="report the failure with this line",
            )
        ]
    by_check[name] = findings
