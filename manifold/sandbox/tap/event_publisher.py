"""The tap's own connection to Mosquitto, for publishing events.

It only publishes, with QoS 1 over MQTT 3.1.1. `manifold.messaging.mqtt` would not do: an event must be written to the socket in
the same turn of the event loop, before the packet that caused it is forwarded, and may delay that packet by a few microseconds
only.

No event is lost while the process lives: unconfirmed events are resent, in order, on the next connection.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import cast

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from manifold.sandbox.tap.packets import packet, string
from manifold.sandbox.tap.scanner import CONNACK, PUBACK, Malformed, PublishHead, Scanner
from manifold.settings.embedded_broker import TAP_USERNAME

CLIENT_ID, USERNAME = b"sdv-tap", TAP_USERNAME.encode()
WINDOW = 4096  # maximum number of events that are sent and not yet confirmed
HIGH_WATERMARK, LOW_WATERMARK = 20_000, 10_000  # unconfirmed events at which reading from clients pauses and resumes
_KEEPALIVE_S = 30
_CONNECT_WAIT_S = 5.0
_PINGREQ = bytes((0xC0, 0))
_CONNECT = packet(0x10, string(b"MQTT") + bytes((4, 0x82)) + _KEEPALIVE_S.to_bytes(2) + string(CLIENT_ID) + string(USERNAME))

log = structlog.get_logger(__name__)
Done = Callable[[], None]
Body = tuple[bytes, bytes]  # length-prefixed topic, payload
Factory = Callable[[], asyncio.Protocol]
Dial = Callable[[Factory], Awaitable[object]]


class EventPublisher:
    """Publishes events in order, at least once.

    Calls `on_full(True)` when more than HIGH_WATERMARK events are unconfirmed, and `on_full(False)` when fewer than
    LOW_WATERMARK are left.
    """

    def __init__(self, dial: Dial, on_full: Callable[[bool], None]) -> None:
        self._dial, self._on_full = dial, on_full
        self._unconfirmed: dict[int, tuple[Body, Done | None]] = {}  # sent events by packet id, in sending order
        self._waiting: deque[tuple[Body, Done | None]] = deque()  # events that are not sent yet
        self._last_mid = 0  # packet id of the last event sent
        self._connection: _BrokerConnection | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.full = False
        self.confirmed = 0  # events
        self.reconnects = -1  # connections after the first; -1: never connected

    @property
    def connected(self) -> bool:
        """Whether the broker connection is up."""
        return self._connection is not None

    @property
    def backlog(self) -> int:
        """Number of events that the broker has not confirmed, sent or not."""
        return len(self._unconfirmed) + len(self._waiting)

    def publish(self, topic: bytes, payload: bytes, done: Done | None = None) -> None:
        """Publish an event; `done` is called when the broker has confirmed it."""
        body = string(topic), payload
        if self._connection is not None and len(self._unconfirmed) < WINDOW:
            self._send(body, done)
        else:
            self._waiting.append((body, done))
        self._idle.clear()
        if not self.full and self.backlog > HIGH_WATERMARK:
            self.full = True
            self._on_full(True)

    async def run(self) -> None:
        """Stay connected, until cancelled."""
        pause = wait_exponential_jitter(multiplier=0.05, max=1.0)
        async for attempt in AsyncRetrying(retry=retry_if_exception_type(OSError), wait=pause, after=_report):
            with attempt:
                await self._run_connection(attempt.retry_state)

    async def drain(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds until all events are confirmed; return whether they are."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _run_connection(self, retry_state: RetryCallState) -> None:
        """Connect, publish the waiting events, and keep the connection alive. Always raises OSError, when the connection ends.

        Once the broker has accepted the connection, its loss counts as the first failure, so that pauses are short again.
        """
        connection = _BrokerConnection(self._on_confirmed)
        await self._dial(lambda: connection)
        try:
            async with asyncio.timeout(_CONNECT_WAIT_S):
                await connection.accepted
            retry_state.attempt_number = 1
            self.reconnects += 1
            self._resume(connection)
            while not connection.closed.done():
                await asyncio.wait({connection.closed}, timeout=_KEEPALIVE_S / 2)
                connection.ping()
        except TimeoutError as exc:
            raise ConnectionError(f"no CONNACK within {_CONNECT_WAIT_S:g} s") from exc
        finally:
            self._connection = None
            connection.abort()
        raise ConnectionError("closed by the broker")

    def _resume(self, connection: "_BrokerConnection") -> None:
        """Use a new connection: resend the unconfirmed events, then send waiting ones."""
        self._connection = connection
        for mid, (body, _) in self._unconfirmed.items():
            connection.write(_publish_packet(body, mid, dup=True))
        self._send_waiting()

    def _send(self, body: Body, done: Done | None) -> None:
        """Send an event with the next packet id, from 1 to 65,535, that is not in use."""
        assert self._connection is not None
        mid = self._last_mid % 0xFFFF + 1
        while mid in self._unconfirmed:
            mid = mid % 0xFFFF + 1
        self._last_mid = mid
        self._unconfirmed[mid] = body, done
        self._connection.write(_publish_packet(body, mid))

    def _send_waiting(self) -> None:
        while self._waiting and len(self._unconfirmed) < WINDOW:
            self._send(*self._waiting.popleft())

    def _on_confirmed(self, mid: int) -> None:
        """Handle the broker's PUBACK: call the event's `done`, and send waiting events, for which there is room now."""
        sent_event = self._unconfirmed.pop(mid, None)
        self.confirmed += 1
        if sent_event is not None:
            _, done = sent_event
            if done is not None:
                done()
        if self._waiting and self._connection is not None:
            self._send_waiting()
        if self.full and self.backlog < LOW_WATERMARK:
            self.full = False
            self._on_full(False)
        if not self._unconfirmed and not self._waiting:
            self._idle.set()


class _BrokerConnection(asyncio.Protocol):
    """One connection to the broker."""

    def __init__(self, on_confirmed: Callable[[int], None]) -> None:
        self._on_confirmed = on_confirmed
        self._scanner = Scanner(frozenset({CONNACK, PUBACK}), self._handle_packet, _ignore)
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not derive from asyncio.Transport
        self._transport.write(_CONNECT)

    def data_received(self, data: bytes) -> None:
        try:
            self._scanner.feed(data)
        except Malformed:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.accepted.done():
            self.accepted.set_exception(exc or ConnectionError("closed before its CONNACK"))
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def ping(self) -> None:
        self.write(_PINGREQ)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _handle_packet(self, kind: int, body: bytes) -> None:
        """Handle a PUBACK, or the CONNACK, whose second byte is the return code: 0 if the broker has accepted the connection."""
        if kind == PUBACK:
            mid = int.from_bytes(body[:2])
            self._on_confirmed(mid)
        elif not self.accepted.done():
            return_code = body[1]
            if return_code:
                self.accepted.set_exception(ConnectionError(f"the broker refuses {CLIENT_ID.decode()} with code {return_code}"))
            else:
                self.accepted.set_result(None)


def _publish_packet(body: Body, mid: int, *, dup: bool = False) -> bytes:
    """Build a PUBLISH with QoS 1, with or without the dup flag."""
    topic, payload = body
    first_byte = 0x3A if dup else 0x32
    return packet(first_byte, topic + mid.to_bytes(2) + payload)


def _ignore(head: PublishHead, crc: int, size: int) -> None:
    """Do nothing: the publisher has no subscriptions."""


def _report(state: RetryCallState) -> None:
    """Log that there is no connection, but not the further failures to reconnect."""
    if state.attempt_number <= 1 and state.outcome is not None:
        log.warning("event publisher not connected to the broker; reconnecting", reason=str(state.outcome.exception()))
