"""Notices: what Items and Collections tell of the governance of their dataset.

Only what is not as usual is told, so that an open dataset's documents say nothing of it. Does not belong here: the
pseudonym that a governed dataset goes by (`contracts/model.py`), or deciding what may be catalogued (`governance/`).
"""

from __future__ import annotations

from kfm_dagster.contracts.stewardship import Embargo, Governance


def item_notice(governance: Governance) -> dict[str, str]:
    """Return the properties that an Item has by its dataset's governance; none for an open dataset."""
    found: dict[str, str] = {}
    if governance.sensitivity != "none":
        found["kfm:sensitivity"] = governance.sensitivity
    if governance.access != "open":
        found["kfm:access"] = governance.access
    if governance.masking is not None:
        found["kfm:masking"] = str(governance.masking)
    return found


def collection_notice(governance: Governance) -> dict[str, str]:
    """Return the members that a Collection has by its dataset's governance; an embargo says why Items are missing."""
    found = {"kfm:care_label": governance.care_label, **item_notice(governance)}
    if governance.embargo is not None:
        found["kfm:embargo"] = _told(governance.embargo)
    return found


def _told(embargo: Embargo) -> str:
    if embargo.until is not None:
        return f"until {embargo.until.isoformat()}"
    return f"{embargo.days_after_observation} days after observation"
