"""Feed watch: when the deployment looks whether something is missing, and what it notes down (BEY-05).

A run that settles notes its day, which costs no question: its gate G6 has counted the day already. Every hour somebody
looks at the days whose hours have settled since, because what is missing starts no run. And while a sensor or a worker
ticks, silences and drops are looked for by the newest announcements. Belongs here: when, and what is asked of the
contracts. Does not belong here: the arithmetic (`contracts/cadence.py`), the rows (`ledger/gaps.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from kfm_dagster.contracts.cadence import HOUR, LEAST_CADENCE, pace_of, product_hours, products_of, settled_until
from kfm_dagster.contracts.envelope import Envelope
from kfm_dagster.contracts.model import DatasetContract
from kfm_dagster.contracts.quality import Coverage
from kfm_dagster.ingest.kill_switch_policy import KillSwitchPolicy
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.ledger.arrivals import count_day, counted_days
from kfm_dagster.ledger.gaps import FeedWindow, FollowedProduct
from kfm_dagster.ledger.rows import key_groups
from kfm_dagster.settings import FeedKind
from kfm_dagster.stages.gates.facts import partition_facts
from kfm_dagster.stages.gates.subject import PartitionFacts
from kfm_dagster.storage.database import Transaction

DAYS_BACK = 8
"""Days in which an hour that nobody has looked at yet is looked at, and an open hole is looked at again."""
NO_FEED = timedelta(minutes=5)
"""How long nobody looks where no product is followed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedReport:
    """What an hourly look has found: gaps that are new or other than before, gaps closed, and days looked at."""

    changed: int = 0
    closed: int = 0
    days: int = 0


class FeedWatch:
    """The feeds of a deployment that are followed. Nothing of a feed that is a sample can be missing."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.gaps, self.clock = pipeline.gaps, pipeline.clock
        self._sampled = pipeline.settings.feed is FeedKind.SAMPLE

    def follow(self, contract: DatasetContract, units: Iterable[Envelope], tx: Transaction) -> None:
        """Note since when the products of announced units are followed.

        Since the first one began; but what is announced late, from a dead-letter queue perhaps, says nothing of the
        time since: no hour is expected that had settled before anything came.
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
        """Note what a day lacks, and what it lacks no more; return how many gaps changed and how many closed."""
        if contract.coverage is None:
            return 0, 0
        now = self.clock()
        hours = product_hours(contract.coverage, facts.day, facts.counts, at=now, followed=facts.followed)
        return self.gaps.record(contract.id, hours, at=now, run_id=run_id)

    def look(self) -> FeedReport:
        """Look at the days of followed datasets whose hours have settled since the last look, and at those with holes.

        Counts the arrivals of days that are over, too. Nothing is asked of datasets that nobody follows, or that are
        switched off, nor where the feed is a sample.
        """
        changed = closed = looked = 0
        for contract, coverage, feeds in self._followed():
            until = settled_until(coverage, self.clock())
            days = self._days_to_look_at(contract, feeds, until)
            for day in days:
                with self.gaps.database.snapshot() as view:
                    facts = partition_facts(contract, day.isoformat(), tx=view)
                if facts is not None:
                    new, over = self.record_day(contract, facts)
                    changed, closed = changed + new, closed + over
            self.gaps.looked(contract.id, until=until)
            self._count_arrivals(contract, feeds, until)
            looked += len(days)
        return FeedReport(changed=changed, closed=closed, days=looked)

    def watch(self, due: datetime | None = None) -> datetime | None:
        """Look for silences and drops once `due` is over (None: at once); return when the next one can come about.

        A deployment that follows nothing asks for its feeds every five minutes, and for nothing else.
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
        self.gaps.look_at(windows, at=now)
        return now + pause

    def _followed(self) -> Iterator[tuple[DatasetContract, Coverage, Sequence[FollowedProduct]]]:
        """Yield the datasets that are followed and on, with their products."""
        if self._sampled or not (feeds := self.gaps.feeds()):
            return
        off = KillSwitchPolicy.now(self._pipeline.ledger.switches)
        by_dataset: dict[str, list[FollowedProduct]] = defaultdict(list)
        for feed in feeds:
            by_dataset[feed.dataset].append(feed)
        for contract in self._pipeline.registry:
            if contract.coverage is not None and contract.id in by_dataset and off.of(contract.id) is None:
                yield contract, contract.coverage, by_dataset[contract.id]

    def _days_to_look_at(
        self, contract: DatasetContract, feeds: Sequence[FollowedProduct], until: datetime
    ) -> list[date]:
        earliest = until - timedelta(days=DAYS_BACK)
        since = max(earliest, min(feed.looked_until or feed.followed_since for feed in feeds))
        new = _days(since.date(), (until - HOUR).date()) if since < until else []
        return sorted({*new, *self.gaps.open_days(contract.id, since=earliest)})

    def _count_arrivals(self, contract: DatasetContract, feeds: Sequence[FollowedProduct], until: datetime) -> None:
        """Count the past days that were not counted yet; a day without announcements is counted again."""
        last = until.date() - timedelta(days=1)
        first = max(last - timedelta(days=DAYS_BACK), min(feed.followed_since for feed in feeds).date())
        with self.gaps.database.snapshot() as view:
            counted = counted_days(contract.id, since=first, tx=view)
        for day in _days(first, last):
            if day not in counted:
                with self.gaps.database.transaction() as tx:
                    count_day(contract, day, tx=tx)


def _days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]
