"""Tracing: one span per message, sent to an OTLP collector. Off by default; the door never waits for the collector.

A span lasts from delivery to acknowledgement, and joins the trace of the `traceparent` header, if there is one.
The OpenTelemetry library is only imported if tracing is on.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from manifold.settings import Settings
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._received import Accepted, Received

SERVICE = "manifold-signals"
EXPORT_S = 2  # timeout of an export, including the last one on shutdown
MAX_QUEUED_SPANS = 8192  # spans beyond this are dropped if the collector is slow or unavailable
TRACEPARENT = "traceparent"
CONVERSATION = "messaging.message.conversation_id"
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
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
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
        for received, attributes in _ended(disposition):
            self._span(received, attributes, now)

    def close(self) -> None:
        """Flush pending spans, within the export timeout. Blocks."""
        self._provider.shutdown()

    def _span(self, received: Received, attributes: dict[str, Any], now: datetime) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        given = received.header(TRACEPARENT)
        span = self._tracer.start_span(
            f"{received.queue} process",
            self._propagator.extract({TRACEPARENT: given}) if given else None,
            SpanKind.CONSUMER,
            _messaging_attributes(received) | attributes,
            start_time=_ns(received.at),
        )
        if "manifold.code" in attributes:
            span.set_status(StatusCode.ERROR, attributes["manifold.code"])
        span.end(max(_ns(now), _ns(received.at)))


def _ended(disposition: Disposition) -> Iterator[tuple[Received, dict[str, Any]]]:
    """Yield each message of a group with its outcome attributes."""
    yield from _known(disposition.taken, "processed")
    yield from _known(disposition.duplicates, "duplicate")
    for outcome, some in (("refused", disposition.refused), ("expired", disposition.expired)):
        for one in some:
            yield one.received, {"manifold.outcome": outcome} | _why(one)
    for received, why in disposition.later:
        yield received, {"manifold.outcome": "retried", "manifold.reason": why}


def _known(messages: Iterable[Accepted], outcome: str) -> Iterator[tuple[Received, dict[str, Any]]]:
    for message in messages:
        outcome_of = "status" if message.received.is_status and outcome == "processed" else outcome
        attributes = {"manifold.outcome": outcome_of, "manifold.device_id": message.parsed.device_id}
        if message.correlation_id:
            attributes[CONVERSATION] = message.correlation_id
        yield message.received, attributes


def _why(one: Refused) -> dict[str, Any]:
    said: dict[str, Any] = {"manifold.code": one.refusal.code.value, "manifold.reason": one.refusal.message}
    if one.stated.devices:
        said["manifold.device_id"] = ",".join(one.stated.devices)
    return said | ({CONVERSATION: one.stated.correlation_id} if one.stated.correlation_id else {})


def _messaging_attributes(received: Received) -> dict[str, Any]:
    """Return attributes by OpenTelemetry's messaging conventions; nothing of the payload."""
    attributes: dict[str, Any] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": received.queue,
        "messaging.message.body.size": len(received.body),
        "manifold.retry_count": received.retry_count,
    }
    return attributes | ({CONVERSATION: received.correlation_id} if received.correlation_id else {})


def _ns(at: datetime) -> int:
    """Return nanoseconds since 1970 UTC."""
    return int(at.timestamp() * _NANOSECONDS)
