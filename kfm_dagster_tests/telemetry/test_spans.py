"""A caller that counts spans gets what those of each name took, and nobody else pays for it."""

from __future__ import annotations

from itertools import count

import pytest

from kfm_dagster.telemetry import spans
from kfm_dagster.telemetry.measures import Spent
from kfm_dagster.telemetry.spans import counted_spans, span


@pytest.fixture
def _ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks that go on by one and by ten seconds whenever they are asked."""
    wall, cpu = count(), count(0, 10)
    monkeypatch.setattr(spans.time, "perf_counter", lambda: float(next(wall)))
    monkeypatch.setattr(spans.time, "process_time", lambda: float(next(cpu)))


@pytest.mark.usefixtures("_ticking")
def test_spans_of_a_name_add_up_while_they_are_counted() -> None:
    @span("inner", {})
    def inner() -> None:
        pass

    with counted_spans() as spent:
        with span("outer", {}):
            inner()
        inner()
        with pytest.raises(KeyError), span("failed", {}):
            raise KeyError
    inner()
    second = Spent(seconds=1.0, cpu_seconds=10.0)
    assert spent == {
        "inner": Spent(seconds=2.0, cpu_seconds=20.0),
        "outer": Spent(seconds=3.0, cpu_seconds=30.0),
        "failed": second,
    }
