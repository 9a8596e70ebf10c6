"""Work on a batch by threads: the order of results, the number of threads, the end at an error."""

from __future__ import annotations

import threading

import pytest

from kfm_dagster.ingest.threads import Threads


@pytest.mark.parametrize("most", [1, 4])
def test_results_are_in_the_order_of_the_batch(most: int) -> None:
    working = threading.Semaphore(most)

    def work(number: int) -> int:
        assert working.acquire(blocking=False), "more threads run than configured"
        try:
            threading.Event().wait(0.001 * (number % 3))
            return number * 2
        finally:
            working.release()

    assert Threads(most=most).concurrently(work, iter(range(50))) == list(range(0, 100, 2))
    assert Threads(most=most).concurrently(work, []) == []


@pytest.mark.parametrize("most", [1, 4])
def test_an_error_is_raised_and_no_thread_starts_further_work(most: int) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError(number)
        threading.Event().wait(0.01)

    with pytest.raises(ValueError, match="3"):
        Threads(most=most).concurrently(work, range(1_000))
    assert len(begun) < 100


def test_as_many_threads_work_as_configured() -> None:
    together = threading.Barrier(4, timeout=10)
    Threads(most=4).concurrently(lambda _: together.wait(), range(4))


@pytest.mark.parametrize(("at_once", "ticks"), [(True, 1), (False, 0)])
def test_the_first_call_is_made_at_once_or_after_an_interval(*, at_once: bool, ticks: int) -> None:
    calls, called = [], threading.Event()

    def tick() -> None:
        calls.append(1)
        called.set()

    options = {"at_once": True} if at_once else {}
    with Threads(most=1).repeating(tick, seconds=3_600, name="ticking", **options):
        assert called.wait(10 if at_once else 0.05) is at_once
    assert len(calls) == ticks
