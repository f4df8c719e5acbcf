"""The load of the door: signals signed beforehand, and published from another process by a minimal AMQP client.

A client library would cost as much for each message as the door does, and dominate the measurement.
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
MAX_WAITING = 5000  # in the queue; a longer one would be a memory alarm of RabbitMQ, which then blocks the door, too
MESSAGES_PER_WRITE = 50
READ_BYTES = 1 << 16
PAYLOAD_BYTES = 600  # for a body of about 1 KB
LARGE_BYTES = 786_000  # 1,048,000 characters in base64
_CHANNEL = 1
_AROUND_FRAME = 8  # bytes
LOOK_S = 0.05  # between two looks at the queue


class BarePublisher:
    """A connection to RabbitMQ that publishes frames and counts confirms."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672))
        self._read = b""
        self._confirmed = 0
        self._depths: list[int] = []  # messages in the queue, as RabbitMQ has answered
        self._socket.sendall(header.ProtocolHeader().marshal())
        self._expect(commands.Connection.Start)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._say(commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US"), 0)
        tune: Any = self._expect(commands.Connection.Tune)
        self.frame_max = tune.frame_max
        self._say(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0)
        self._say(commands.Connection.Open("/"), 0)
        self._expect(commands.Connection.OpenOk)
        self._say(commands.Channel.Open(), _CHANNEL)
        self._expect(commands.Channel.OpenOk)
        self._say(commands.Confirm.Select(), _CHANNEL)
        self._expect(commands.Confirm.SelectOk)

    def close(self) -> None:
        """Close the socket without the AMQP handshake."""
        self._socket.close()

    def packed(self, message: SignalMessage) -> bytes:
        """Return the frames of one message."""
        about = commands.Basic.Properties(
            content_type="application/json", delivery_mode=2, headers=dict[str, Any](message.headers)
        )
        room = self.frame_max - _AROUND_FRAME
        parts = [message.body[start : start + room] for start in range(0, len(message.body), room)]
        frames: list[Any] = [
            commands.Basic.Publish(exchange=topology.EXCHANGE, routing_key=topology.RAW),
            header.ContentHeader(0, len(message.body), about),
            *map(body.ContentBody, parts),
        ]
        return b"".join(frame.marshal(one, _CHANNEL) for one in frames)

    def publish(self, packed: Sequence[bytes]) -> None:
        """Publish messages, as many as the consumers take; return when RabbitMQ has confirmed each."""
        first, sent = self._confirmed, 0
        while sent < len(packed):
            if sent % MAX_UNCONFIRMED == 0:
                self._wait_for_consumers()
            while sent - (self._confirmed - first) >= MAX_UNCONFIRMED:
                self._hear()
            self._socket.sendall(b"".join(packed[sent : sent + MESSAGES_PER_WRITE]))
            sent = min(sent + MESSAGES_PER_WRITE, len(packed))
        while self._confirmed - first < len(packed):
            self._hear()

    def _wait_for_consumers(self) -> None:
        """Return when fewer than `MAX_WAITING` messages wait in the queue."""
        while True:
            self._say(commands.Queue.Declare(queue=topology.RAW, passive=True), _CHANNEL)
            while not self._depths:
                self._hear()
            if self._depths.pop() < MAX_WAITING:
                return
            time.sleep(LOOK_S)

    def _say(self, command: Any, channel: int) -> None:
        self._socket.sendall(frame.marshal(command, channel))

    def _expect(self, kind: type[Any]) -> Any:
        while True:
            for found in self._frames():
                if isinstance(found, kind):
                    return found
            self._fill()

    def _hear(self) -> None:
        """Read what RabbitMQ says next: confirms, or how many messages wait."""
        self._fill()
        for found in self._frames():
            match found:
                case commands.Basic.Ack():
                    self._confirmed = found.delivery_tag  # confirms every message up to this one
                case commands.Queue.DeclareOk():
                    self._depths.append(found.message_count or 0)

    def _fill(self) -> None:
        came = self._socket.recv(READ_BYTES)
        if not came:
            raise ConnectionError("RabbitMQ has ended the connection")
        self._read += came

    def _frames(self) -> Iterator[Any]:
        while len(self._read) >= 7 and len(self._read) >= 8 + int.from_bytes(self._read[3:7], "big"):
            size, _, found = frame.unmarshal(self._read)
            self._read = self._read[size:]
            yield found


def load(
    url: str, secret: str, count: int, *, seed: int, payload_bytes: int = PAYLOAD_BYTES
) -> AbstractContextManager[Connection]:
    """Run a process that sends its messages as soon as it receives anything, and then its CPU seconds."""
    return in_a_process(_main, url, secret, count, seed, payload_bytes)


def _main(pipe: Connection, url: str, secret: str, count: int, seed: int, payload_bytes: int) -> None:
    publisher = BarePublisher(url)
    packed = [publisher.packed(message) for message in signals(secret, count, seed=seed, payload_bytes=payload_bytes)]
    pipe.send(None)
    pipe.recv()
    began = time.process_time()
    publisher.publish(packed)
    pipe.send(time.process_time() - began)
    pipe.recv()  # until this process is ended


def signals(secret: str, count: int, *, seed: int, payload_bytes: int = PAYLOAD_BYTES) -> Iterable[SignalMessage]:
    """Return valid signals of a hundred devices, signed now."""
    mix = SignalMix(seed, 100, secret, shares=ONLY_GOOD, payload_bytes=payload_bytes)
    return mix.messages(count, datetime.now(UTC))
