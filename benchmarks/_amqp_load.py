"""The load of the door: signals that are signed beforehand, and published by a minimal AMQP client in another process.

A client library would need as much CPU for each message as the door does, and would dominate the measurement.
"""

import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote, urlsplit

from pamqp import body, commands, frame, header

from benchmarks._servers import in_a_process
from manifold.contracts.signals import topology
from manifold.sandbox.fleet.gateways import ONLY_GOOD, SignalMessage, SignalMix

MAX_UNCONFIRMED = 1000  # messages
MAX_WAITING = 5000  # messages in the queue; far more would raise a memory alarm, and RabbitMQ would block the door, too
MESSAGES_PER_WRITE = 50
READ_BYTES = 1 << 16
PAYLOAD_BYTES = 600  # for a body of about 1 KB
LARGE_BYTES = 786_000  # 1,048,000 characters in base64
_CHANNEL = 1
_FRAME_OVERHEAD = 8  # bytes of a frame that are not content
POLL_S = 0.05  # between two checks of the queue's length


class BarePublisher:
    """A connection to RabbitMQ that publishes frames and counts confirms."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672))
        self._buffer = b""
        self._confirmed = 0
        self._depths: list[int] = []  # RabbitMQ's replies: messages in the queue
        self._socket.sendall(header.ProtocolHeader().marshal())
        self._expect(commands.Connection.Start)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._send(commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"), 0)
        tune: Any = self._expect(commands.Connection.Tune)
        self.frame_max = tune.frame_max
        self._send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self._send(commands.Connection.Open("/"), 0)
        self._expect(commands.Connection.OpenOk)
        self._send(commands.Channel.Open(), _CHANNEL)
        self._expect(commands.Channel.OpenOk)
        self._send(commands.Confirm.Select(), _CHANNEL)
        self._expect(commands.Confirm.SelectOk)

    def close(self) -> None:
        """Close the socket without the AMQP handshake."""
        self._socket.close()

    def packed(self, message: SignalMessage) -> bytes:
        """Return the frames of one message."""
        properties = commands.Basic.Properties(
            content_type="application/json", delivery_mode=2, headers=dict[str, Any](message.headers)
        )
        max_content = self.frame_max - _FRAME_OVERHEAD
        parts = [message.body[start : start + max_content] for start in range(0, len(message.body), max_content)]
        frames: list[Any] = [
            commands.Basic.Publish(exchange=topology.EXCHANGE, routing_key=topology.RAW),
            header.ContentHeader(0, len(message.body), properties),
            *map(body.ContentBody, parts),
        ]
        return b"".join(frame.marshal(content, _CHANNEL) for content in frames)

    def publish(self, packed: Sequence[bytes]) -> None:
        """Publish messages no faster than the consumers take them; return once RabbitMQ has confirmed each message."""
        confirmed_before = self._confirmed
        sent = 0
        while sent < len(packed):
            if sent % MAX_UNCONFIRMED == 0:
                self._wait_for_consumers()
            while sent - (self._confirmed - confirmed_before) >= MAX_UNCONFIRMED:
                self._process_replies()
            self._socket.sendall(b"".join(packed[sent : sent + MESSAGES_PER_WRITE]))
            sent = min(sent + MESSAGES_PER_WRITE, len(packed))
        while self._confirmed - confirmed_before < len(packed):
            self._process_replies()

    def _wait_for_consumers(self) -> None:
        """Return once fewer than `MAX_WAITING` messages wait in the queue."""
        while True:
            self._send(commands.Queue.Declare(queue=topology.RAW, passive=True), _CHANNEL)
            while not self._depths:
                self._process_replies()
            if self._depths.pop() < MAX_WAITING:
                return
            time.sleep(POLL_S)

    def _send(self, command: Any, channel: int) -> None:
        self._socket.sendall(frame.marshal(command, channel))

    def _expect(self, kind: type[Any]) -> Any:
        """Read frames until one is of this kind, and return it."""
        while True:
            for content in self._frames():
                if isinstance(content, kind):
                    return content
            self._fill_buffer()

    def _process_replies(self) -> None:
        """Wait for data from RabbitMQ and process it: confirms, and lengths of the queue."""
        self._fill_buffer()
        for content in self._frames():
            match content:
                case commands.Basic.Ack():
                    self._confirmed = content.delivery_tag  # RabbitMQ confirms every message up to this tag
                case commands.Queue.DeclareOk():
                    self._depths.append(content.message_count or 0)

    def _fill_buffer(self) -> None:
        received = self._socket.recv(READ_BYTES)
        if not received:
            raise ConnectionError("RabbitMQ has ended the connection")
        self._buffer += received

    def _frames(self) -> Iterator[Any]:
        """Remove and yield the complete frames of the buffer; bytes 3 to 6 of a frame are the size of its content."""
        while len(self._buffer) >= 7 and len(self._buffer) >= _FRAME_OVERHEAD + int.from_bytes(self._buffer[3:7], "big"):
            size, _, content = frame.unmarshal(self._buffer)
            self._buffer = self._buffer[size:]
            yield content


def load(
    url: str, secret: str, count: int, *, seed: int, payload_bytes: int = PAYLOAD_BYTES
) -> AbstractContextManager[Connection]:
    """Run a process that publishes its messages once the caller sends anything to its pipe.

    After the last confirm, the process sends its CPU seconds.
    """
    return in_a_process(_main, url, secret, count, seed, payload_bytes)


def _main(pipe: Connection, url: str, secret: str, count: int, seed: int, payload_bytes: int) -> None:
    publisher = BarePublisher(url)
    packed = [publisher.packed(message) for message in signals(secret, count, seed=seed, payload_bytes=payload_bytes)]
    pipe.send(None)
    pipe.recv()
    cpu_before_s = time.process_time()
    publisher.publish(packed)
    pipe.send(time.process_time() - cpu_before_s)
    pipe.recv()  # blocks until the parent ends this process


def signals(secret: str, count: int, *, seed: int, payload_bytes: int = PAYLOAD_BYTES) -> Iterable[SignalMessage]:
    """Return valid signals of a hundred devices, signed now."""
    mix = SignalMix(seed, 100, secret, shares=ONLY_GOOD, payload_bytes=payload_bytes)
    return mix.messages(count, datetime.now(UTC))
