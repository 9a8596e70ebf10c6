"""The producer: what disorder may do to deliveries, and what the pipeline makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.producer import Disorder, Producer, disordered
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.errors import ConfigurationError
from kfm_dagster_tests.integration.chain import volumes

SHARES = st.floats(min_value=0, max_value=1)
DISORDERS = st.builds(
    Disorder, seed=st.integers(), duplicate=SHARES, late=SHARES, displaced=st.integers(min_value=0, max_value=20)
)


@given(count=st.integers(min_value=0, max_value=60), disorder=DISORDERS)
def test_every_event_comes_once_or_twice_in_the_order_of_the_seed_displaced_by_no_more_than_it_may(
    count: int, disorder: Disorder
) -> None:
    timely, late = disordered(range(count), disorder)
    deliveries = Counter(timely) + Counter(late)
    assert set(deliveries) == set(range(count))
    assert set(deliveries.values()) <= {1, 2}
    assert disordered(range(count), disorder) == (timely, late)
    for place, event in enumerate(timely):
        assert all(event <= later + disorder.displaced for later in timely[place:])


def test_a_wrong_disorder_is_refused() -> None:
    for wrong in [{"duplicate": -0.1}, {"duplicate": 1.1}, {"late": -0.1}, {"late": 1.1}, {"displaced": -1}]:
        with pytest.raises(ConfigurationError, match="a disorder is wrong"):
            Disorder(**wrong)


@dataclass
class Recorded:
    """As much of a Feed as the producer uses."""

    done: list[Any] = field(default_factory=list)

    def announce(self, events: Iterable[ObjectEvent]) -> int:
        self.done.append(list(events))
        return len(self.done[-1])

    def sleep(self, seconds: float) -> None:
        self.done.append(seconds)


def test_late_events_are_announced_after_the_pause() -> None:
    events = [item.event() for item in volumes(12)]
    disorder = Disorder(seed=3, duplicate=0.5, late=0.3)
    recorded = Recorded()
    messages = Producer(recorded, disorder, sleep=recorded.sleep).announce(events, late_by_seconds=90)
    timely, late = disordered(events, disorder)
    assert recorded.done == [timely, 90, late]
    assert messages == len(timely) + len(late) > len(events)
