"""Stewardship: license, sensitivity, consent, embargo, access and masking (CARE).

Belongs here: the declarations, and the rules between them. Does not belong here: the effect on a unit
(`governance/rules.py`), nor the rest of the contract (`model.py`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, PositiveInt, model_validator

from kfm_dagster.configs import Strict

FINEST_RESOLUTION = 8
"""Finest H3 resolution: cells with edges of about half a kilometre. A finer cell would identify a farm."""
NARROWEST_RING_M = 20.0
WIDEST_RADIUS_M = 1_000_000.0
"""Bounds in metres: maximum_m exceeds minimum_m at least by NARROWEST_RING_M, which hides the place, and is at most
WIDEST_RADIUS_M, which shows the region."""
_Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


class Consent(Strict):
    """Authority over the data, and the agreement to publish (CARE, "authority to control")."""

    authority: _Name = Field(description="The community or body that decides.")
    reference: _Name = Field(description="The agreement, so that it can be looked up.")
    valid_until: AwareDatetime | None = Field(None, description="From this time on, nothing more is published.")


class Embargo(Strict):
    """End of the time without catalog entries: fixed, or counted from a unit's observation."""

    until: AwareDatetime | None = None
    days_after_observation: PositiveInt | None = Field(None, le=36_525)

    @model_validator(mode="after")
    def _one_of_both(self) -> Embargo:
        if (self.until is None) == (self.days_after_observation is None):
            raise ValueError("an embargo with both until and days_after_observation, or with neither")
        return self


class Masking(Strict):
    """Method that generalises locations before anything is stored, as a steward requested.

    h3 generalises to the cell that contains the footprint's centre. donut generalises to a cell around a secretly
    displaced centre, minimum_m to maximum_m away; the same place always has the same displacement. Only the times and
    the named `properties` of a header are kept, because a list of excluded properties would miss a new field that
    reveals the location.
    """

    method: Literal["h3", "donut"]
    resolution: int | None = Field(
        None, ge=0, le=FINEST_RESOLUTION, description="For h3: resolution, with edges of 1108 km (0) to 0.5 km (8)."
    )
    minimum_m: float | None = Field(None, gt=0, description="For donut: minimum displacement.")
    maximum_m: float | None = Field(None, le=WIDEST_RADIUS_M, description="For donut: maximum displacement.")
    properties: list[str] = Field([], description="STAC properties that do not reveal the location.")
    requested_by: _Name = Field(description="The steward who requested the masking.")
    reason: str = Field(min_length=1, max_length=1000, pattern=r"\S")
    change_ref: _Name = Field(description="The change that approved the masking.")

    @property
    def parameters(self) -> dict[str, float]:
        """The mask's public parameters, by name."""
        values = {"resolution": self.resolution, "minimum_m": self.minimum_m, "maximum_m": self.maximum_m}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        if self.method == "h3":
            return f"h3, resolution {self.resolution}"
        return f"donut, {self.minimum_m:g} to {self.maximum_m:g} m"

    @model_validator(mode="after")
    def _has_its_own_level(self) -> Masking:
        needed = {"h3": {"resolution"}, "donut": {"minimum_m", "maximum_m"}}[self.method]
        if self.parameters.keys() != needed:
            levels = " and ".join(self.parameters) or "no level"
            raise ValueError(f"method {self.method} with {levels} instead of {' and '.join(sorted(needed))}")
        if self.minimum_m and self.maximum_m and self.minimum_m + NARROWEST_RING_M > self.maximum_m:
            raise ValueError(f"maximum_m is less than minimum_m + {NARROWEST_RING_M:g}")
        return self


class Governance(Strict):
    """License, sensitivity, and the conditions for showing a unit."""

    license: str
    attribution: str | None = None
    care_label: str = "Public · Low-Risk"
    sensitivity: Literal["none", "restricted", "sensitive"] = Field(
        "none",
        description="restricted: public outputs hide the dataset's name, and evidence omits the objects' content. "
        "sensitive: in addition, locations are generalised or not shown.",
    )
    indigenous_data_flag: bool = False
    access: Literal["open", "restricted", "closed"] = Field(
        "open",
        description="Access to the objects: for everyone, by grant, or closed (nothing is catalogued). EU "
        "access-right vocabulary: PUBLIC, RESTRICTED, NON_PUBLIC.",
    )
    consent: Consent | None = None
    embargo: Embargo | None = None
    masking: Masking | None = None

    @model_validator(mode="after")
    def _sensitivity_has_its_declarations(self) -> Governance:
        if self.sensitivity != "none" and self.access == "open":
            raise ValueError(f"sensitivity {self.sensitivity} needs access restricted or closed, but access is open")
        if self.indigenous_data_flag and self.consent is None:
            raise ValueError("indigenous_data_flag needs consent: the authority, and the reference of the agreement")
        if self.sensitivity == "sensitive" and self.masking is None and self.access != "closed":
            raise ValueError("sensitivity sensitive needs masking, or access closed")
        if self.masking is not None and self.sensitivity == "none":
            raise ValueError("masking needs a sensitivity: restricted or sensitive")
        return self
