"""The stores of one name on one day, before and after a batch of changes.

Belongs here: which steps stay, which leave, and into which store a new one fits. Does not belong here: reading objects
(`index.py`), documents (`references.py`) and their places (`day.py`).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields

from kfm_dagster.catalog.changes import FollowError, ItemChange
from kfm_dagster.followers.virtual.day import DayOfStores, Listed
from kfm_dagster.followers.virtual.index import Indexed
from kfm_dagster.followers.virtual.references import Frame, StoreStep, VirtualCube
from kfm_dagster.plural import counted

_LOG = logging.getLogger(__name__)

Read = Callable[[Sequence[ItemChange]], Iterable[Indexed | FollowError]]
"""Reads the chunk indexes of Items, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualReport:
    """What following took. `requests` and `bytes_read` are those of chunk indexes, and of nothing else."""

    added: int = 0
    removed: int = 0
    left_out: int = 0
    """Items whose object no store can refer to: each is logged with its reason."""
    refused: int = 0
    """Fields of objects that are in a store without them: they are logged, too."""
    requests: int = 0
    bytes_read: int = 0

    def __add__(self, other: VirtualReport) -> VirtualReport:
        sums = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return VirtualReport(**sums)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """What is to change: Items that stand belong into the stores of this name, those that are gone into none."""

    name: str
    listed: Sequence[Listed]
    items: Sequence[ItemChange]
    gone: AbstractSet[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """The stores of a name as they are now; `failures` are Items that could not be read this time."""

    listed: Sequence[Listed]
    report: VirtualReport
    failures: Sequence[FollowError]


def changed(here: DayOfStores, change: Replacement, read: Read) -> Changed:
    """Write the documents of a name's stores as they are after a change. Raises FollowError.

    An Item whose content a store has already is not read again. One that has another content leaves first: whatever
    becomes of its new object, no Item stands for the old one.
    """
    stores = [(one, here.read(one)) for one in change.listed if change.items or _names_any(here, one, change.gone)]
    untouched = [one for one in change.listed if all(one is not read_one for read_one, _ in stores)]
    known = {step.item_id: step.content_sha256 for _, store in stores for step in store.steps}
    new = [item for item in change.items if known.get(item.item_id) != item.content_sha256]
    frames, fitting, report, failures = _sorted_out(read(new))
    leaving = {*change.gone, *(item.item_id for item in new)}
    listed = list(untouched)
    for one, store in stores:
        signature = store.frame.signature
        after = store.without(leaving).with_steps(fitting.pop(signature, ()), frames.get(signature, store.frame))
        if after.steps == store.steps:
            listed.append(one)
        elif after.steps:
            listed.append(here.put(change.name, after))
    for signature, steps in fitting.items():
        frame = frames[signature]
        listed.append(here.put(change.name, VirtualCube(frame=frame, steps=()).with_steps(steps, frame)))
    return Changed(
        listed=listed,
        report=report + VirtualReport(removed=len(leaving & known.keys())),
        failures=failures,
    )


def _names_any(here: DayOfStores, one: Listed, item_ids: Iterable[str]) -> bool:
    """Tell whether a document names one of these Items, without making a store of it."""
    content = here.content(one)
    return any(f'"{item_id}"'.encode() in content for item_id in item_ids)


def _sorted_out(
    found: Iterable[Indexed | FollowError],
) -> tuple[dict[str, Frame], dict[str, list[StoreStep]], VirtualReport, list[FollowError]]:
    """Return steps by the signature of their frame, what they took, and what could not be read."""
    frames: dict[str, Frame] = {}
    fitting: dict[str, list[StoreStep]] = defaultdict(list)
    report = VirtualReport()
    failures: list[FollowError] = []
    for one in found:
        if isinstance(one, FollowError):
            failures.append(one)
            continue
        report += VirtualReport(
            added=one.step is not None,
            left_out=one.step is None,
            refused=len(one.refused),
            requests=one.requests,
            bytes_read=one.bytes_read,
        )
        if one.step is None or one.frame is None:
            _LOG.warning("no virtual store has %s", one.why)
            continue
        if one.refused:
            _LOG.warning(
                "virtual store without %s of %s: %s",
                counted(len(one.refused), "field"),
                one.step.uri,
                "; ".join(one.refused[:3]),
            )
        signature = one.frame.signature
        frames[signature] = frames[signature].joined(one.frame) if signature in frames else one.frame
        fitting[signature].append(one.step)
    return frames, fitting, report, failures
