"""Spans, one for each message, for an OTLP collector; off unless a setting names one. The door never waits for the collector.

A span lasts from delivery to acknowledgement, and belongs to the trace that the header `traceparent` names, if there is one.
The library is loaded only if spans are on.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from manifold.settings import Settings
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._received import Accepted, Received

SERVICE = "manifold-signals"
EXPORT_S = 2  # that the collector may take for spans, also for the last ones
MAX_QUEUED_SPANS = 8192  # spans; what a collector that is away or slow leaves beyond that is dropped
TRACEPARENT = "traceparent"
CONVERSATION = "messaging.message.conversation_id"
_NANOSECONDS = 1_000_000_000


class Tracing:
    """Tells spans of groups of messages that are settled."""

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
        """To the collector of the settings; None: they name none."""
        return cls(settings.signals_traces_url, settings.signals_node) if settings.signals_traces_url else None

    def tell(self, fate: Disposition, now: datetime) -> None:
        """The spans of a group that was acknowledged at `now`. Returns at once."""
        for received, attributes in _ended(fate):
            self._span(received, attributes, now)

    def close(self) -> None:
        """Send what waits, for as long as the collector may take. Blocks."""
        self._provider.shutdown()

    def _span(self, received: Received, attributes: dict[str, Any], now: datetime) -> None:
        from opentelemetry.trace import SpanKind, StatusCode

        given = received.header(TRACEPARENT)
        span = self._tracer.start_span(
            f"{received.queue} process",
            self._propagator.extract({TRACEPARENT: given}) if given else None,
            SpanKind.CONSUMER,
            _about(received) | attributes,
            start_time=_ns(received.at),
        )
        if "manifold.code" in attributes:
            span.set_status(StatusCode.ERROR, attributes["manifold.code"])
        span.end(max(_ns(now), _ns(received.at)))


def _ended(fate: Disposition) -> Iterator[tuple[Received, dict[str, Any]]]:
    """Each message of a group, and how it ended."""
    yield from _known(fate.taken, "processed")
    yield from _known(fate.duplicates, "duplicate")
    for outcome, some in (("refused", fate.refused), ("expired", fate.expired)):
        for one in some:
            yield one.received, {"manifold.outcome": outcome} | _why(one)
    for received, why in fate.later:
        yield received, {"manifold.outcome": "retried", "manifold.reason": why}


def _known(messages: Iterable[Accepted], outcome: str) -> Iterator[tuple[Received, dict[str, Any]]]:
    for message in messages:
        outcome_of = "status" if message.received.is_status and outcome == "processed" else outcome
        about = {"manifold.outcome": outcome_of, "manifold.device_id": message.said.device_id}
        if message.correlation_id:
            about[CONVERSATION] = message.correlation_id
        yield message.received, about


def _why(one: Refused) -> dict[str, Any]:
    said: dict[str, Any] = {"manifold.code": one.refusal.code.value, "manifold.reason": one.refusal.message}
    if one.claims.devices:
        said["manifold.device_id"] = ",".join(one.claims.devices)
    return said | ({CONVERSATION: one.claims.correlation_id} if one.claims.correlation_id else {})


def _about(received: Received) -> dict[str, Any]:
    """By OpenTelemetry's names for messages; nothing of the payload."""
    about: dict[str, Any] = {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": received.queue,
        "messaging.message.body.size": len(received.body),
        "manifold.retry_count": received.retry_count,
    }
    return about | ({CONVERSATION: received.correlation_id} if received.correlation_id else {})


def _ns(at: datetime) -> int:
    """Nanoseconds since 1970 UTC."""
    return int(at.timestamp() * _NANOSECONDS)
