"""Spans of the service as a collector gets them: a real OTLP/HTTP receiver with the protocol's own library."""

import gzip
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from manifold.contracts.signals import topology
from manifold.settings import Settings
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.support.servers import ROOT, Server, free_port, wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(ThreadingHTTPServer):
    """Accept OTLP over HTTP and keep the spans."""

    daemon_threads = True

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", 0), _Taking)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest()
        request.ParseFromString(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        spans = [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
        self.server.spans += [_read(span) for span in spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Suppress request logging."""


def _read(span: Any) -> dict[str, Any]:
    about = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
    return about | {"trace": span.trace_id.hex(), "parent": span.parent_span_id.hex(), "name": span.name, "ms": ms}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        threading.Thread(target=made.serve_forever, name="collector").start()
        try:
            yield made
        finally:
            made.shutdown()


@pytest.fixture
def door_at(tmp_path: Path, rabbitmq: Settings, own_redis: Server, gateway: Gateway) -> Iterator[Any]:
    """Start a service with this collector URL."""
    made: list[Door] = []

    def start(url: str) -> Door:
        made.append(Door(tmp_path / f"home-{len(made)}", rabbitmq, own_redis.port, signals_traces_url=url))
        made[-1].start()
        return made[-1]

    gateway.purge()
    yield start
    for door in made:
        door.stop()


def test_each_message_is_a_span_with_its_correlation_id_and_outcome(door_at: Any, collector: Collector, gateway: Gateway) -> None:
    door_at(collector.url)
    good, stale = body_of("traced"), body_of("stale")
    headers = {"traced": signed(good, device="traced"), "stale": signed(stale, device="stale", timestamp=now_text(-8000))}
    gateway.send(good, headers["traced"] | {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    gateway.get(topology.PROCESSED)
    gateway.send(good, headers["traced"])
    gateway.send(stale, headers["stale"])
    wait_until(lambda: len(collector.spans) == 3, what="three spans")

    by_outcome = {span["manifold.outcome"]: span for span in collector.spans}
    assert set(by_outcome) == {"processed", "duplicate", "refused"}
    processed, refused = by_outcome["processed"], by_outcome["refused"]
    assert (processed["trace"], processed["parent"]) == (TRACE, PARENT)
    assert by_outcome["duplicate"]["trace"] != TRACE
    assert processed["name"] == "xray.raw.v1 process"
    assert processed["messaging.message.conversation_id"] == headers["traced"]["x-correlation-id"]
    assert refused["messaging.message.conversation_id"] == headers["stale"]["x-correlation-id"]
    assert (processed["manifold.device_id"], refused["manifold.code"]) == ("traced", "STALE_ERROR")
    assert processed["messaging.message.body.size"] == len(good)
    assert all(span["ms"] >= 0 for span in collector.spans)


def test_the_last_spans_are_sent_on_shutdown(door_at: Any, collector: Collector, gateway: Gateway) -> None:
    door = door_at(collector.url)
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    wait_until(lambda: gateway.count(topology.RAW) == 0)
    door.stop()

    assert [span["manifold.outcome"] for span in collector.spans] == ["processed"]


def test_an_unreachable_collector_and_invalid_trace_headers_block_nothing(door_at: Any, gateway: Gateway) -> None:
    door = door_at(f"http://127.0.0.1:{free_port()}/v1/traces")
    for traceparent in ("no trace", "", b"\xff\xfe", 7, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 10_000):
        body = body_of("anyhow")
        gateway.send(body, signed(body, device="anyhow") | {"traceparent": traceparent})
        gateway.get(topology.PROCESSED)

    door.stop()
    assert "Traceback" not in door.log
    assert len(door.recorded()) == 6


def test_a_service_without_a_collector_loads_no_tracing_library() -> None:
    names = ("opentelemetry.exporter", "opentelemetry.sdk.trace")
    program = f"import sys, manifold.signals._service; print([name for name in sys.modules if name.startswith({names})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
