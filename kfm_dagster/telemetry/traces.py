"""Traces: a trace for each attempt of a unit, a span for each operator (TEL-02, WAL-13).

The ids of a trace and of its root span derive from the unit and its attempt, so that every process that works on the
attempt adds to the same trace. The root is written last, once the ledger has committed the attempt's end. If the worker
of an attempt died, the trace has the spans that the worker exported, and the root that the recovery wrote.
Belongs here: names, ids, attributes and errors of all spans, which cost nothing until an SDK is configured; whether
OpenTelemetry's environment variables enable export; flushing spans. Does not belong here: the SDK's parts
(`otlp_spans.py`), which are imported only once an endpoint is set.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from importlib import import_module
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags

from kfm_dagster.contracts.envelope import Envelope, Lane
from kfm_dagster.contracts.issues import Severity

_LOG = logging.getLogger(__name__)

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FLUSH_MILLISECONDS = 5_000
"""Timeout of the flush at the end of a batch; spans not sent by then stay in the queue. The flush holds no lock."""
ROOT = "ingest"
RECEIVE = "sqs_receive"

_PREFIX = "nodd_sns."
_AUTOMATIC = frozenset({None, "retry"})
KNOWN_ATTEMPTS = 4_096
"""Attempts whose ids are cached, because a batch uses each unit's ids some ten times."""
_ROOT_IDS: ContextVar[SpanContext | None] = ContextVar("kfm_root_ids", default=None)

Attributes = dict[str, str | int]


_SAMPLERS: list[Callable[[int], bool]] = []
"""The sampler if the provider takes root ids from this module. Empty for another provider: all traces are sampled."""


@contextmanager
def span(name: str, attributes: Mapping[str, str | int | bool]) -> Iterator[Span]:
    """Open a span; an exception marks it as an error, by its type only, and is raised again."""
    with _tracer().start_as_current_span(
        # An error's text can quote addresses and messages.
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
    """Mark a span as failed, by a code only."""
    span.set_status(Status(StatusCode.ERROR, code))
    span.set_attribute("error.type", code)


def root_ids() -> SpanContext | None:
    """Return the ids for the root span that is being started; None for any other span."""
    return _ROOT_IDS.get()


def sample_by(decides: Callable[[int], bool]) -> None:
    """Let `root_ids` provide the ids of roots, and let `decides` sample each trace by its id."""
    _SAMPLERS[:] = [decides]
    attempt_ids.cache_clear()


def is_tracing() -> bool:
    """Return whether an OpenTelemetry SDK is configured in this process."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider)


@lru_cache(maxsize=KNOWN_ATTEMPTS)
def attempt_ids(wal_id: str, attempt: int) -> SpanContext:
    """Return the ids of an attempt's trace and root, by SHA-256: the same in every process."""
    digest = hashlib.sha256(f"kfm_dagster {wal_id} {attempt}".encode()).digest()
    trace_id = int.from_bytes(digest[:16])
    sampled = all(decides(trace_id) for decides in _SAMPLERS)
    return SpanContext(
        trace_id=trace_id,
        span_id=int.from_bytes(digest[16:24]),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT),
    )


def traced(operator: str, work: Callable[[Envelope], Envelope], *, dataset: str) -> Callable[[Envelope], Envelope]:
    """Return the work on a unit with a span around it; unchanged without tracing.

    A unit that failed in an earlier step gets no span. `dataset` is the public name.
    """
    if not is_tracing():
        return work

    def with_span(unit: Envelope) -> Envelope:
        if unit.failure is not None:
            return work(unit)
        ids = attempt_ids(unit.wal_id, unit.attempt)
        token = attach(_under(ids))
        try:
            if not ids.trace_flags.sampled:
                return work(unit)  # in the attempt's context, so that inner spans are not exported
            with span(_PREFIX + operator, _of_unit(unit, dataset)) as opened:
                result = work(unit)
                _mark(opened, result)
                return result
        finally:
            detach(token)

    return with_span


@contextmanager
def traced_batch(operator: str, received: Sequence[Envelope], *, dataset: str) -> Iterator[list[Envelope]]:
    """Write a span of the body's duration for each unit of the batch that the body processes.

    The body adds the resulting units to the list. If the body raises, the exception is the error of the units that are
    missing in the list, and is raised again.
    """
    results: list[Envelope] = []
    began, error = time.time_ns(), None
    try:
        yield results
    except BaseException as raised:
        error = raised
        raise
    finally:
        if is_tracing():
            by_id = {unit.wal_id: unit for unit in results}
            for unit in received:
                if unit.failure is None:
                    result = by_id.get(unit.wal_id)
                    record_span(operator, result or unit, began, dataset, None if result else error)


def record_span(operator: str, unit: Envelope, began: int, dataset: str, error: BaseException | None = None) -> None:
    """Write a span of a unit, from `began` (nanoseconds since 1970) until now."""
    ids = attempt_ids(unit.wal_id, unit.attempt)
    if not ids.trace_flags.sampled:
        return
    opened = _tracer().start_span(
        _PREFIX + operator,
        context=_under(ids),
        start_time=began,
        attributes=_of_unit(unit, dataset),
    )
    if error is not None:
        mark_error(opened, type(error).__name__)
    _mark(opened, unit)
    opened.end()


