"""Events of a subscription: each change is sent once, with one id; withdrawals pass every filter."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfm_dagster.catalog.changes import ChangeKind, FollowError, ItemChange
from kfm_dagster.contracts.loader import ContractRegistry
from kfm_dagster.followers.announcements.event import OutgoingEvent
from kfm_dagster.followers.announcements.sending import (
    MAX_FAILURES,
    MAX_REFUSALS,
    TAKEN,
    THREADS,
    TRIES,
    ReceiverAnswer,
)
from kfm_dagster.storage.database import Database
from kfm_dagster_tests.catalog.conftest import ON_A_GROWING_CATALOG
from kfm_dagster_tests.catalog.envelopes import goes
from kfm_dagster_tests.factories import with_section
from kfm_dagster_tests.followers.announcements.changes import (
    FAILED,
    REFUSED,
    WITHDRAWN,
    Inbox,
    Subscribed,
    item_of,
    subscribe,
)
from kfm_dagster_tests.followers.changes import T0, change
from kfm_dagster_tests.moments import DeathError

pytestmark = pytest.mark.clause("OPR-22")

CREATED, UPDATED = ChangeKind.CREATED, ChangeKind.UPDATED
_names = (f"subscription-{number}" for number in count())


Items = list[dict[str, Any]]
Subscribing = Callable[..., Subscribed]


@pytest.fixture
def subscribing(database: Database, contracts: ContractRegistry) -> Subscribing:
    """Return `subscribe` with the database and contracts of the test."""
    return partial(subscribe, database, contracts)


@pytest.fixture
def items(contracts: ContractRegistry) -> Items:
    return [item_of(contracts, goes(number)) for number in range(60)]


def ids(*items: dict[str, Any]) -> list[str]:
    return sorted(item["id"] for item in items)


def test_each_change_is_sent_once_with_the_event_type_the_receiver_expects(
    subscribing: Subscribing, items: Items
) -> None:
    subscribed = subscribing()
    first, second = items[:2]
    subscribed.follow(change(1, first), change(2, second))
    assert subscribed.inbox.news() == [(item_id, "created") for item_id in ids(first, second)]
    subscribed.follow(change(1, first), change(2, second))
    assert subscribed.inbox.news() == []
    subscribed.follow(change(3, first, kind=UPDATED))
    assert subscribed.inbox.news() == [(first["id"], "updated")]
    subscribed.follow(change(4, first, kind=WITHDRAWN))
    assert subscribed.inbox.news() == [(first["id"], "withdrawn")]
    subscribed.follow(change(4, first, kind=WITHDRAWN), change(5, items[2], kind=WITHDRAWN))
    assert subscribed.inbox.news() == [], "the first withdrawal was sent before, and the other Item was never announced"
    # An Item that was updated before its first event is announced as created.
    subscribed.follow(change(6, first, kind=UPDATED))
    assert subscribed.inbox.news() == [(first["id"], "created")]
    # A stalled process that follows an outdated change sends nothing.
    subscribed.follow(change(3, first, kind=UPDATED))
    assert subscribed.inbox.news() == []
    assert subscribed.status().sent == 5


def test_changes_of_an_announced_item_are_sent_even_if_the_filters_now_exclude_it(
    subscribing: Subscribing, items: Items
) -> None:
    name = next(_names)
    inbox = Inbox()
    before = subscribing(inbox=inbox, name=name)
    before.follow(change(1, items[0]), change(2, items[1]), change(3, items[2]))
    inbox.news()
    # The new filters exclude the Items by box, dataset and time.
    others = {"bbox": (100, 0, 101, 1), "datasets": ["hrrr"], "since": T0.replace(year=2026)}
    after = subscribing(inbox=inbox, name=name, **others)
    after.follow(
        change(4, items[0], kind=WITHDRAWN), change(5, items[1], kind=UPDATED), change(6, items[3]), change(7, items[4])
    )
    assert inbox.news() == sorted([(items[0]["id"], "withdrawn"), (items[1]["id"], "updated")])
    after.follow(change(8, items[0]), change(9, items[3], kind=WITHDRAWN))
    assert inbox.news() == []


SELECTED: list[tuple[dict[str, Any], bool]] = [
    ({"datasets": ["goes-abi"]}, True),
    ({"datasets": ["hrrr", "nexrad-l2"]}, False),
    ({"bbox": (-102.1, 36.9, -94.5, 40.1)}, True),
    ({"bbox": (10, 36.9, 20, 40.1)}, False),
    ({"filter": "platform = 'goes-19'"}, True),
    ({"filter": "platform = 'goes-18'"}, False),
    ({"since": T0.replace(second=1)}, True),
    ({"since": T0.replace(second=2)}, False),
    ({"kinds": [CREATED]}, True),
    ({"kinds": [UPDATED, WITHDRAWN]}, False),
]


@pytest.mark.one_database
def test_a_subscription_gets_the_items_that_match_its_filters(subscribing: Subscribing, items: Items) -> None:
    for more, selected in SELECTED:
        subscribed = subscribing(name=next(_names), **more)
        subscribed.follow(change(1, items[0]))
        assert subscribed.inbox.news() == ([(items[0]["id"], "created")] if selected else []), more


def test_an_event_of_an_excluded_type_still_determines_the_type_of_the_next_event(
    subscribing: Subscribing, items: Items
) -> None:
    subscribed = subscribing(kinds=[UPDATED, WITHDRAWN])
    subscribed.follow(change(1, items[0]), change(2, items[1]))
    subscribed.follow(change(3, items[0], kind=UPDATED))
    subscribed.follow(change(4, items[1], kind=WITHDRAWN))
    assert subscribed.inbox.news() == sorted([(items[0]["id"], "updated"), (items[1]["id"], "withdrawn")])
    subscribed.follow(change(5, items[1], kind=UPDATED))
    assert subscribed.inbox.news() == [], "an update after a withdrawal counts as a creation, which is excluded"


def test_only_the_failed_events_of_a_request_are_sent_again(subscribing: Subscribing, items: Items) -> None:
    failing = set(ids(*items[3:5]))
    subscribed = subscribing(inbox=Inbox(most=3, answers=lambda event: FAILED if event.item_id in failing else TAKEN))
    changes = [change(number, item) for number, item in enumerate(items[:20], 1)]
    with pytest.raises(FollowError, match="2 of 20 events were not accepted: HTTP 500"):
        subscribed.follow(*changes)
    assert [item for item, _ in subscribed.inbox.news()] == ids(*items[:3], *items[5:20])
    subscribed.inbox.requests.clear()
    subscribed.inbox.answers = lambda _: TAKEN
    subscribed.follow(*changes)
    assert sorted(item for request in subscribed.inbox.requests for item in request) == sorted(failing)
    assert subscribed.inbox.news() == [(item, "created") for item in sorted(failing)]
    assert (subscribed.status().sent, subscribed.status().failing) == (20, 0)


def test_an_unreachable_receiver_gets_one_request_per_turn_and_loses_no_event(
    subscribing: Subscribing, items: Items
) -> None:
    subscribed = subscribing(inbox=Inbox(most=2, down=True))
    changes = [change(number, item) for number, item in enumerate(items[:50], 1)]
    for tries in range(1, MAX_FAILURES + 5):
        with pytest.raises(FollowError, match="50 of 50 events were not accepted: it is away"):
            subscribed.follow(*changes)
        assert len(subscribed.inbox.requests) == tries
    subscribed.inbox.down = False
    subscribed.follow(*changes)
    assert len(subscribed.inbox.news()) == 50
    assert subscribed.status().refused == 0


@pytest.mark.parametrize("shared", [True, False], ids=["with the whole request", "alone"])
def test_an_event_that_is_always_refused_is_recorded_and_delays_no_other_event(
    subscribing: Subscribing, items: Items, shared: bool
) -> None:
    wrong = items[4]["id"]

    class Strict(Inbox):
        def send(self, events: Sequence[OutgoingEvent]) -> list[ReceiverAnswer]:
            if shared and wrong in {event.item_id for event in events}:
                self.requests.append([event.item_id for event in events])
                return [REFUSED] * len(events)
            return super().send(events)

    subscribed = subscribing(inbox=Strict(most=5, answers=lambda event: REFUSED if event.item_id == wrong else TAKEN))
    subscribed.follow(*(change(number, item) for number, item in enumerate(items[:12], 1)))
    assert [item for item, _ in subscribed.inbox.news()] == ids(*items[:4], *items[5:12])
    assert sum(wrong in request for request in subscribed.inbox.requests) == TRIES
    assert subscribed.status().refused == 1
    [trouble] = subscribed.announcer.store.in_trouble()
    assert (trouble["item_id"], trouble["state"], trouble["last_error"]) == (wrong, "refused", "HTTP 422")

    assert subscribed.announcer.resend() == (0, 1)
    subscribed.inbox.answers, shared = (lambda _: TAKEN), False
    assert subscribed.announcer.resend() == (1, 0)
    assert subscribed.inbox.news() == [(wrong, "created")]
    assert subscribed.announcer.resend() == (0, 0)
    assert subscribed.status().refused == 0


def test_a_receiver_that_refuses_every_event_loses_no_event(subscribing: Subscribing, items: Items) -> None:
    subscribed = subscribing(inbox=Inbox(most=1, answers=lambda _: REFUSED))
    changes = [change(number, item) for number, item in enumerate(items, 1)]
    with pytest.raises(
        FollowError,
        match="60 of 60 events were not accepted: the receiver refuses every event, the first with HTTP 422",
    ):
        subscribed.follow(*changes)
    assert MAX_REFUSALS <= len(subscribed.inbox.requests) < MAX_REFUSALS + THREADS + 1
    with pytest.raises(FollowError, match="1 of 1 events were not accepted: HTTP 422"):
        subscribed.follow(change(61, items[0], kind=UPDATED))
    assert subscribed.status().refused == 0
    subscribed.inbox.answers = lambda _: TAKEN
    subscribed.follow(*changes[1:], change(61, items[0], kind=UPDATED))
    assert len(subscribed.inbox.news()) == 60


def test_a_receiver_that_accepts_one_event_is_sent_all_other_events_despite_refusals(
    subscribing: Subscribing, items: Items
) -> None:
    accepted_id = items[0]["id"]
    subscribed = subscribing(
        inbox=Inbox(most=1, answers=lambda event: TAKEN if event.item_id == accepted_id else REFUSED)
    )
    subscribed.follow(*(change(number, item) for number, item in enumerate(items[: MAX_REFUSALS + THREADS], 1)))
    assert subscribed.inbox.news() == [(accepted_id, "created")]
    assert subscribed.status().refused == MAX_REFUSALS + THREADS - 1


def test_an_event_that_keeps_failing_while_others_succeed_is_given_up_after_max_failures(
    subscribing: Subscribing, items: Items
) -> None:
    wrong = items[1]["id"]
    subscribed = subscribing(inbox=Inbox(answers=lambda event: FAILED if event.item_id == wrong else TAKEN))
    changes = [change(number, item) for number, item in enumerate(items[:3], 1)]
    for _ in range(MAX_FAILURES - 1):
        with pytest.raises(FollowError, match="events were not accepted: HTTP 500"):
            subscribed.follow(*changes)
        subscribed.clock.advance(600)
    assert subscribed.status().failing == 1
    [trouble] = subscribed.announcer.store.in_trouble()
    assert (trouble["item_id"], trouble["state"], trouble["last_error"]) == (wrong, "open", "HTTP 500")
    subscribed.follow(*changes)
    assert (subscribed.status().failing, subscribed.status().refused) == (0, 1)
    subscribed.inbox.answers = lambda _: TAKEN
    subscribed.inbox.news()
    subscribed.follow(change(9, items[1], kind=UPDATED))
    assert subscribed.inbox.news() == [(wrong, "created")]
    assert subscribed.status().refused == 0


def test_a_slow_receiver_gets_the_events_beyond_its_time_budget_in_the_next_turn(
    subscribing: Subscribing, items: Items
) -> None:
    inbox, changes = Inbox(most=1), [change(number, item) for number, item in enumerate(items[:30], 1)]
    with pytest.raises(FollowError, match="29 of 30 events were not accepted: the receiver is too slow"):
        subscribing(inbox=inbox, budget_seconds=0).follow(*changes)
    subscribing(inbox=inbox).follow(*changes)
    assert sorted(item for [item] in inbox.requests) == ids(*items[:30])


def test_all_current_items_can_be_announced_again_with_the_same_ids(subscribing: Subscribing, items: Items) -> None:
    subscribed = subscribing()
    subscribed.follow(change(1, items[0]), change(2, items[1]), change(3, items[2]))
    subscribed.follow(change(4, items[1], kind=UPDATED), change(5, items[2], kind=WITHDRAWN))
    last = {event["subject"]: event for event in subscribed.inbox.taken}
    subscribed.inbox.answers = lambda event: REFUSED if event.item_id == items[3]["id"] else TAKEN
    subscribed.follow(change(6, items[3]), change(7, items[4]))
    assert subscribed.inbox.news()[-1:] == [(items[4]["id"], "created")]
    subscribed.inbox.answers = lambda _: TAKEN
    subscribed.announcer.forget(subscribed.contracts["goes-abi"])
    subscribed.follow(change(1, items[0]), change(4, items[1], kind=UPDATED), change(5, items[2], kind=WITHDRAWN))
    assert subscribed.inbox.taken == [event for event in last.values() if not event["type"].endswith("withdrawn")]
    subscribed.follow(change(6, items[3]))
    assert (items[3]["id"], "created") in subscribed.inbox.news(), "refused events are sent again, too"


def test_an_item_is_withdrawn_if_the_process_died_before_recording_its_event(
    subscribing: Subscribing, items: Items
) -> None:
    """Whether the receiver has the Item is unknown, so its withdrawal is sent."""
    subscribed = subscribing()

    def die(_: OutgoingEvent) -> ReceiverAnswer:
        raise DeathError

    subscribed.inbox.answers = die
    with pytest.raises(DeathError):
        subscribed.follow(change(1, items[0]))
    assert subscribed.status().failing == 0, "no failure was recorded"
    subscribed.inbox.answers = lambda _: TAKEN
    subscribed.follow(change(2, items[0], kind=WITHDRAWN))
    assert subscribed.inbox.news() == [(items[0]["id"], "withdrawn")]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
        st.tuples(st.just("withdraw"), st.integers(0, 3)),
        st.tuples(
            st.just("follow"),
            st.fixed_dictionaries(
                {
                    "most": st.integers(1, 3),
                    "window": st.integers(1, 5),
                    # The outcome of each request in turn; later requests are accepted.
                    "fate": st.lists(st.sampled_from(["taken", "failed", "down", "dies", "taken, dies"]), max_size=4),
                    "ends": st.booleans(),
                }
            ),
        ),
    ),
    min_size=4,
    max_size=14,
)


@dataclass
class Unsteady(Inbox):
    """A receiver with a planned outcome for each request."""

    fate: list[str] = field(default_factory=list)

    def send(self, events: Sequence[OutgoingEvent]) -> list[ReceiverAnswer]:
        fate = self.fate.pop(0) if self.fate else "taken"
        if fate == "dies":
            raise DeathError
        self.down = fate == "down"
        self.answers = (
            (lambda event: FAILED if event is events[0] else TAKEN) if fate == "failed" else (lambda _: TAKEN)
        )
        answers = super().send(events)
        if fate == "taken, dies":
            raise DeathError
        return answers


@dataclass
class Story:
    """A history of some Items, and a subscription to one dataset that follows the Items."""

    subscribed: Subscribed
    inbox: Unsteady
    bases: list[dict[str, Any]]
    log: list[ItemChange] = field(default_factory=list)
    cursor: int = 0

    @property
    def last(self) -> dict[str, ItemChange]:
        return {change_.item_id: change_ for change_ in self.log}

    def write(self, number: int, content: int) -> None:
        """Write an Item; content 0 puts it into a dataset outside the subscription."""
        base = self.bases[number]
        more = {"kfm:dataset": MINE if content else "another", "content": content}
        previous = self.last.get(base["id"])
        kind = CREATED if previous is None or previous.kind is WITHDRAWN else UPDATED
        self._add({**base, "properties": {**base["properties"], **more}}, kind)

    def withdraw(self, number: int) -> None:
        previous = self.last.get(self.bases[number]["id"])
        if previous is not None and previous.kind is not WITHDRAWN:
            self._add(self.bases[number], WITHDRAWN)

    def _add(self, item: dict[str, Any], kind: ChangeKind) -> None:
        self.log.append(change(len(self.log) + 1, item, kind=kind))

    def follow(self, *, most: int = 10, window: int = 1000, fate: Sequence[str] = (), ends: bool = True) -> None:
        """Follow the next changes without those that a later change replaces, as `catalog/following.py` does."""
        self.inbox.most, self.inbox.fate, self.inbox.down = most, list(fate), False
        following, last = self.log[self.cursor :][:window], self.last
        try:
            self.subscribed.follow(*(change_ for change_ in following if last[change_.item_id] is change_))
        except (FollowError, DeathError):
            return
        if ends:  # otherwise the process ends before it moves its cursor
            self.cursor += len(following)

    def heard(self) -> dict[str, dict[str, Any]]:
        """Return each Item's event with the highest sequence, as an ordering receiver would.

        Check that equal ids mean equal events, and that each change has one id.
        """
        by_id: dict[str, dict[str, Any]] = {}
        by_change: dict[tuple[str, str], str] = {}
        last: dict[str, dict[str, Any]] = {}
        for event in self.inbox.taken:
            assert by_id.setdefault(event["id"], event) == event
            assert by_change.setdefault((event["subject"], event["sequence"]), event["id"]) == event["id"]
            item_id = event["subject"].rpartition("/")[2]
            if item_id not in last or last[item_id]["sequence"] <= event["sequence"]:
                last[item_id] = event
        return last


MINE = "goes-abi"


@settings(ON_A_GROWING_CATALOG, max_examples=60)
@given(operations=OPERATIONS)
def test_after_any_history_a_receiver_has_the_current_items_and_each_change_has_one_id(
    subscribing: Subscribing, contracts: ContractRegistry, operations: list[tuple[str, Any]]
) -> None:
    inbox = Unsteady()
    subscribed = subscribing(inbox=inbox, name=next(_names), datasets=[MINE])
    story = Story(subscribed=subscribed, inbox=inbox, bases=[item_of(contracts, goes(number)) for number in range(4)])
    for operation, argument in operations:
        if operation == "write":
            story.write(*argument)
        elif operation == "withdraw":
            story.withdraw(argument)
        else:
            story.follow(**argument)
    story.follow()
    assert story.cursor == len(story.log)
    heard = story.heard()
    for item_id, last in story.last.items():
        event = heard.get(item_id)
        mine = last.item is not None and last.item["properties"]["kfm:dataset"] == MINE
        assert event is not None or not mine
        # A withdrawn Item stays withdrawn until it is in the subscription's dataset again.
        if event is not None and (mine or not event["type"].endswith("withdrawn")):
            assert event["sequence"] == f"{last.change_id:019}"
            assert event["type"].endswith("withdrawn") == (last.item is None)
            assert event["data"].get("properties") == (last.item or {}).get("properties")


@pytest.mark.one_database
def test_events_of_a_governed_dataset_show_no_more_than_the_catalog(
    database: Database, contracts: ContractRegistry
) -> None:
    """The configuration names the dataset itself; events carry its pseudonym."""
    restricted = with_section(contracts[MINE], "governance", sensitivity="restricted", access="restricted")
    contract = with_section(restricted, "stac", collection="governed-scans")
    governed = ContractRegistry(contracts={**contracts.contracts, MINE: contract})
    item = item_of(governed, goes(0))
    subscribed = subscribe(database, governed, datasets=[MINE])
    subscribed.follow(change(1, item))
    [event] = subscribed.inbox.taken
    assert event["data"]["properties"]["kfm:dataset"] == contract.public_id != MINE
    assert {name: value for name, value in event["data"].items() if name != "links"} == {
        name: value for name, value in item.items() if name != "links"
    }
    assert MINE not in json.dumps(event)
