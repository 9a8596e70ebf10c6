"""A receiver of OTLP over HTTP that decodes by OpenTelemetry's protobuf classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer, open_web_server

ERROR = 2
"""`STATUS_CODE_ERROR` of opentelemetry/proto/trace/v1/trace.proto."""


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    """A received span; times in nanoseconds since 1970; `error` is None without an error."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    error: str | None


class Collector:
    """Records the spans and metrics of all requests."""

    def __init__(self, server: WebServer) -> None:
        self.url = server.url("")
        self.spans: list[ReceivedSpan] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        server.answers = self._take

    def _take(self, request: WebRequest) -> WebAnswer:
        match request.path:
            case "/v1/traces":
                self.spans += _spans(ExportTraceServiceRequest.FromString(request.body))
            case "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(request.body))
            case _:
                return WebAnswer(status=404)
        return WebAnswer()


@contextmanager
def collecting() -> Iterator[Collector]:
    with open_web_server() as server:
        yield Collector(server)


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes={item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes},
            events=tuple(event.name for event in span.events),
            error=span.status.message if span.status.code == ERROR else None,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
