"""A receiver of OTLP over HTTP that decodes by OpenTelemetry's protobuf classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kfm_dagster_tests.followers.announcements.web_server import WebAnswer, WebRequest, WebServer, open_web_server


class Collector:
    """Records the spans and metrics of all requests."""

    def __init__(self, server: WebServer) -> None:
        self.url = server.url("")
        self.spans: list[Span] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        server.answers = self._take

    def _take(self, request: WebRequest) -> WebAnswer:
        match request.path:
            case "/v1/traces":
                resources = ExportTraceServiceRequest.FromString(request.body).resource_spans
                self.spans += [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
            case "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(request.body))
            case _:
                return WebAnswer(status=404)
        return WebAnswer()


@contextmanager
def collecting() -> Iterator[Collector]:
    with open_web_server() as server:
        yield Collector(server)
