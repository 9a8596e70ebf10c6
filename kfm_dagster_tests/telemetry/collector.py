"""A receiver of OTLP over HTTP on the loopback interface; reads requests by OpenTelemetry's own protobuf classes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ERROR = 2
"""`STATUS_CODE_ERROR` of opentelemetry/proto/trace/v1/trace.proto."""


@dataclass(frozen=True, kw_only=True)
class SeenSpan:
    """A span as it came; times in nanoseconds since 1970. `error` is None for one without."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    error: str | None


class Collector(ThreadingHTTPServer):
    """Takes whatever it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[SeenSpan] = []
        self.metrics: list[ExportMetricsServiceRequest] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            self.server.spans += _spans(ExportTraceServiceRequest.FromString(body))
        elif self.path == "/v1/metrics":
            self.server.metrics.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(200 if self.path in {"/v1/traces", "/v1/metrics"} else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        """Stay quiet."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[SeenSpan]:
    return [
        SeenSpan(
            name=span.name,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            start=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes={one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
            events=tuple(event.name for event in span.events),
            error=span.status.message if span.status.code == ERROR else None,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
