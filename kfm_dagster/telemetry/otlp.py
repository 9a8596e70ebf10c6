"""OTLP export of spans, configured by OpenTelemetry's environment variables (TEL-01).

The SDK is imported only once an endpoint is set. Belongs here: whether the environment enables export, and flushing
spans. Does not belong here: the SDK's parts (`otlp_spans.py`), or the content of spans (`traces.py`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module

from opentelemetry import trace

from kfm_dagster.telemetry.traces import is_tracing

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FLUSH_MILLISECONDS = 5_000
"""Timeout of the flush at the end of a batch, outside any lock; later spans stay in the queue."""

_LOG = logging.getLogger(__name__)


def exports(signal: str, environment: Mapping[str, str]) -> bool:
    """Return whether OTLP of a signal ("traces", "metrics") is configured and installed.

    The variables are OpenTelemetry's: an endpoint of all signals or of this one, `OTEL_SDK_DISABLED`, and
    `OTEL_TRACES_EXPORTER=none`. Logs a warning for a protocol other than http/protobuf, or without the exporter.
    """
    prefix = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"
    if not (environment.get(f"{prefix}ENDPOINT") or environment.get(ENDPOINT)):
        return False
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp") != "otlp":
        return False
    protocol = environment.get(f"{prefix}PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if protocol != "http/protobuf":
        _LOG.warning("no %s are exported: OTLP over %s is asked for, and http/protobuf is spoken", signal, protocol)
        return False
    try:
        import_module("opentelemetry.exporter.otlp.proto.http")
    except ImportError:
        _LOG.warning("no %s are exported: pip install kfm_dagster[otlp]", signal)
        return False
    return True


def configure_traces(environment: Mapping[str, str] = os.environ) -> None:
    """Send this process's spans to the environment's collector, unless an SDK is configured."""
    if is_tracing() or not exports("traces", environment):
        return
    from kfm_dagster.telemetry.otlp_spans import AttemptProvider  # noqa: PLC0415, an extra that few have installed

    trace.set_tracer_provider(AttemptProvider())


def flush_traces() -> None:
    """Flush pending spans, within 5 s: a run's process may end abruptly."""
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(_FLUSH_MILLISECONDS)
