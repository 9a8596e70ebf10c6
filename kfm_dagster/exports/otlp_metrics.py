"""OTLP export of metrics: sends the values of `/metrics` to a collector.

Imported only if an endpoint is set. The SDK's instruments are not used, because they count the events of one process.
The deployment's counts, which are in the database, are given to the SDK's exporter unchanged: cumulative, and without a
start time. Does not belong here: the counts, or the names for Prometheus (`metrics.py`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import pairwise

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import Metric as Family
from sqlalchemy.exc import SQLAlchemyError

from kfm_dagster import __version__
from kfm_dagster.exports.metrics import families
from kfm_dagster.ingest.pipeline import Pipeline
from kfm_dagster.telemetry.otlp_spans import service

_NAMESPACES = ("nodd_sns", "kfm_run_state")
"""Prefixes before the dot of an OTLP name; Prometheus does not allow the dot."""
_INTERVAL_MILLISECONDS = "60000"
"""OpenTelemetry's default of `OTEL_METRIC_EXPORT_INTERVAL`."""
_LOG = logging.getLogger(__name__)


def pushing(pipeline: Pipeline, depths: Callable[[], Mapping[str, int]]) -> AbstractContextManager[None]:
    """Send metrics to the collector every `OTEL_METRIC_EXPORT_INTERVAL`, during a block.

    `depths` returns the number of messages of each queue that has answered.
    """
    exporter = OTLPMetricExporter()

    def push() -> None:
        try:
            exporter.export(metrics_data(pipeline, depths(), at=time.time_ns()))
        except SQLAlchemyError:
            _LOG.warning("no metrics are exported: the database does not answer")

    seconds = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MILLISECONDS)) / 1000
    return pipeline.threads.repeating(push, seconds=seconds, name="otlp-metrics")


def metrics_data(pipeline: Pipeline, depths: Mapping[str, int], *, at: int) -> MetricsData:
    """Return every metric in OTLP's form, at a time in nanoseconds since 1970."""
    scope = ScopeMetrics(
        scope=InstrumentationScope("kfm_dagster", __version__),
        metrics=[_metric(family, at) for family in families(pipeline, depths)],
        schema_url="",
    )
    return MetricsData([ResourceMetrics(resource=service(), scope_metrics=[scope], schema_url="")])


def _metric(family: Family, at: int) -> Metric:
    namespace = next(prefix for prefix in _NAMESPACES if family.name.startswith(f"{prefix}_"))
    name = f"{namespace}.{family.name.removeprefix(f'{namespace}_')}"
    if family.type == "histogram":
        points = list(_histogram_points(family, at))
        return Metric(name, family.documentation, "1", Histogram(points, AggregationTemporality.CUMULATIVE))
    # Always float, even for whole numbers: a collector identifies a metric by name and type.
    numbers = [
        NumberDataPoint(sample.labels, start_time_unix_nano=0, time_unix_nano=at, value=float(sample.value))
        for sample in family.samples
    ]
    if family.type == "gauge":
        return Metric(name, family.documentation, "1", Gauge(numbers))
    total = Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(f"{name}_total", family.documentation, "1", total)


def _histogram_points(family: Family, at: int) -> Iterator[HistogramDataPoint]:
    """Yield a point per set of labels; Prometheus' buckets are cumulative, OTLP's are not."""
    below: dict[frozenset[tuple[str, str]], dict[float, int]] = {}
    sums: dict[frozenset[tuple[str, str]], float] = {}
    for sample in family.samples:
        labels: Mapping[str, str] = {name: value for name, value in sample.labels.items() if name != "le"}
        key = frozenset(labels.items())
        if sample.name.endswith("_bucket"):
            below.setdefault(key, {})[float(sample.labels["le"])] = int(sample.value)
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    for key, buckets in below.items():
        counts = [0, *(buckets[bound] for bound in sorted(buckets))]
        yield HistogramDataPoint(
            attributes=dict(key),
            start_time_unix_nano=0,
            time_unix_nano=at,
            count=counts[-1],
            sum=sums[key],
            bucket_counts=[after - before for before, after in pairwise(counts)],
            explicit_bounds=sorted(buckets)[:-1],
            # The protocol allows None, the types of the classes do not.
            min=None,  # type: ignore[arg-type]
            max=None,  # type: ignore[arg-type]
        )
