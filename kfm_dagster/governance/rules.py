"""Governance rules: allow, mask or refuse a unit before it is registered (SEC-03).

Pure: rules read a contract's governance section, a unit's metadata and the run's reference time, but no clock.
Belongs here: the rules, their order, and the effect of a ruling on an envelope. Does not belong here: generalising
locations (`masking.py`), quarantine (`ledger/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum, unique
from typing import NamedTuple

from kfm_dagster.contracts.envelope import Envelope, Metadata
from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.contracts.issues import GovernanceIssue, Issue, Severity
from kfm_dagster.contracts.stewardship import Embargo, Governance
from kfm_dagster.governance.areas import SensitiveAreas
from kfm_dagster.governance.masking import MASKING, MASKING_DECISION, MaskingDecision, generalised


@unique
class RuleId(StrEnum):
    """Rule of governance; the members are in the order of evaluation."""

    ACCESS = "access"
    """No unit of a dataset with closed access is catalogued."""
    CONSENT = "consent"
    """Data of Indigenous peoples need a valid consent."""
    EMBARGO = "embargo"
    """A unit is refused until its embargo is over."""
    SENSITIVITY = "sensitivity"
    """A sensitive location is shown generalised, or not at all."""


class Objection(NamedTuple):
    """A rule's reason to quarantine a unit; the texts contain no location."""

    rule: RuleId
    observed: str
    expected: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.observed}, expected {self.expected}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The rules of a dataset at a reference time (aware), the time of the run's claims."""

    governance: Governance
    at: datetime
    dataset: str = ""
    """The dataset's public name, needed only if `areas` masks an Item."""
    areas: SensitiveAreas = field(default_factory=SensitiveAreas)
    salt: bytes = field(default=b"", repr=False)

    def objection(self, unit: Envelope) -> Objection | None:
        """Return the first objection to a unit, or None if no rule objects."""
        return next(filter(None, (rule(self, unit) for rule in _RULES)), None)

    def applied(self, unit: Envelope) -> Envelope:
        """Return a unit to store: with its location masked, and an objection added as a hard fail.

        A unit that an earlier step has failed keeps the reason of that step. Its location is masked, too, because its
        envelope is stored as well.
        """
        failed, objection = unit.failure is not None, self.objection(unit)
        if unit.metadata is not None:
            unit = unit.evolve(metadata=self._masked(unit.metadata))
        if failed or objection is None:
            return unit
        issue = Issue(code=GovernanceIssue.HARD_FAIL.value, severity=Severity.FAILED, message=str(objection))
        return unit.evolve(gate_issues=(*unit.gate_issues, issue))

    def _masked(self, metadata: Metadata) -> Metadata:
        if self.governance.masking is not None:
            return generalised(metadata, self.governance.masking, salt=self.salt)
        if (area := self.areas.met_by(metadata.geometry)) is None:
            return metadata
        masked = generalised(metadata, area.masking, salt=self.salt)
        # The contract does not declare this masking, so the Item states it.
        decision = MaskingDecision.declared(area.masking, dataset=self.dataset).as_json()
        properties = {MASKING: str(area.masking), MASKING_DECISION: decision}
        return replace(masked, stac_properties={**masked.stac_properties, **properties})


def hard_fails(unit: Envelope) -> bool:
    """Return whether a rule removed the unit from the chain."""
    return any(issue.code == GovernanceIssue.HARD_FAIL for issue in unit.gate_issues)


def embargo_end(embargo: Embargo, unit: Envelope) -> datetime:
    """Return the end of a unit's embargo; days count from the latest time in key and header."""
    if embargo.until is not None:
        return embargo.until
    observed: datetime = max([unit.time_range_end, *(_header_ends(unit.metadata) if unit.metadata else ())])
    try:
        return observed + timedelta(days=embargo.days_after_observation or 0)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def _header_ends(metadata: Metadata) -> Iterator[datetime]:
    for name in ("datetime", "end_datetime"):
        # metadata_extract writes both as RFC 3339, but an injected fault may have replaced a value.
        with suppress(OverflowError, TypeError, ValueError):
            yield datetime.fromisoformat(metadata.stac_properties.get(name, "")).astimezone(UTC)


def _access(rules: Rules, _: Envelope) -> Objection | None:
    if rules.governance.access != "closed":
        return None
    return Objection(RuleId.ACCESS, "access is closed", "open or restricted")


def _consent(rules: Rules, _: Envelope) -> Objection | None:
    consent = rules.governance.consent
    if consent is None:
        if not rules.governance.indigenous_data_flag:
            return None
        return Objection(RuleId.CONSENT, "no consent is on record", "a consent, for data of Indigenous peoples")
    if consent.valid_until is None or rules.at < consent.valid_until:
        return None
    return Objection(
        RuleId.CONSENT,
        f"{consent.reference} was valid until {rfc3339(consent.valid_until)}",
        f"a consent that is valid at {rfc3339(rules.at)}",
    )


def _embargo(rules: Rules, unit: Envelope) -> Objection | None:
    embargo = rules.governance.embargo
    if embargo is None or (end := embargo_end(embargo, unit)) <= rules.at:
        return None
    return Objection(
        RuleId.EMBARGO, f"embargoed until {rfc3339(end)}", f"an embargo that is over at {rfc3339(rules.at)}"
    )


def _sensitivity(rules: Rules, unit: Envelope) -> Objection | None:
    masking = rules.governance.masking
    if masking is None:
        if rules.governance.sensitivity != "sensitive":
            return None
        return Objection(RuleId.SENSITIVITY, "no masking is declared", "a masking, for sensitive locations")
    if unit.metadata is None or unit.metadata.bbox is None:
        return Objection(RuleId.SENSITIVITY, "no location that could be generalised", "a footprint")
    return None


_RULES: tuple[Callable[[Rules, Envelope], Objection | None], ...] = (_access, _consent, _embargo, _sensitivity)
