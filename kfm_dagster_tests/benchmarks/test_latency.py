"""The benchmark of latency: what it publishes, how it counts, and what it refuses."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.latency import _Publisher, percentiles
from benchmarks.objects import make_objects

UNITS = 25


class _Queue:
    """Takes batches as SQS does."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.queues = SimpleNamespace(queue_url="url")

    def client(self) -> _Queue:
        return self

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        self.batches.append([entry["MessageBody"] for entry in Entries])
        return {}


def test_every_message_is_sent_once_in_order_and_its_moment_is_kept(tmp_path: Path) -> None:
    bodies, queue = make_objects(tmp_path, "nexrad-l2", UNITS), _Queue()
    publisher = _Publisher(queue, bodies, rate=100.0)  # type: ignore[arg-type]
    publisher.run()
    assert [body for batch in queue.batches for body in batch] == bodies
    assert max(map(len, queue.batches)) <= 10
    published = publisher.published("nexrad-l2")
    assert len({uri for uri, _ in published}) == UNITS
    moments = [at for _, at in published]
    assert moments == sorted(moments)
    # The last one is due (UNITS - 1) / rate after the first.
    assert moments[-1] - moments[0] >= timedelta(seconds=0.1)


def test_percentiles_are_of_all_waits() -> None:
    found = percentiles([float(number) for number in range(101)])
    assert found == {"p50_seconds": 50.0, "p95_seconds": 95.0, "p99_seconds": 99.0, "most_seconds": 100.0}
    assert set(percentiles([]).values()) == {None}
    assert set(percentiles([2.5]).values()) == {2.5}
