"""Feed watch: when a deployment checks for missing data and records the result (BEY-05).

There are three checks. When a run settles, it records its day without a query, because its gate G6 has counted the
day. Every hour, a schedule checks the days with newly settled hours, because missing data start no run. An hour is
settled `settles_after_seconds` (of the contract) after its end: then its objects should exist. A tick of a sensor or
worker checks the newest announcements for silences and drops (`GapKind`) if the last check is old enough. Belongs here:
when to check, and by which contracts. Does not belong here: the arithmetic (`contracts/cadence.py`), the rows
(`ledger/gaps.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from kfm_dagster.contracts.cadence import (
    HOUR,
    LEAST_CADENCE,
    days_between,
    pace_of,
    product_hours,
    products_of,
    settled_until,
)
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import Coverage
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.gaps import FeedWindow, FollowedProduct, count_day, counted_days
from kfm_dagster.ledger.rows import key_groups
from kfm_dagster.settings import FeedKind
from kfm_dagster.stages.gates.subject import PartitionFacts, partition_facts
from kfm_dagster.storage.database import Transaction

DAYS_BACK = 8
"""Number of past days whose unchecked hours are checked, and whose open holes (`GapKind`) are checked again."""
NO_FEED = timedelta(minutes=5)
"""Longest pause between checks for silences and drops, also if the deployment follows no product."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedReport:
    """The result of an hourly check: new or changed gaps, closed gaps, and checked days."""

    changed: int = 0
    closed: int = 0
    days: int = 0


class FeedWatch:
    """The followed feeds of a deployment. A sample feed (KFM_FEED) is not checked."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.gaps, self.clock = pipeline.gaps, pipeline.clock
        self._sampled = pipeline.settings.feed is FeedKind.SAMPLE

    def follow(self, contract: DatasetContract, units: Iterable[Envelope], tx: Transaction) -> None:
        """Record since when the products of announced units are followed.

        A product is followed since the start of its first unit. If that unit was announced late, for example from a
        dead-letter queue, hours that are settled by now are not expected.
        """
        coverage = contract.coverage
        if coverage is None:
            return
        names = sorted({name for product in coverage.products for name in product.groups})
        earliest = settled_until(coverage, self.clock()) - HOUR
        first: dict[str, datetime] = {}
        for unit in units:
            if unit.raw.sqs_message_id is None:
                continue
            for product in products_of(coverage, key_groups(contract, unit.key, names), unit.time_range_start):
                since = max(unit.time_range_start, earliest)
                first[product.name] = min(since, first.get(product.name, since))
        self.gaps.follow(contract.id, first, tx=tx)

    def record_day(
        self, contract: DatasetContract, facts: PartitionFacts, *, run_id: str | None = None
    ) -> tuple[int, int]:
        """Record a day's open and closed gaps; return the numbers of changed and of closed gaps."""
        if contract.coverage is None:
            return 0, 0
        now = self.clock()
        hours = product_hours(contract.coverage, facts.day, facts.counts, at=now, followed=facts.followed)
        return self.gaps.record(contract.id, hours, at=now, run_id=run_id)

    def look(self) -> FeedReport:
        """Check days that have open holes, or hours that have settled since the last check.

        Also counts the arrivals of past days. Skips sample feeds, and datasets that are unfollowed or switched off.
        """
        changed = closed = checked = 0
        for contract, coverage, feeds in self._followed():
            until = settled_until(coverage, self.clock())
            days = self._days_to_check(contract, feeds, until)
            for day in days:
                with self.gaps.database.snapshot() as view:
                    facts = partition_facts(contract, day.isoformat(), tx=view)
                if facts is not None:
                    opened, ended = self.record_day(contract, facts)
                    changed, closed = changed + opened, closed + ended
            self.gaps.looked(contract.id, until=until)
            self._count_arrivals(contract, feeds, until)
            checked += len(days)
        return FeedReport(changed=changed, closed=closed, days=checked)

    def watch(self, due: datetime | None = None) -> datetime | None:
        """Check for silences and drops from `due` on (None: now); return when to check next.

        The pause is the shortest cadence of a followed product, at least LEAST_CADENCE and at most NO_FEED.
        """
        now = self.clock()
        if self._sampled or (due is not None and now < due):
            return due
        windows, pause = [], NO_FEED
        for contract, coverage, feeds in self._followed():
            followed = {feed.product for feed in feeds}
            for product in coverage.products:
                if product.name in followed and (product.until is None or now.date() < product.until):
                    pace = pace_of(product)
                    pause = min(pause, max(product.cadence, LEAST_CADENCE))
                    windows.append(
                        FeedWindow(
                            dataset=contract.id,
                            product=product.name,
                            groups=product.groups,
                            silent_since=now - pace.silent_after,
                            since=now - pace.over,
                            expected=pace.expected,
                            least=pace.least,
                        )
                    )
        self.gaps.close_unwatched(windows, at=now)
        self.gaps.look_at(windows, at=now)
        return now + pause

    def _followed(self) -> Iterator[tuple[DatasetContract, Coverage, Sequence[FollowedProduct]]]:
        """Yield the datasets that are followed and not switched off, with their products."""
        if self._sampled or not (feeds := self.gaps.feeds()):
            return
        off = KillSwitchPolicy.now(self._pipeline.ledger.switches)
        by_dataset: dict[str, list[FollowedProduct]] = defaultdict(list)
        for feed in feeds:
            by_dataset[feed.dataset].append(feed)
        for contract in self._pipeline.registry:
            if contract.coverage is not None and contract.id in by_dataset and off.of(contract.id) is None:
                yield contract, contract.coverage, by_dataset[contract.id]

    def _days_to_check(
        self, contract: DatasetContract, feeds: Sequence[FollowedProduct], until: datetime
    ) -> list[date]:
        earliest = until - timedelta(days=DAYS_BACK)
        since = max(earliest, min(feed.looked_until or feed.followed_since for feed in feeds))
        new = days_between(since.date(), (until - HOUR).date()) if since < until else []
        return sorted({*new, *self.gaps.open_days(contract.id, since=earliest)})

    def _count_arrivals(self, contract: DatasetContract, feeds: Sequence[FollowedProduct], until: datetime) -> None:
        """Count the arrivals of uncounted past days; a day without arrivals is counted again."""
        last = until.date() - timedelta(days=1)
        first = max(last - timedelta(days=DAYS_BACK), min(feed.followed_since for feed in feeds).date())
        with self.gaps.database.snapshot() as view:
            counted = counted_days(contract.id, since=first, tx=view)
        for day in days_between(first, last):
            if day not in counted:
                with self.gaps.database.transaction() as tx:
                    count_day(contract, day, tx=tx)
