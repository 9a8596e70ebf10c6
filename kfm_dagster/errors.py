"""Errors: a base class, and the parts of every refusal of the package.

Belongs here: exception classes that cross a package boundary. Does not belong here: the issue codes that an operator
gives a unit (`contracts/issues.py`), because these codes are data, not exceptions.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import ClassVar


@unique
class ExitCode(IntEnum):
    """Exit codes of the `kfm` commands; scripts rely on them."""

    DONE = 0
    USAGE = 2
    REFUSED = 3
    FINISHED_WITH_FAILURES = 4
    DEPENDENCY_UNAVAILABLE = 5
    WAITS_FOR_APPROVAL = 6


class KfmError(Exception):
    """A refusal: what is wrong, the observed and the expected value, and the next step.

    The docstring of a subclass is its default `what`. `str()` returns a single line for a terminal. For several faults
    `observed` is a tuple, and the command line prints each fault on its own line.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE

    def __init__(
        self,
        what: str | None = None,
        *,
        observed: object = None,
        expected: object = None,
        next_step: str | None = None,
    ) -> None:
        self.what = what or self._default()
        self.observed = observed
        self.expected = expected
        self.next_step = next_step
        super().__init__(self._line())

    @classmethod
    def _default(cls) -> str:
        """Return the docstring's first line, beginning with a small letter like all refusals."""
        line = (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")
        return line[:1].lower() + line[1:]

    def _line(self) -> str:
        parts = [self.what]
        observed = ", ".join(self.observed) if isinstance(self.observed, tuple) else self.observed
        if observed is not None:
            parts.append(f"observed {observed if str(observed).strip() else repr(observed)}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.next_step is not None:
            parts.append(f"next: {self.next_step}")
        return "; ".join(" ".join(part.split()) for part in parts)


class RefusedError(KfmError):
    """The state of the ledger, or a guard, does not allow this."""

    exit_code = ExitCode.REFUSED


class UnknownNameError(KfmError):
    """The name is unknown."""


class ConfigurationError(KfmError):
    """The configuration is wrong."""


class ContractError(ConfigurationError):
    """A dataset contract is wrong."""


class IllegalTransitionError(KfmError):
    """The ledger refused a transition."""

    exit_code = ExitCode.REFUSED

    def __init__(
        self, *, wal_id: str, from_status: str | None, to_status: str, expected: str, why: str | None = None
    ) -> None:
        """Name the transition, the legal transitions (`expected`), and the reason of the refusal."""
        self.wal_id = wal_id
        self.from_status = from_status
        self.to_status = to_status
        super().__init__(
            "illegal transition" if why is None else f"illegal transition ({why})",
            observed=f"{wal_id}: {from_status or 'null'} > {to_status}",
            expected=expected,
            next_step="see the present state (kfm units show, kfm replay status)",
        )


class RecordMovedError(KfmError):
    """The record has changed since it was read."""

    exit_code = ExitCode.REFUSED

    def __init__(self, wal_id: str, *, version: int, current: int | None = None) -> None:
        """Name the unit, the version that was read, and the present version, if known."""
        super().__init__(
            observed=f"{wal_id} at {'another version' if current is None else f'version {current}'}",
            expected=f"version {version}",
            next_step=f"kfm units show {wal_id}, then decide again",
        )


class UnknownReplayReasonError(KfmError):
    """The replay reason is in no vocabulary."""


class DependencyUnavailableError(KfmError):
    """A service that the command needs does not answer."""

    exit_code = ExitCode.DEPENDENCY_UNAVAILABLE


class DatabaseUnavailableError(DependencyUnavailableError):
    """The database does not answer."""


class QueueUnavailableError(DependencyUnavailableError):
    """The queue does not answer."""


class StoreAccessError(DependencyUnavailableError):
    """A store refuses access or its bucket does not exist; only a person can correct this."""


class PreflightError(DependencyUnavailableError):
    """Nothing is received, because a requirement of the deployment is not met."""


class ForeignRootError(KfmError):
    """A root is not marked as a root of this deployment."""

    exit_code = ExitCode.REFUSED


class SchemaVersionError(KfmError):
    """The database has a newer schema than this release knows."""

    exit_code = ExitCode.REFUSED


class NoLedgerError(ConfigurationError):
    """There is no ledger yet."""


class ArtifactError(KfmError):
    """A stored artifact is missing or does not match its digest."""

    exit_code = ExitCode.REFUSED


def expectation(message: str) -> str:
    """Return the expectation in a message of pydantic, such as `a valid string`."""
    return message.removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable to parse")[0]
