"""Tracing: one span per message, sent to an OTLP collector. Off by default; the door never waits for the collector.

A span lasts from delivery to acknowledgement. If the message has a `traceparent` header, the span joins that trace.
The OpenTelemetry library is only imported if tracing is on.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from manifold.settings import Settings
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._received import Accepted, Received

SERVICE = "manifold-signals"
EXPORT_TIMEOUT_S = 2  # timeout of an export, including the last one on shutdown
MAX_QUEUED_SPANS = 8192  # spans that wait for a slow or unavailable collector; further spans are dropped
TRACEPARENT = "traceparent"
CORRELATION_ID = "messaging.message.conversation_id"
_NANOSECONDS = 1_000_000_000


class Tracing:
    """Emits spans for settled groups of messages."""

    def __init__(self, url: str, node: int) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": SERVICE, "service.instance.id": str(node)})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS, schedule_delay_millis=1000)
        )
        self._tracer = self._provider.get_tracer(SERVICE)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def of(cls, settings: Settings) -> "Tracing | None":
        """Build the exporter from the settings; None if they name no collector."""
        return cls(settings.signals_traces_url, settings.signals_node) if settings.signals_traces_url else None

    def emit_spans(self, disposition: Disposition, now: datetime) -> None:
        """Emit the spans of a group acknowledged at `now`. Does not block."""
        for received, attributes in _outcomes(disposition):
            self._emit_span(received, attributes, now)

    def close(self) -> None:
        """Flush pending spans, within the export timeout. Blocks."""
        self._provider.shutdown()

    def _emit_span(self, received: Received, attributes: dict[str, Any], now: datetime) -> None:
        """Emit the span of one message, which ends at `now`; with error status if the message was refused or has expired."""
        from opentelemetry.trace import SpanKind, StatusCode

        parent = received.header(TRACEPARENT)
        span = self._tracer.start_span(
            f"{received.queue} process",
            self._propagator.extract({TRACEPARENT: parent}) if parent else None,
            SpanKind.CONSUMER,
            _messaging_attributes(received) | attributes,
            start_time=_ns(received.at),
        )
        refusal_code = attributes.get("manifold.code")
        if refusal_code is not None:
            span.set_status(StatusCode.ERROR, refusal_code)
        span.end(max(_ns(now), _ns(received.at)))  # not before its start, even if the clock was set back


def _outcomes(disposition: Disposition) -> Iterator[tuple[Received, dict[str, Any]]]:
    """Yield each message of a group with its outcome attributes, except copies of dead letters that were already recorded."""
    yield from _accepted_outcomes(disposition.claimed, "processed")
    yield from _accepted_outcomes(disposition.duplicates, "duplicate")
    for outcome, refused_messages in (("refused", disposition.refused), ("expired", disposition.expired)):
        for refused in refused_messages:
            yield refused.received, {"manifold.outcome": outcome} | _refusal_attributes(refused)
    for received, why in disposition.to_retry:
        yield received, {"manifold.outcome": "retried", "manifold.reason": why}


def _accepted_outcomes(messages: Iterable[Accepted], outcome: str) -> Iterator[tuple[Received, dict[str, Any]]]:
    """Yield accepted messages with their outcome attributes; the outcome of a processed device status is "status"."""
    for message in messages:
        is_processed_status = message.received.is_status and outcome == "processed"
        attributes = {
            "manifold.outcome": "status" if is_processed_status else outcome,
            "manifold.device_id": message.parsed.device_id,
        }
        if message.correlation_id:
            attributes[CORRELATION_ID] = message.correlation_id
        yield message.received, attributes


def _refusal_attributes(refused: Refused) -> dict[str, Any]:
    attributes: dict[str, Any] = {"manifold.code": refused.refusal.code.value, "manifold.reason": refused.refusal.message}
    if refused.stated.devices:
        attributes["manifold.device_id"] = ",".join(refused.stated.devices)
    if refused.stated.correlation_id:
        attributes[CORRELATION_ID] = refused.stated.correlation_id
    return attributes


def _messaging_attributes(received: Received) -> dict[str, Any]:
    """Return the attributes that OpenTelemetry's conventions for messaging define. They contain nothing of the payload."""
    attributes: dict[str, Any] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": received.queue,
        "messaging.message.body.size": len(received.body),
        "manifold.retry_count": received.retry_count,
    }
    if received.correlation_id:
        attributes[CORRELATION_ID] = received.correlation_id
    return attributes


def _ns(at: datetime) -> int:
    """Return nanoseconds since 1970 UTC."""
    return int(at.timestamp() * _NANOSECONDS)
