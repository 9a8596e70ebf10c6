"""The producer: what disorder may do to deliveries, and what the pipeline makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fault_injection.producer import Disorder, Producer, disordered
from kfm_dagster.demo.feed import ObjectEvent
from kfm_dagster.errors import ConfigurationError
from kfm_dagster_tests.integration import traces
from kfm_dagster_tests.integration.chain import (
    announce,
    open_pipeline,
    put,
    raw_message,
    take,
    volumes,
    work_until_done,
)

SHARES = st.floats(min_value=0, max_value=1)
DISORDERS = st.builds(
    Disorder, seed=st.integers(), duplicate=SHARES, late=SHARES, displaced=st.integers(min_value=0, max_value=20)
)


@given(count=st.integers(min_value=0, max_value=60), disorder=DISORDERS)
def test_every_event_comes_once_or_twice_and_the_same_seed_gives_the_same_order(count: int, disorder: Disorder) -> None:
    timely, late = disordered(range(count), disorder)
    deliveries = Counter(timely) + Counter(late)
    assert set(deliveries) == set(range(count))
    assert set(deliveries.values()) <= {1, 2}
    assert disordered(range(count), disorder) == (timely, late)


@given(count=st.integers(min_value=0, max_value=60), disorder=DISORDERS)
def test_a_timely_event_is_displaced_by_no_more_than_it_may(count: int, disorder: Disorder) -> None:
    timely, _ = disordered(range(count), disorder)
    for place, event in enumerate(timely):
        assert all(event <= later + disorder.displaced for later in timely[place:])


def test_each_share_does_what_it_says() -> None:
    for shares, expected in [
        ({"duplicate": 0, "late": 0, "displaced": 0}, ([0, 1, 2, 3], [])),
        ({"duplicate": 1, "late": 0, "displaced": 0}, ([0, 0, 1, 1, 2, 2, 3, 3], [])),
        ({"duplicate": 0, "late": 1, "displaced": 0}, ([], [0, 1, 2, 3])),
    ]:
        timely, late = disordered(range(4), Disorder(**shares))
        assert (timely, sorted(late)) == expected


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
    messages = Producer(recorded, disorder, sleep=recorded.sleep).announce(events, late_by_seconds=90)  # type: ignore[arg-type]
    timely, late = disordered(events, disorder)
    assert recorded.done == [timely, 90, late]
    assert messages == len(timely) + len(late) > len(events)


@pytest.mark.clause("BEY-09")
@pytest.mark.parametrize("seed", range(3))
def test_a_day_fed_in_disorder_ends_as_one_fed_in_order(seed: int, database_url: str, tmp_path: Path) -> None:
    items = volumes(10)
    put(tmp_path / "objects", items)
    found = []
    for home, disorder in (
        ("order", Disorder(duplicate=0, late=0, displaced=0)),
        ("disorder", Disorder(seed=seed, duplicate=0.5, late=0.4, displaced=10)),
    ):
        url = database_url if home == "disorder" else ""
        pipeline = open_pipeline(tmp_path / home, tmp_path / "objects", url=url)
        for part in disordered([item.event() for item in items], disorder):
            for number, event in enumerate(part):
                body = announce([event], registry=pipeline.registry).body
                take(pipeline, raw_message(body, name=f"{seed} {number} {event.key}"))
            work_until_done(pipeline)
        lineage = Path(pipeline.settings.lineage)
        traces.assert_once(traces.prov_edges(lineage))
        found.append(
            (traces.outcomes(pipeline), traces.catalog_tree(Path(pipeline.settings.catalog)), traces.events(lineage))
        )
        pipeline.close()
    assert found[0] == found[1]
