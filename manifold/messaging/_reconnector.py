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
from manifold.messaging._connection import Connection, Endpoint, TakeRaw, open_connection

_CONNACK_WAIT_S = 10.0
_GOODBYE_WAIT_S = 2.0
_KEEPALIVE_LOOK_S = 1.0
# Two clients with the same id disconnect each other, and a broker may disconnect a client that sends unsupported packets. The
# pause before reconnecting, which grows while connections are short-lived, prevents a reconnect storm.
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
SHORT_LIVED_S = 10.0
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
        """Return the encoded CONNECT packet."""
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
    """Maintains one connection at a time. `up` receives whether the broker kept the session; `down` is called after a loss.

    `take` receives packets, `take_raw` undecodable ones. A clean start is requested until it succeeds once; later connections
    resume the session.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: ConnectOptions,
        *,
        take: Callable[[mqtt5.Packet], None],
        take_raw: TakeRaw,
        up: Callable[[bool], None],
        down: Callable[[], None],
    ) -> None:
        self.endpoint, self.connected = endpoint, asyncio.Event()
        self.number = 0  # of the connection; increments with each one
        self.connection: Connection | None = None  # None unless connected
        self.largest = MAX_PACKET_BYTES  # the broker's maximum packet size in bytes
        self._options, self._take, self._take_raw, self._up, self._down = options, take, take_raw, up, down
        self._clean_start = options.clean_start
        self._opened: Connection | None = None  # open, perhaps before its CONNACK
        self._lost = asyncio.Event()
        self._paused = False
        self._why_lost = ""  # why the last connection was refused or lost; empty while it is open
        self.problem = ""  # error of the last attempt
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
        connection = self._opened
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
        """Stop reading, on this connection and later ones, until `resume`."""
        self._paused = True
        if self.connection is not None:
            self.connection.pause()

    def resume(self) -> None:
        """Resume reading."""
        self._paused = False
        if self.connection is not None:
            self.connection.resume()

    async def _keep_connected(self) -> None:
        pause_s = _LEAST_PAUSE_S
        while True:
            pauses = wait_exponential_jitter(multiplier=0.1, max=10, jitter=0.3)
            async for attempt in AsyncRetrying(
                wait=pauses, retry=retry_if_exception_type(Retryable), before_sleep=self._log_attempt
            ):
                with attempt:
                    await self._connect()
            began = time.monotonic()
            await self._lost.wait()
            pause_s = pause_after_loss(pause_s, time.monotonic() - began)
            await asyncio.sleep(pause_s)

    async def _connect(self) -> None:
        self._lost.clear()
        self._why_lost = ""
        self._opened = connection = await open_connection(self.endpoint, self._take_any, self._take_any_raw, self._on_lost)
        connection.send(self._options.packet(clean_start=self._clean_start))
        waits = [asyncio.create_task(self.connected.wait()), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(waits, timeout=_CONNACK_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.connected.is_set():
            if not self._lost.is_set():  # before `abort`, after which it is a closed connection
                self._why_lost = self._why_lost or f"no CONNACK within {_CONNACK_WAIT_S:g} s"
            connection.abort()
            await self._lost.wait()
            raise Retryable(f"{self.endpoint} did not accept {self._options.client_id}: {self._why_lost}")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_LOOK_S)
            if self.connection is not None:
                self.connection.keepalive(self._options.keepalive_s)

    def _log_attempt(self, state: RetryCallState) -> None:
        self.problem = str(state.outcome.exception() if state.outcome else None)
        log.warning("mqtt not connected", client=self._options.client_id, attempt=state.attempt_number, reason=self.problem)

    def _take_any(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.ConnAckPacket():
                self._on_answer(packet)
            case mqtt5.DisconnectPacket(reason_code=reason):
                self._why_lost = reason.name.lower()
            case _:
                self._take(packet)

    def _take_any_raw(self, packet: bytes, why: str) -> None:
        match packet[0] >> 4:
            case _raw.CONNACK:
                self._why_lost = f"its answer cannot be read: {why}"
                if self._opened is not None:
                    self._opened.abort()
            case _raw.DISCONNECT:
                self._why_lost = f"reason {_raw.reason_of_disconnect(packet):#x}"
            case _:
                self._take_raw(packet, why)

    def _on_answer(self, answer: mqtt5.ConnAckPacket) -> None:
        if answer.reason_code != mqtt5.ConnAckReasonCode.SUCCESS:  # the broker closes the connection
            self._why_lost = answer.reason_code.name.lower()
            return
        self._clean_start = False
        self.number += 1
        self.connection, self.largest = self._opened, answer.max_packet_size or MAX_PACKET_BYTES
        self.connected.set()
        log.info("mqtt connected", client=self._options.client_id, session_present=answer.session_present)
        self._up(answer.session_present)
        if self._paused and self.connection is not None:
            self.connection.pause()

    def _on_lost(self, reason: str) -> None:
        self._why_lost = self._why_lost or reason
        if self.connected.is_set():
            log.info("mqtt disconnected", client=self._options.client_id, reason=self._why_lost)
        self.connection = self._opened = None
        self.connected.clear()
        self._lost.set()
        self._down()


def pause_after_loss(before_s: float, lived_s: float) -> float:
    """Return the seconds before the next connection; `lived_s`: lifetime of the lost one, `before_s`: the previous pause."""
    return _LEAST_PAUSE_S if lived_s > SHORT_LIVED_S else min(2 * before_s, _LONGEST_PAUSE_S)
