"""An independent gateway that uses only the contract and pika, and a signals service for one test."""

import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError

from manifold.archive.journal import SUFFIX
from manifold.archive.recorded import RecordedSegments
from manifold.archive.records import read_journal
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.signals import topology
from manifold.contracts.signals.rights import RIGHTS
from manifold.lake.key_ring import new_key_line
from manifold.messaging.amqp import USER, connection_url, password_file
from manifold.runtime import secret_files
from manifold.settings import Settings, load_settings
from tests.support.platforms import variables
from tests.support.servers import Server, answers, free_port, start_service, wait_until

NODES = itertools.count(1)
SECRET = "a-secret-of-the-tests"
FOREIGN = "foreign binding delivers messages"  # part of the log message about such messages


def now_text(offset_s: float = 0) -> str:
    at = datetime.now(UTC) + timedelta(seconds=offset_s)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body_of(device: str = "device-1", payload: bytes = b'{"readings": []}', **more: Any) -> bytes:
    said = {"deviceId": device, "capturedAt": now_text(), "payload": base64.b64encode(payload).decode(), "schemaVersion": "v1"}
    return json.dumps(said | more).encode()


def signed(
    body: bytes, *, device: str = "device-1", secret: str = SECRET, timestamp: str = "", nonce: str = ""
) -> dict[str, Any]:
    """The headers of a signed message."""
    timestamp, nonce = timestamp or now_text(), nonce or os.urandom(16).hex()
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    text = f"algorithm=sha256&deviceId={device}&nonce={nonce}&payload={digest}&timestamp={timestamp}"
    return {
        "x-hmac-signature": hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest(),
        "x-timestamp-auth": timestamp,
        "x-nonce": nonce,
        "x-algorithm": "sha256",
        "x-correlation-id": str(uuid.uuid4()),
    }


class Gateway:
    """A RabbitMQ client that confirms its publishes."""

    def __init__(self, settings: Settings, as_user: str = USER) -> None:
        url = f"{connection_url(settings, as_user=as_user)}?heartbeat=0"
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel: BlockingChannel = self._connection.channel()
        self.channel.confirm_delivery()

    def close(self) -> None:
        if self._connection.is_open:
            with contextlib.suppress(AMQPConnectionError):  # closed by the server
                self._connection.close()

    def send(self, body: bytes, headers: dict[str, Any], *, queue: str = topology.RAW, **properties: Any) -> None:
        self.publish(topology.EXCHANGE, queue, body, headers, **properties)

    def publish(self, exchange: str, key: str, body: bytes, headers: dict[str, Any], **properties: Any) -> None:
        about = pika.BasicProperties(headers=headers, **({"content_type": "application/json", "delivery_mode": 2} | properties))
        self.channel.basic_publish(exchange, key, body, about, mandatory=True)

    def send_signed(self, body: bytes | None = None, *, device: str = "device-1", **properties: Any) -> dict[str, Any]:
        body = body_of(device) if body is None else body
        headers = signed(body, device=device)
        self.send(body, headers, **properties)
        return headers

    def get(self, queue: str, *, within_s: float = 30, take: bool = True) -> tuple[Any, bytes]:
        """The next message of the queue, removed or requeued: its properties and its body."""

        def look() -> tuple[Any, bytes] | None:
            method, properties, body = self.channel.basic_get(queue, auto_ack=take)
            if method is not None and not take:
                self.channel.basic_nack(method.delivery_tag, requeue=True)
            return None if method is None else (properties, body or b"")

        found = wait_until(look, within_s=within_s, what=f"a message in {queue}")
        assert found is not None
        return found

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def purge(self) -> None:
        """Declare what an earlier test has deleted, and empty all queues."""
        for exchange, kind in topology.EXCHANGES.items():
            self.channel.exchange_declare(exchange, kind, durable=True)
        for queue in topology.QUEUES:
            self.channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
            self.channel.queue_bind(queue.name, queue.exchange, queue.key)
            self.channel.queue_purge(queue.name)


class Door:
    """A signals service in its own home, with a given RabbitMQ and Redis."""

    def __init__(self, home: Path, rabbitmq: Settings, redis_port: int, **more: Any) -> None:
        found = {secret_files.HMAC: SECRET, secret_files.KEYS: new_key_line("k1")}
        found |= {file: secret_files.read(rabbitmq.home, file) for file in map(password_file, (USER, *RIGHTS))}
        for name, text in found.items():
            secret_files.get_or_create(home, name, lambda text=text: text)  # type: ignore[misc]
        own = {
            "home": home,
            "signals_port": free_port(),
            "redis_port": redis_port,
            "amqp_port": rabbitmq.amqp_port,
            "signals_node": next(NODES),  # a restarted service keeps its number
            "segment_max_seconds": 600,
            "journal_retry_seconds": 0.2,
        }
        self.settings = load_settings(**(own | more))
        self._more = {name: value for name, value in (own | more).items() if name != "home"}
        self.server: Server | None = None
        self.after = 0  # hides records up to this seq

    def with_settings(self, **more: Any) -> "Door":
        """The same with other settings, before its start."""
        self.settings = self.settings.model_copy(update=more)
        self._more |= more
        return self

    def start(self, *, healthy: bool = True) -> Server:
        url = f"{self.settings.signals}/healthz"
        self.server = start_service(
            "manifold.signals",
            port=self.settings.signals_port,
            log=self.home / "door.log",
            env=self.environment,
            ready=(lambda: answers(url)) if healthy else None,
        )
        return self.server

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()

    @property
    def environment(self) -> dict[str, str]:
        """Its settings as an environment for another process."""
        return variables(**self._more, home=self.home)

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def log(self) -> str:
        return (self.home / "door.log").read_text()

    def recorded(self, stream: Stream = Stream.XRAY_RAW) -> list[Envelope]:
        """The envelopes in journal and archive, by seq."""
        found = [e for file in self.settings.signals_journal_folder.glob(f"*{SUFFIX}") for e in read_journal(file).envelopes()]
        segments = RecordedSegments(Archive(self.settings.archive))
        found += segments.recorded_since(stream, 0)
        return sorted({e.seq: e for e in found if e.stream is stream and e.seq > self.after}.values(), key=lambda e: e.seq)

    def sees_only_what_comes(self) -> None:
        """Hide everything recorded so far."""
        self.after = max(
            (e.seq for stream in (Stream.XRAY_RAW, Stream.XRAY_STATUS) for e in self.recorded(stream)), default=self.after
        )
