"""Spans of the run contract, through the OpenTelemetry API: they cost nothing until an SDK is configured.

Without an SDK, too, `counted_spans` gives what the spans of each name took.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from kfm_dagster.telemetry.measures import Spent

_NAME = "kfm_dagster"
_COUNTED: ContextVar[dict[str, Spent] | None] = ContextVar("kfm_counted_spans", default=None)


@contextmanager
def span(name: str, attributes: Mapping[str, str | int | bool]) -> Iterator[Span]:
    """Open a span; an exception that passes through marks it as an error, by its kind alone, and goes on."""
    counted = _COUNTED.get()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        with trace.get_tracer(_NAME).start_as_current_span(
            # What an error says may quote addresses and messages of others.
            name,
            attributes=dict(attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as opened:
            try:
                yield opened
            except BaseException as error:
                mark_error(opened, type(error).__name__)
                raise
    finally:
        if counted is not None:
            before = counted.get(name, Spent(seconds=0.0, cpu_seconds=0.0))
            counted[name] = Spent(
                seconds=(before.seconds or 0.0) + time.perf_counter() - wall,
                cpu_seconds=(before.cpu_seconds or 0.0) + time.process_time() - cpu,
            )


def mark_error(span: Span, code: str) -> None:
    """Mark a span as failed, by a code and no more."""
    span.set_status(Status(StatusCode.ERROR, code))
    span.set_attribute("error.type", code)


@contextmanager
def counted_spans() -> Iterator[Mapping[str, Spent]]:
    """Add up, while the block lasts, wall and CPU seconds of the process in the spans of each name of this context.

    What lies within two spans counts in both.
    """
    counted: dict[str, Spent] = {}
    token = _COUNTED.set(counted)
    try:
        yield counted
    finally:
        _COUNTED.reset(token)
