"""The gap table: missing objects of followed products, and the repairing runs (BEY-05).

All its rows are derived from the ledger. Belongs here: the rows, and which feeds are followed. Does not belong here:
which hours lack objects (`contracts/cadence.py`), and when they are checked (`ingest/feed_watch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from enum import StrEnum, unique

from kfm_dagster.contracts.cadence import ProductHour, floor_hour
from kfm_dagster.storage.database import Database, Transaction


@unique
class GapKind(StrEnum):
    """What is amiss with a product."""

    SILENCE = "silence"
    """Nothing was announced for two cadences; open for as long as that holds."""
    DROP = "drop"
    """Fewer than half of what should have been announced over four cadences was; open for as long as that holds."""
    HOLE = "hole"
    """An hour that has settled has fewer objects than it should."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """One gap. `hour` is the incomplete hour; for silences and drops the hour of detection."""

    dataset: str
    product: str
    hour: datetime
    kind: GapKind
    expected: int
    seen: int
    first_seen: datetime
    closed_at: datetime | None
    repaired_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowedProduct:
    """A followed product: expected in every hour after the hour of `followed_since`."""

    dataset: str
    product: str
    followed_since: datetime
    looked_until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedWindow:
    """One product of a dataset, and the times from which its announcements are counted."""

    dataset: str
    product: str
    groups: Mapping[str, str]
    silent_since: datetime
    since: datetime
    expected: int
    least: float


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The gap table of one database."""

    database: Database

    def follow(self, dataset: str, since: Mapping[str, datetime], *, tx: Transaction) -> None:
        """Expect products from the hour after these times on; followed products keep their time."""
        if since:
            feeds = [{"product": name, "since": at} for name, at in sorted(since.items())]
            tx.run("gaps.follow", dataset=dataset, feeds=feeds)

    def listed(self, dataset: str, day: str, *, at: datetime, tx: Transaction) -> None:
        """Expect every object of a day whose bucket was listed to its end."""
        tx.run("gaps.listed", dataset=dataset, day=day, at=at)

    def feeds(self) -> list[FollowedProduct]:
        """Return the followed products, by dataset and product."""
        with self.database.snapshot() as view:
            return view.rows(FollowedProduct, "gaps.feeds")

    def listed_days(self, first: date, last: date) -> set[tuple[str, date]]:
        """Return (dataset, day) of the listed days within a window."""
        with self.database.snapshot() as view:
            rows = view.run("gaps.listed_days", first=first.isoformat(), last=last.isoformat()).all()
        return {(row.dataset, date.fromisoformat(row.day)) for row in rows}

    def record(
        self, dataset: str, hours: Sequence[ProductHour], *, at: datetime, run_id: str | None = None
    ) -> tuple[int, int]:
        """Open a gap for each incomplete hour, and close the gaps of hours that are complete now.

        run_id: the run that brought the objects. Returns the number of new or changed gaps, and of closed ones.
        """
        if not hours:
            return 0, 0
        with self.database.transaction() as tx:
            parts = {"dataset": dataset, "hours": list(map(asdict, hours)), "at": at}
            changed = tx.run("gaps.record", parts).all()
            closed = tx.run("gaps.close", parts, run_id=run_id).all()
        return len(changed), len(closed)

    def look_at(self, windows: Iterable[FeedWindow], *, at: datetime) -> tuple[int, int]:
        """Open and close silences and drops by announcements in these windows, which end at `at`.

        Returns the numbers of opened and of closed gaps.
        """
        watched = {(window.dataset, window.product): window for window in windows}
        if not watched:
            return 0, 0
        with self.database.snapshot() as view:
            rows = view.run("gaps.recent", feeds=list(map(asdict, watched.values()))).all()
        amiss: list[dict[str, object]] = []
        over: list[dict[str, object]] = []
        for row in rows:
            window = watched[row.dataset, row.product]
            silent, seen = not row.newest, int(row.seen)
            # A silence implies the drop.
            dropped = not silent and seen < window.least
            for kind, holds, known in (
                (GapKind.SILENCE, silent, 0),
                (GapKind.DROP, dropped, seen),
            ):
                gap = {"dataset": window.dataset, "product": window.product, "kind": kind.value}
                (amiss if holds else over).append({**gap, "expected": window.expected, "seen": known})
        return self._note(amiss, over, at)

    def looked(self, dataset: str, *, until: datetime) -> None:
        """Record the hour up to which the days of a dataset have been checked."""
        with self.database.transaction() as tx:
            tx.run("gaps.looked", dataset=dataset, until=until)

    def open_days(self, dataset: str, *, since: datetime) -> list[date]:
        """Return the days with open holes, earliest first."""
        with self.database.snapshot() as view:
            rows = view.run("gaps.open_days", dataset=dataset, since=since).scalars()
            return [date.fromisoformat(day) for day in rows]

    def list(
        self,
        *,
        since: datetime,
        dataset: str | None = None,
        closed: bool = False,
        limit: int = 1_000_000,
    ) -> list[Gap]:
        """Return the gaps of hours from `since` on, and the open silences and drops of any age."""
        where = {"since": since, "dataset": dataset, "closed": int(closed), "limit": limit}
        with self.database.snapshot() as tx:
            return tx.rows(Gap, "gaps.list", where)

    def _note(
        self, amiss: Sequence[Mapping[str, object]], over: Sequence[Mapping[str, object]], at: datetime
    ) -> tuple[int, int]:
        with self.database.transaction() as tx:
            # Two processes may check at once.
            tx.lock("nodd_gaps")
            closed = tx.run("gaps.close_now", gaps=over, at=at).all()
            hour = floor_hour(at)
            opened = tx.run("gaps.open_now", gaps=amiss, hour=hour, at=at).all()
        return len(opened), len(closed)


def followed_in(tx: Transaction, dataset: str, day: str) -> Mapping[str, datetime] | None:
    """Return each product's `followed_since`; None for a listed day, which must be complete."""
    if any(row.dataset == dataset for row in tx.run("gaps.listed_days", first=day, last=day)):
        return None
    return {row.product: row.followed_since for row in tx.run("gaps.feeds") if row.dataset == dataset}
