"""Outcomes: which candidate for an Item is newest, and the result of each registration.

Pure. Does not belong here: current Items (`index.py`), registering (`store.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from kfm_dagster.catalog.index import CatalogEntry, Write
from kfm_dagster.catalog.item import Candidate
from kfm_dagster.contracts.envelope import StacResult, StacStatus, WalId
from kfm_dagster.contracts.issues import FenceIssue, Issue, Severity, StacIssue
from kfm_dagster.storage.publisher import PublishError


def select_latest(candidates: Iterable[Candidate]) -> dict[str, Candidate]:
    """Return the newest candidate of each Item id, and of equally new candidates the last one."""
    latest: dict[str, Candidate] = {}
    for candidate in candidates:
        rival = latest.get(candidate.item_id)
        if rival is None or not is_older(candidate, rival):
            latest[candidate.item_id] = candidate
    return latest


def is_older(candidate: Candidate, other: Candidate | CatalogEntry) -> bool:
    """Return whether the candidate was issued before the other; False if undecidable."""
    if candidate.precedence != other.precedence:
        return candidate.precedence < other.precedence
    if candidate.object_uri != other.object_uri:
        return False
    if candidate.sequencer and other.sequencer:
        # S3 event notification message structure: pad the shorter sequencer with zeros on the right, compare as text.
        width = max(len(candidate.sequencer), len(other.sequencer))
        return candidate.sequencer.ljust(width, "0") < other.sequencer.ljust(width, "0")
    # Listed units have no sequencers; admission also orders their versions by event time (ADR 008).
    return other.event_time is not None and candidate.event_time < other.event_time


def attempts_of(candidates: Iterable[Candidate]) -> dict[WalId, int]:
    """Return the input of a fence: the attempt of each unit's claim, by unit."""
    return {candidate.wal_id: candidate.attempt for candidate in candidates}


def is_restoration(write: Write) -> bool:
    """Return whether a write only restores a lost file: the index has the same content already."""
    return write.base is not None and write.base.content_sha256 == write.candidate.content_sha256


def written(write: Write) -> StacResult:
    """Return the result of a write that was applied."""
    if write.base is None:
        return _result(write, StacStatus.CREATED)
    if is_restoration(write):
        return unchanged(write, write.base)
    return _result(write, StacStatus.UPDATED, replaces=write.base.wal_id)


def unchanged(write: Write, current: CatalogEntry) -> StacResult:
    """Return the result of a unit whose Item is current already.

    The result names the replaced unit again, because an earlier result can have been lost with its run.
    """
    return _result(write, StacStatus.NO_OP, replaces=current.replaces)


def superseded(write: Write, current: CatalogEntry) -> StacResult:
    """Return the result of a unit that is registered after a newer unit."""
    return dataclasses.replace(
        _result(write, StacStatus.NO_OP),
        content_sha256=current.content_sha256,
        superseded=True,
        superseded_by=current.wal_id,
    )


def duplicate_of(candidate: Candidate, winner: Candidate, result: StacResult) -> StacResult:
    """Return the result of a candidate that lost to `winner`, another candidate for the Item."""
    if {issue.code for issue in result.issues} & set(FenceIssue):
        # The fence refused the winner's unit, not this candidate's unit.
        message = f"{winner.wal_id}, which was chosen to write the Item, lost its claim"
        return failed(candidate, StacIssue.CATALOG_CONFLICT, message)
    if result.write_status is StacStatus.FAILED:
        return result
    no_op = dataclasses.replace(result, write_status=StacStatus.NO_OP)
    if candidate.wal_id == winner.wal_id:
        return no_op
    superseded_by = result.superseded_by or winner.wal_id
    return dataclasses.replace(no_op, superseded=True, superseded_by=superseded_by, replaces=None)


def lost_race(lost: Iterable[Write], current: Mapping[str, CatalogEntry]) -> dict[str, StacResult]:
    """Return the results of writes that lost a race; equal content counts as unchanged."""
    outcome: dict[str, StacResult] = {}
    for write in lost:
        candidate = write.candidate
        now = current.get(candidate.item_id)
        if now is not None and now.content_sha256 == candidate.content_sha256:
            outcome[candidate.item_id] = unchanged(write, now)
            continue
        text = "the Item to be replaced was undone meanwhile"
        if now is not None:
            text = f"another writer changed the Item: revision {now.revision}, sha256 {now.content_sha256[:12]}"
        outcome[candidate.item_id] = failed(candidate, StacIssue.CATALOG_CONFLICT, text)
    return outcome


def all_failed(writes: Iterable[Write], error: PublishError) -> dict[str, StacResult]:
    """Return the results of a batch that failed as a whole, by Item id."""
    return {write.candidate.item_id: failed(write.candidate, error.code, error.reason) for write in writes}


def failed(
    candidate: Candidate, code: StacIssue | FenceIssue, message: str = "the catalog was not touched for this unit"
) -> StacResult:
    """Return the result of a failed candidate; the default message is for the fence's refusal."""
    return StacResult(
        write_status=StacStatus.FAILED,
        item_id=candidate.item_id,
        collection_id=candidate.collection_id,
        issues=(Issue(code=code, severity=Severity.FAILED, message=message),),
    )


def _result(write: Write, status: StacStatus, *, replaces: WalId | None = None) -> StacResult:
    return StacResult(
        write_status=status,
        item_id=write.candidate.item_id,
        collection_id=write.candidate.collection_id,
        item_href=write.path,
        content_sha256=write.candidate.content_sha256,
        replaces=replaces,
    )
