"""What a contract says of who may see a dataset: license, sensitivity, consent, embargo, access, masking (CARE).

Belongs here: the declarations, and which of them need each other. Does not belong here: what follows for a unit
(`governance/rules.py`), nor the rest of the contract (`model.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, PositiveInt, model_validator

_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


class Stewardship(BaseModel, extra="forbid", frozen=True):
    """Base of the parts below, as strict as the rest of a contract."""


class Consent(Stewardship):
    """Who has authority over the data, and under which agreement it is published (CARE, "authority to control")."""

    authority: _Name = Field(description="The community or body that decides.")
    reference: _Name = Field(description="The agreement, so that it can be looked up.")
    valid_until: AwareDatetime | None = Field(None, description="From then on nothing more is published.")


class Embargo(Stewardship):
    """Until when units stay out of the catalog: a moment, or a time after each one's observation."""

    until: AwareDatetime | None = None
    days_after_observation: PositiveInt | None = Field(None, le=36_525)

    @model_validator(mode="after")
    def _one_of_both(self) -> Embargo:
        if (self.until is None) == (self.days_after_observation is None):
            raise ValueError("an embargo has either until or days_after_observation")
        return self


class Masking(Stewardship):
    """How locations are generalised before anything is stored: to the H3 cell of a footprint's centre, and who asked.

    Only the times and the named `properties` of a header are kept: a list of what to leave out would miss the next
    field that tells where it was.
    """

    method: Literal["h3"]
    resolution: int = Field(ge=0, le=8, description="H3; edges of 1108 km (0) to 0.5 km (8).")
    properties: list[str] = Field([], description="STAC properties that do not tell where it was.")
    requested_by: _Name = Field(description="The steward who decided it.")
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S")
    change_ref: _Name = Field(description="The change under which it was decided.")


class Governance(Stewardship):
    """License and sensitivity, and what has to hold before a unit is shown."""

    license: str
    attribution: str | None = None
    care_label: str = "Public · Low-Risk"
    sensitivity: Literal["none", "restricted", "sensitive"] = Field(
        "none",
        description="restricted: the dataset's name stays out of public outputs, its content out of evidence. "
        "sensitive: that, and where it was observed is shown generalised or not at all.",
    )
    indigenous_data_flag: bool = False
    access: Literal["open", "restricted", "closed"] = Field(
        "open",
        description="Of the objects: anyone, those who are granted it, or nobody (then nothing is catalogued). EU "
        "access-right vocabulary: PUBLIC, RESTRICTED, NON_PUBLIC.",
    )
    consent: Consent | None = None
    embargo: Embargo | None = None
    masking: Masking | None = None

    @model_validator(mode="after")
    def _declared_as_it_needs(self) -> Governance:
        if self.sensitivity != "none" and self.access == "open":
            raise ValueError(f"sensitivity {self.sensitivity} needs access restricted or closed, and it is open")
        if self.indigenous_data_flag and self.consent is None:
            raise ValueError("indigenous_data_flag needs consent: the authority, and the reference of the agreement")
        if self.sensitivity == "sensitive" and self.masking is None and self.access != "closed":
            raise ValueError("sensitivity sensitive needs masking, or access closed")
        if self.masking is not None and self.sensitivity == "none":
            raise ValueError("masking needs a sensitivity: nothing says yet that locations are to be protected")
        return self
