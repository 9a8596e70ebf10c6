"""Span export by OpenTelemetry's SDK; imported once an endpoint is set (`traces.py`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision

from kfm_dagster import __version__
from kfm_dagster.telemetry.traces import root_ids, sample_by

_QUEUE_SPANS = "65536"
"""Limit of spans that wait for the exporter. A batch of 5,000 units ends 15,000 spans within a short time;
with the SDK's limit of 2,048, most of them would be dropped."""


def service() -> Resource:
    """Return the resource of `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and the release."""
    attributes = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "kfm_dagster"), SERVICE_VERSION: __version__}
    return Resource.create(attributes)


class AttemptProvider(TracerProvider):
    """The SDK's provider; the root span of an attempt has the ids of `traces.attempt_ids`.

    OpenTelemetry's variables set all other options: endpoint, headers, certificate, sampler, resource, limits.
    """

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        super().__init__(resource=service(), id_generator=_RootIds())
        queue = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE_SPANS))
        self.add_span_processor(BatchSpanProcessor(exporter or _ProcessExporter(), max_queue_size=queue))
        sample_by(lambda trace_id: self.sampler.should_sample(Context(), trace_id, "").decision is not Decision.DROP)


class _RootIds(RandomIdGenerator):
    def generate_span_id(self) -> int:
        ids = root_ids()
        return super().generate_span_id() if ids is None else ids.span_id

    def generate_trace_id(self) -> int:
        ids = root_ids()
        return super().generate_trace_id() if ids is None else ids.trace_id


class _ProcessExporter(SpanExporter):
    """One exporter for each process, because forked runs cannot share a connection."""

    def __init__(self) -> None:
        self._pid, self._exporter = os.getpid(), OTLPSpanExporter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._pid != os.getpid():
            self._pid, self._exporter = os.getpid(), OTLPSpanExporter()
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
