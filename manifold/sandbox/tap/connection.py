"""One client connection through the tap: forwards bytes unchanged, except denied filters, and shows them to a `SessionObserver`.

Packets after the CONNECT wait until the CONNACK is forwarded, so that the session's event precedes all events in it.

Each packet is observed before it is forwarded, with its events already at the event publisher. Reading from a side pauses while
the other side is slow, while a CONNACK waits for its `connected` event to reach the broker, and while too many events wait.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from manifold.sandbox.tap.admission import Admission
from manifold.sandbox.tap.identity import Certificates, Rule
from manifold.sandbox.tap.observer import SessionObserver, Stage
from manifold.sandbox.tap.packets import packet
from manifold.sandbox.tap.scanner import CONNACK, CONNECT, DISCONNECT
from manifold.sandbox.tap.sessions import Sessions
from manifold.sandbox.tap.side import Side

FIRST_PACKET_S = 30.0  # timeout for a client's CONNECT
_NOT_DIALLED, _SLOW, EVENTS_WAIT, _CONNACK_HELD, _EARLY = 1, 2, 4, 8, 16  # reasons for not reading a side, as bit flags

log = structlog.get_logger(__name__)


class Dial(Protocol):
    """Connects to the Mosquitto listener for the user name."""

    async def __call__(self, factory: Callable[[], asyncio.Protocol], username: str | None) -> object:
        """Raises OSError if nothing listens."""


class Connections(Protocol):
    """State shared by all connections."""

    sessions: Sessions
    dial: Dial
    loop: asyncio.AbstractEventLoop
    connections: "set[ProxiedConnection]"
    dialling: set[asyncio.Task[None]]
    events_full: bool
    accepted: int
    bytes_up: int
    bytes_down: int


class ProxiedConnection:
    """One client connection through the tap."""

    def __init__(self, proxy: Connections, rule: Rule | None = None, certificates: Certificates | None = None) -> None:
        self._proxy, self._loop = proxy, proxy.loop
        self._admission = Admission(rule, certificates)
        self.observer = SessionObserver(proxy.sessions, self._release)
        self.client = Side(self._from_client, self._client_lost, self._client_made, self._client_slow)
        self.broker = Side(self._from_broker, self._broker_lost, self._broker_made, self._broker_slow)
        self._first = bytearray()  # client bytes buffered until the broker is connected
        self._dialled = self._client_gone = False
        self._held = bytearray()  # a CONNACK that is not forwarded yet
        self._after = bytearray()  # unobserved broker bytes after it
        self._early = bytearray()  # unobserved client bytes after the CONNECT
        self._opening = True  # no CONNACK forwarded yet
        self._heard_at = self._loop.time()
        self._patience: asyncio.TimerHandle | None = None

    # ---- client → broker

    def _client_made(self) -> None:
        self._proxy.accepted += 1
        self._proxy.connections.add(self)
        if self.client.transport is not None:
            self._admission.identify(self.client.transport.get_extra_info("peercert"))
        if self._proxy.events_full:
            self.client.pause(EVENTS_WAIT)
        self._patience = self._loop.call_later(FIRST_PACKET_S, self.client.close)

    def _from_client(self, data: bytes) -> None:
        """Observe bytes of the client and pass them on; its first packet decides whether the broker is dialled."""
        proxy, observer = self._proxy, self.observer
        self._heard_at = self._loop.time()
        proxy.bytes_up += len(data)
        if not self._dialled and not self._first and data[0] >> 4 != CONNECT:
            observer.up.unobserved = True  # not MQTT: the broker will reject it at once
        if self._opening and observer.stage is not Stage.NEW and not observer.up.unobserved:
            self._wait_with(data)
            return
        data = self._seen_of(data)
        proxy.sessions.store.flush()
        if self.broker.transport is not None:
            self.broker.transport.write(data)
            return
        self._first += data
        if not self._dialled and (observer.stage is not Stage.NEW or observer.up.unobserved):
            self._dialled = True
            if not self._admission.admits(observer.asked):
                answer = self._admission.refusal(observer.asked)
                if self.client.transport is not None and answer:
                    self.client.transport.write(answer)
                self.client.close()
                return
            if self._patience is not None:
                self._patience.cancel()
            self.client.pause(_NOT_DIALLED)
            task = self._loop.create_task(self._dial(), name="tap.dial")
            proxy.dialling.add(task)
            task.add_done_callback(proxy.dialling.discard)

    def _seen_of(self, data: bytes) -> bytes:
        observer = self.observer
        gone, early = observer.up.take(
            data,
            hold=lambda: not observer.up.unobserved and observer.stage is not Stage.NEW,
            until=lambda: self._opening and observer.stage is not Stage.NEW,
        )
        if early:
            self._wait_with(early)
        return gone

    def _wait_with(self, early: bytes) -> None:
        self._early += early
        self.client.pause(_EARLY)

    def cut_if_refused(self) -> None:
        """Abort the connection if its certificate is no longer valid; for the broker the connection is lost."""
        if self._admission.has_lapsed() and self.client.transport is not None:
            self.client.transport.abort()

    async def _dial(self) -> None:
        asked = self.observer.asked
        try:
            await self._proxy.dial(lambda: self.broker, asked.username if asked else None)
        except OSError as exc:
            log.warning("client dropped: no connection to the broker", client=asked.client_id if asked else None, reason=str(exc))
            self._broker_lost()

    def _broker_made(self) -> None:
        assert self.broker.transport is not None
        self.broker.transport.write(bytes(self._first))
        self._first.clear()
        self.client.resume(_NOT_DIALLED)
        if self._client_gone:
            self.broker.close()

    def _client_lost(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._client_gone = True
        self._proxy.connections.discard(self)
        self.observer.client_closed()
        self.broker.resume(_CONNACK_HELD | _SLOW)
        self.broker.close()
        self._proxy.sessions.store.flush()

    def _client_slow(self, slow: bool) -> None:
        self.broker.pause(_SLOW) if slow else self.broker.resume(_SLOW)

    # ---- broker → client

    def _from_broker(self, data: bytes) -> None:
        self._proxy.bytes_down += len(data)
        if self._opening:
            self._open(data)
        else:
            self._pass_down(data)

    def _pass_down(self, data: bytes) -> None:
        observer = self.observer
        data, _ = observer.down.take(data, hold=lambda: observer.completes, until=_never)
        self._proxy.sessions.store.flush()
        if self.client.transport is not None:
            self.client.transport.write(data)

    def _open(self, data: bytes) -> None:
        """Hold everything until the CONNACK is complete and its event confirmed; reading pauses meanwhile."""
        if self.observer.held:
            self._after += data
        else:
            self._look_for_connack(data)

    def _look_for_connack(self, data: bytes) -> None:
        observer = self.observer
        seen = observer.down.feed(data)
        self._held += data[:seen]
        self._after += data[seen:]
        if observer.held:
            self.broker.pause(_CONNACK_HELD)
        elif observer.stage is not Stage.ASKED or observer.down.unobserved:
            self._release()
        elif self._held[0] >> 4 != CONNACK:  # an authentication exchange, which this Mosquitto does not support
            observer.down.unobserved = True
            self._release()

    def _release(self) -> None:
        """Pass on the held CONNACK, then what came behind it in both directions."""
        if not self._opening:
            return
        self._opening = False
        held, after = bytes(self._held), bytes(self._after)
        self._held.clear()
        self._after.clear()
        if self.client.transport is not None:
            self.client.transport.write(held)
        if after:
            self._pass_down(after)
        self.broker.resume(_CONNACK_HELD)
        early = bytes(self._early)
        self._early.clear()
        if early and not self._client_gone:
            self._from_client(early)
        self.client.resume(_EARLY)

    def _broker_slow(self, slow: bool) -> None:
        self.client.pause(_SLOW) if slow else self.client.resume(_SLOW)

    def _broker_lost(self) -> None:
        code = self.observer.broker_closed(self._loop.time() - self._heard_at)
        if code is not None and self.client.transport is not None:
            self.client.transport.write(packet(DISCONNECT << 4, bytes((code,))))
        self.client.close()

    def close(self) -> None:
        """Close both sides."""
        self.client.close()
        self.broker.close()


def _never() -> bool:
    return False
