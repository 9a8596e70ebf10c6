"""Spans of the run contract, through the OpenTelemetry API: they cost nothing until an SDK is configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span

_NAME = "kfm_dagster"


@contextmanager
def span(name: str, attributes: Mapping[str, str | int | bool]) -> Iterator[Span]:
    """Open a span; an exception that passes through marks it as an error and goes on."""
    with trace.get_tracer(_NAME).start_as_current_span(name, attributes=dict(attributes)) as opened:
        yield opened
