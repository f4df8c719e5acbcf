"""Keeps an MQTT 5 client connected: connects, detects silence, and reconnects after every loss."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import mqtt5
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from manifold.contracts.errors import Retryable
from manifold.messaging import _raw
from manifold.messaging._connection import Connection, Endpoint, PacketHandler, UndecodableHandler, open_connection

_CONNACK_WAIT_S = 10.0
_GOODBYE_WAIT_S = 2.0
_KEEPALIVE_CHECK_S = 1.0
# Two clients with the same id disconnect each other, and a broker may disconnect a client that sends unsupported packets. The
# pause before reconnecting, which grows while connections are short-lived, prevents a reconnect storm.
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
SHORT_LIVED_S = 10.0  # a connection that lasted no longer counts as short-lived
MAX_PACKET_BYTES = (1 << 28) + 4  # maximum packet size of MQTT, in bytes

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """The fields of a CONNECT packet."""

    client_id: str
    username: str | None
    password: str | None
    clean_start: bool
    session_expiry_s: int
    receive_maximum: int
    keepalive_s: int

    def packet(self, *, clean_start: bool) -> bytes:
        """Return the encoded CONNECT packet. The argument `clean_start` replaces the field of that name."""
        return mqtt5.ConnectPacket(
            self.client_id,
            username=self.username,
            password=None if self.password is None else self.password.encode(),
            clean_start=clean_start,
            keep_alive=self.keepalive_s,
            session_expiry_interval=self.session_expiry_s,
            receive_max=self.receive_maximum,
        ).write()


class Reconnector:
    """Maintains one connection at a time.

    `on_packet` receives the decodable packets, and `on_undecodable` the others. `on_up` is called for each accepted connection
    with whether the broker kept the session, and `on_down` after each loss. A clean start is requested until the broker first
    accepts a connection; later connections resume the session.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectOptions,
        *,
        on_packet: PacketHandler,
        on_undecodable: UndecodableHandler,
        on_up: Callable[[bool], None],
        on_down: Callable[[], None],
    ) -> None:
        self.endpoint, self.connected = endpoint, asyncio.Event()
        self.number = 0  # number of the current or last connection, counted from 1
        self.connection: Connection | None = None  # the connection that the broker has accepted; None if there is none
        self.max_packet_bytes = MAX_PACKET_BYTES  # the maximum packet size that the broker accepts
        self._options = options
        self._on_packet, self._on_undecodable, self._on_up, self._on_down = on_packet, on_undecodable, on_up, on_down
        self._clean_start = options.clean_start
        self._open_connection: Connection | None = None  # as `connection`, but set before the broker has accepted it
        self._lost = asyncio.Event()
        self._paused = False
        self._why_lost = ""  # why the last connection was refused or lost; empty while it is open
        self.problem = ""  # error of the last failed attempt to connect; empty if none has failed
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start connecting in the background."""
        name = self._options.client_id
        self._tasks = [
            asyncio.create_task(self._keep_connected(), name=f"mqtt.connection.{name}"),
            asyncio.create_task(self._keep_alive(), name=f"mqtt.keepalive.{name}"),
        ]

    async def stop(self) -> None:
        """Send DISCONNECT and close the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connection = self._open_connection
        if connection is not None:
            connection.send(mqtt5.DisconnectPacket().write())
            connection.close()
            try:
                async with asyncio.timeout(_GOODBYE_WAIT_S):
                    await self._lost.wait()
            except TimeoutError:
                connection.abort()
                await self._lost.wait()

    def pause(self) -> None:
        """Stop reading from this connection and all later connections, until `resume` is called."""
        self._paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._paused = False
        if self.connection is not None:
            self.connection.resume()

    async def _keep_connected(self) -> None:
        """Connect, with retries until it succeeds, and connect again after each loss."""
        pause_s = _MIN_PAUSE_S
        while True:
            retry_wait = wait_exponential_jitter(multiplier=0.1, max=10, jitter=0.3)
            async for attempt in AsyncRetrying(
                wait=retry_wait, retry=retry_if_exception_type(Retryable), before_sleep=self._record_failure
            ):
                with attempt:
                    await self._connect()
            connected_at = time.monotonic()
            await self._lost.wait()
            pause_s = pause_after_loss(pause_s, lifetime_s=time.monotonic() - connected_at)
            await asyncio.sleep(pause_s)

    async def _connect(self) -> None:
        """Open a connection and wait until the broker accepts it; raises Retryable otherwise."""
        self._lost.clear()
        self._why_lost = ""
        connection = await open_connection(self.endpoint, self._handle_packet, self._handle_undecodable, self._on_lost)
        self._open_connection = connection
        connection.send(self._options.packet(clean_start=self._clean_start))
        waiters = [asyncio.create_task(self.connected.wait()), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(waiters, timeout=_CONNACK_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        if not self.connected.is_set():
            if not self._lost.is_set() and not self._why_lost:
                # Set before `abort`, after which `_on_lost` would set "connection closed" as the reason.
                self._why_lost = f"no CONNACK within {_CONNACK_WAIT_S:g} s"
            connection.abort()
            await self._lost.wait()
            raise Retryable(f"{self.endpoint} did not accept {self._options.client_id}: {self._why_lost}")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_CHECK_S)
            if self.connection is not None:
                self.connection.keepalive(self._options.keepalive_s)

    def _record_failure(self, state: RetryCallState) -> None:
        """Store and log the error of a failed attempt to connect."""
        self.problem = str(state.outcome.exception() if state.outcome else None)
        log.warning(
            "mqtt connection failed; retrying",
            client=self._options.client_id,
            broker=str(self.endpoint),
            attempt=state.attempt_number,
            reason=self.problem,
        )

    def _handle_packet(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.ConnAckPacket():
                self._on_connack(packet)
            case mqtt5.DisconnectPacket(reason_code=reason):  # the broker closes the connection
                self._why_lost = reason.name.lower()
            case _:
                self._on_packet(packet)

    def _handle_undecodable(self, packet: bytes, reason: str) -> None:
        """Note why the connection ends if this is a CONNACK or DISCONNECT; pass on any other packet."""
        match packet[0] >> 4:
            case _raw.CONNACK:
                self._why_lost = f"its answer cannot be read: {reason}"
                if self._open_connection is not None:
                    self._open_connection.abort()
            case _raw.DISCONNECT:
                self._why_lost = f"reason {_raw.reason_of_disconnect(packet):#x}"
            case _:
                self._on_undecodable(packet, reason)

    def _on_connack(self, connack: mqtt5.ConnAckPacket) -> None:
        """Store an accepted connection and call `on_up`; for a refused connection, store the reason."""
        if connack.reason_code != mqtt5.ConnAckReasonCode.SUCCESS:  # the broker closes the connection
            self._why_lost = connack.reason_code.name.lower()
            return
        self._clean_start = False
        self.number += 1
        self.connection = self._open_connection
        self.max_packet_bytes = connack.max_packet_size or MAX_PACKET_BYTES
        self.connected.set()
        client, broker = self._options.client_id, str(self.endpoint)
        log.info("mqtt connected", client=client, broker=broker, session_present=connack.session_present)
        self._on_up(connack.session_present)
        if self._paused and self.connection is not None:  # None if the connection was lost during `on_up`
            self.connection.pause()

    def _on_lost(self, reason: str) -> None:
        """Handle the end of the open connection, whether or not the broker had accepted it.

        `reason` counts only if no packet of the broker has told a better one.
        """
        self._why_lost = self._why_lost or reason
        if self.connected.is_set():
            log.info("mqtt disconnected", client=self._options.client_id, broker=str(self.endpoint), reason=self._why_lost)
        self.connection = self._open_connection = None
        self.connected.clear()
        self._lost.set()
        self._on_down()


def pause_after_loss(last_pause_s: float, lifetime_s: float) -> float:
    """Return the seconds to wait before reconnecting, after a connection that lasted `lifetime_s`.

    The pause doubles with each short-lived connection. `last_pause_s` is the pause before the lost connection.
    """
    if lifetime_s > SHORT_LIVED_S:
        return _MIN_PAUSE_S
    return min(2 * last_pause_s, _MAX_PAUSE_S)
