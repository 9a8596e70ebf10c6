"""Spans of the run contract, through the OpenTelemetry API: they cost nothing until an SDK is configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

_NAME = "kfm_dagster"


@contextmanager
def span(name: str, attributes: Mapping[str, str | int | bool]) -> Iterator[Span]:
    """Open a span; an exception that passes through marks it as an error, by its kind alone, and goes on."""
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


def mark_error(span: Span, code: str) -> None:
    """Mark a span as failed, by a code and no more."""
    span.set_status(Status(StatusCode.ERROR, code))
    span.set_attribute("error.type", code)