def record_attempt(row: Any, *, dataset: str, error: str | None, ended_at: datetime, unit: Envelope | None) -> None:
    """Write the root span of an ended attempt (a row of `ledger.attempts`), with its error code.

    `unit` is the operators' result, if known.
    """
    ids = attempt_ids(row.wal_id, row.attempts)
    if not ids.trace_flags.sampled:
        return
    attributes: Attributes = {
        "nodd.dataset": dataset,
        "nodd.wal_id": row.wal_id,
        "nodd.attempt": row.attempts,
        "nodd.object_uri_hash": hashlib.sha256(row.object_uri.encode()).hexdigest(),
        "nodd.bucket_provider": row.provider,
        "nodd.run_mode": _run_mode(row.lane, row.replay_reason),
        "nodd.run_id": row.ingest_run_id,
        **_of_replay(row.replay_reason, row.replay_run_id),
    }
    if row.replay_run_id and row.original_run_id:
        attributes["nodd.replay_original_run"] = row.original_run_id
    if unit is not None:
        attributes |= _output_ids(unit)
    token = _ROOT_IDS.set(ids if _SAMPLERS else None)
    try:
        opened = _tracer().start_span(
            _PREFIX + ROOT,
            # Another provider generates its own ids. Then this span is not the root, but a further span of the trace.
            context=Context() if _SAMPLERS else _under(ids),
            start_time=_nanoseconds(row.last_attempt_at),
            attributes=attributes,
        )
    finally:
        _ROOT_IDS.reset(token)
    if error is not None:
        mark_error(opened, error)
    opened.end(_nanoseconds(ended_at))


def record_receive(unit: Envelope, *, dataset: str, began: int) -> None:
    """Write the span of a message's landing and recording; it is in the unit's first trace."""
    ids = attempt_ids(unit.wal_id, 1)
    if not ids.trace_flags.sampled:
        return
    attributes = {
        **_of_unit(unit, dataset),
        "nodd.attempt": 1,
        "messaging.system": "aws_sqs",
        "messaging.message.id": unit.raw.sqs_message_id or "",
    }
    _tracer().start_span(_PREFIX + RECEIVE, context=_under(ids), start_time=began, attributes=attributes).end()


def _of_unit(unit: Envelope, dataset: str) -> Attributes:
    return {
        "nodd.dataset": dataset,
        "nodd.wal_id": unit.wal_id,
        "nodd.attempt": unit.attempt,
        **_of_replay(unit.replay_reason, unit.replay_run_id),
    }


def _of_replay(reason: str | None, run_id: str | None) -> Attributes:
    attributes = {"nodd.replay_reason": reason, "nodd.replay_run_id": run_id}
    return {name: value for name, value in attributes.items() if value}


def _output_ids(unit: Envelope) -> Attributes:
    ids = {
        "nodd.stac_item_id": unit.stac and unit.stac.item_id,
        "nodd.openlineage_run_id": unit.provenance and unit.provenance.openlineage_run_id,
        "nodd.prov_activity_id": unit.provenance and unit.provenance.activity_id,
    }
    return {name: value for name, value in ids.items() if value}


def _run_mode(lane: str, replay_reason: str | None) -> str:
    if replay_reason == "backfill" or (lane == Lane.BULK and replay_reason in _AUTOMATIC):
        return "backfill"
    return "hot-path" if replay_reason in _AUTOMATIC else "replay"


def _mark(opened: Span, unit: Envelope) -> None:
    """Mark a span with the issues and outputs of a unit that had not failed in an earlier step."""
    if (failure := unit.failure) is not None:
        mark_error(opened, failure.code)
    for issue in unit.issues:
        if issue.severity is Severity.SUSPECT:
            opened.add_event("suspect", {"nodd.issue": issue.code})
    opened.set_attributes(_output_ids(unit))


def _under(ids: SpanContext) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(ids), Context())


def _tracer() -> trace.Tracer:
    return trace.get_tracer("kfm_dagster")


def _nanoseconds(at: datetime) -> int:
    return int(at.astimezone(UTC).timestamp() * 1_000_000) * 1_000


def exports(signal: str, environment: Mapping[str, str]) -> bool:
    """Return whether OTLP export of a signal ("traces", "metrics") is configured and installed.

    OpenTelemetry's variables apply: an endpoint for all signals or for this signal, `OTEL_SDK_DISABLED`, and the
    signal's exporter, such as `OTEL_TRACES_EXPORTER=none`. Logs a warning for a protocol other than http/protobuf, and
    for a missing exporter.
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
        _LOG.warning("no %s are exported: OTLP over %s is configured; supported is http/protobuf", signal, protocol)
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
    """Flush pending spans, within 5 s, because a run's process can end abruptly."""
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        flush(_FLUSH_MILLISECONDS)
