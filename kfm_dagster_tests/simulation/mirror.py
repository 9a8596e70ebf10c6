"""The mirror: a follower of the catalog that keeps what it was given, and now and then does not take it.

Does not belong here: whether it shows what stands (`outside.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster_tests.simulation.faults import Fault
from kfm_dagster_tests.simulation.scheduling import Scheduler


class Mirror:
    """A place whose rows say by which change they stand, so that one who stalled writes nothing old over them."""

    name = "mirror"
    after: Sequence[str] = ()

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._rows: dict[tuple[str, str], ItemChange] = {}

    @property
    def items(self) -> dict[tuple[str, str], Any]:
        """What a reader of the mirror finds, by collection and Item id."""
        return {key: row.item for key, row in self._rows.items() if row.kind is not ChangeKind.WITHDRAWN}

    def follow(self, contract: DatasetContract, changes: Sequence[ItemChange]) -> None:
        """Take each change at a time of its own, unless the place refuses."""
        for change in changes:
            self._scheduler.pause("mirror.take")
            if self._scheduler.happens(Fault.FOLLOWER_FAILS):
                self._scheduler.happened["follower failed"] += 1
                raise FollowError(observed="simulated")
            key = contract.stac.collection, change.item_id
            if key not in self._rows or self._rows[key].change_id < change.change_id:
                self._rows[key] = change

    def forget(self, contract: DatasetContract) -> None:
        """Lose what is of a collection."""
        self._rows = {key: row for key, row in self._rows.items() if key[0] != contract.stac.collection}
