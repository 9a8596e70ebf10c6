"""Entries of the governance log as rows, for the commands that print them. Nothing else."""

from __future__ import annotations

from typing import Any

from kfm_dagster.contracts.identity import rfc3339
from kfm_dagster.governance.log import GovernanceAction, GovernanceEntry


def entry_row(entry: GovernanceEntry) -> dict[str, Any]:
    """Return the published form of an entry."""
    return {
        "entry_id": entry.entry_id,
        "at": rfc3339(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "dataset": entry.dataset,
        "wal_id": entry.wal_id,
        "record_version": entry.record_version,
        "from_status": entry.from_status,
        "to_status": entry.to_status,
        "change": _change(entry),
        "change_ref": entry.change_ref,
        "reason": entry.reason,
        "details": dict(entry.details),
        "proposal_id": entry.proposal_id,
        "approved_by": entry.approved_by,
    }


def _change(entry: GovernanceEntry) -> str | None:
    if entry.record_version is not None:
        return f"{entry.from_status} > {entry.to_status} (version {entry.record_version})"
    if entry.action == GovernanceAction.KILL_SWITCH_ON:
        return f"until {entry.details.get('expires_at') or 'it is taken back'}"
    return None
