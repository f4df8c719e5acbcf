"""One client connection through the tap: forwards bytes unchanged, except denied filters, and shows them to a `SessionObserver`.

Each packet is observed before it is forwarded, and its events are handed to the event publisher first. The client's packets after
its CONNECT wait until the CONNACK is forwarded, so that the `connected` event precedes all other events of the session.

Reading from one side pauses while the other side is slow. Reading from the broker also pauses while the CONNACK waits for its
`connected` event to be confirmed, and reading from the client while too many events wait.
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
# Reasons for pausing a side, as bit flags.
_NOT_DIALLED, _OTHER_SIDE_SLOW, EVENTS_WAIT, _CONNACK_HELD, _BEFORE_CONNACK = 1, 2, 4, 8, 16

log = structlog.get_logger(__name__)


class Dial(Protocol):
    """Connects to Mosquitto, at the listener that serves the user name."""

    async def __call__(self, factory: Callable[[], asyncio.Protocol], username: str | None) -> object:
        """Connect, and raise OSError if nothing listens."""


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
        self.observer = SessionObserver(proxy.sessions, self._release_connack)
        self.client = Side(self._from_client, self._client_lost, self._client_made, self._client_slow)
        self.broker = Side(self._from_broker, self._broker_lost, self._broker_made, self._broker_slow)
        self._for_broker = bytearray()  # observed client bytes that wait for the connection to the broker
        self._dialled = self._client_gone = False
        self._connack = bytearray()  # the broker's bytes up to the CONNACK, not forwarded yet
        self._after_connack = bytearray()  # the broker's bytes after the CONNACK, not observed yet
        self._after_connect = bytearray()  # the client's bytes after the CONNECT, not observed yet
        self._opening = True  # until the CONNACK is forwarded
        self._client_heard_at = self._loop.time()
        self._first_packet_timeout: asyncio.TimerHandle | None = None

    # ---- client → broker

    def _client_made(self) -> None:
        self._proxy.accepted += 1
        self._proxy.connections.add(self)
        if self.client.transport is not None:
            self._admission.identify(self.client.transport.get_extra_info("peercert"))
        if self._proxy.events_full:
            self.client.pause(EVENTS_WAIT)
        self._first_packet_timeout = self._loop.call_later(FIRST_PACKET_S, self.client.close)

    def _from_client(self, data: bytes) -> None:
        """Observe the client's bytes and forward them; after the first packet, connect to the broker."""
        proxy, observer = self._proxy, self.observer
        self._client_heard_at = self._loop.time()
        proxy.bytes_up += len(data)
        is_first_data = not self._dialled and not self._for_broker
        if is_first_data and data[0] >> 4 != CONNECT:
            observer.up.unobserved = True  # not MQTT: the broker will reject it at once
        if self._opening and self._has_connect() and not observer.up.unobserved:
            self._keep_until_connack(data)
            return
        data = self._observe_client_bytes(data)
        proxy.sessions.store.flush()
        if self.broker.transport is not None:
            self.broker.transport.write(data)
            return
        self._for_broker += data  # there is no connection to the broker yet
        is_first_packet_known = self._has_connect() or observer.up.unobserved
        if is_first_packet_known and not self._dialled:
            self._dialled = True
            self._admit_and_dial()

    def _has_connect(self) -> bool:
        """Whether the client's CONNECT has arrived."""
        return self.observer.stage is not Stage.NEW

    def _admit_and_dial(self) -> None:
        """Refuse the client, or start to connect to the broker; meanwhile reading from the client pauses."""
        connect = self.observer.connect_packet
        problem = self._admission.problem_with(connect)
        if problem is not None:
            connack = self._admission.refuse(connect, problem)
            if self.client.transport is not None and connack:
                self.client.transport.write(connack)
            self.client.close()
            return
        if self._first_packet_timeout is not None:
            self._first_packet_timeout.cancel()
        self.client.pause(_NOT_DIALLED)
        dialling = self._proxy.dialling
        task = self._loop.create_task(self._dial(), name="tap.dial")
        dialling.add(task)
        task.add_done_callback(dialling.discard)

    def _observe_client_bytes(self, data: bytes) -> bytes:
        """Observe the client's bytes, and return those to forward now; keep the bytes after the CONNECT."""
        observer = self.observer
        forwarded, rest = observer.up.observe(
            data,
            # A later packet may have to be replaced as a whole; the CONNECT never is.
            holds_incomplete=lambda: not observer.up.unobserved and self._has_connect(),
            is_enough=lambda: self._opening and self._has_connect(),  # the bytes after the CONNECT must wait
        )
        if rest:
            self._keep_until_connack(rest)
        return forwarded

    def _keep_until_connack(self, data: bytes) -> None:
        """Keep the client's bytes, unobserved, and pause reading from the client until the CONNACK is forwarded."""
        self._after_connect += data
        self.client.pause(_BEFORE_CONNACK)

    def abort_if_revoked(self) -> None:
        """Abort the connection if its certificate has expired or was revoked; the broker sees a lost connection."""
        if self._admission.has_certificate_become_invalid() and self.client.transport is not None:
            self.client.transport.abort()

    async def _dial(self) -> None:
        """Connect to the broker. If that fails, disconnect the client."""
        connect = self.observer.connect_packet  # None: the client does not speak MQTT
        username = connect.username if connect else None
        try:
            await self._proxy.dial(lambda: self.broker, username)
        except OSError as exc:
            client_id = connect.client_id if connect else None
            log.warning("client disconnected: the tap cannot connect to the broker", client=client_id, reason=str(exc))
            self._broker_lost()

    def _broker_made(self) -> None:
        """Send the client's bytes that have waited for this connection. Close it if the client has left meanwhile."""
        assert self.broker.transport is not None
        self.broker.transport.write(bytes(self._for_broker))
        self._for_broker.clear()
        self.client.resume(_NOT_DIALLED)
        if self._client_gone:
            self.broker.close()

    def _client_lost(self) -> None:
        if self._first_packet_timeout is not None:
            self._first_packet_timeout.cancel()
        self._client_gone = True
        self._proxy.connections.discard(self)
        self.observer.client_closed()
        self.broker.resume(_CONNACK_HELD | _OTHER_SIDE_SLOW)  # without a client, these reasons would never end
        self.broker.close()
        self._proxy.sessions.store.flush()

    def _client_slow(self, is_slow: bool) -> None:
        """Pause reading from the broker while the client's write buffer is full."""
        if is_slow:
            self.broker.pause(_OTHER_SIDE_SLOW)
        else:
            self.broker.resume(_OTHER_SIDE_SLOW)

    # ---- broker → client

    def _from_broker(self, data: bytes) -> None:
        """Forward the broker's bytes, or keep them until the CONNACK is forwarded."""
        self._proxy.bytes_down += len(data)
        if not self._opening:
            self._forward_to_client(data)
        elif self.observer.holds_connack:
            self._after_connack += data
        else:
            self._look_for_connack(data)

    def _forward_to_client(self, data: bytes) -> None:
        """Observe the broker's bytes after the CONNACK, and forward them."""
        observer = self.observer
        data, _ = observer.down.observe(data, holds_incomplete=lambda: observer.must_complete_packet, is_enough=_never)
        self._proxy.sessions.store.flush()
        if self.client.transport is not None:
            self.client.transport.write(data)

    def _look_for_connack(self, data: bytes) -> None:
        """Buffer the broker's bytes until the CONNACK is complete; release it then, unless its event must be confirmed first."""
        observer = self.observer
        observed = observer.down.feed(data)
        self._connack += data[:observed]
        self._after_connack += data[observed:]
        if observer.holds_connack:
            self.broker.pause(_CONNACK_HELD)
        elif observer.stage is not Stage.CONNECTING or observer.down.unobserved:  # the CONNACK is complete, or these are not MQTT
            self._release_connack()
        elif self._connack[0] >> 4 != CONNACK:  # an authentication exchange, which this Mosquitto does not support
            observer.down.unobserved = True
            self._release_connack()
        # Otherwise the CONNACK is incomplete: wait for the rest of it.

    def _release_connack(self) -> None:
        """Forward the CONNACK, then the bytes of broker and client that have waited for it."""
        if not self._opening:
            return
        self._opening = False
        connack, after_connack = bytes(self._connack), bytes(self._after_connack)
        self._connack.clear()
        self._after_connack.clear()
        if self.client.transport is not None:
            self.client.transport.write(connack)
        if after_connack:
            self._forward_to_client(after_connack)
        self.broker.resume(_CONNACK_HELD)
        after_connect = bytes(self._after_connect)
        self._after_connect.clear()
        if after_connect and not self._client_gone:
            self._from_client(after_connect)
        self.client.resume(_BEFORE_CONNACK)

    def _broker_slow(self, is_slow: bool) -> None:
        """Pause reading from the client while the broker's write buffer is full."""
        if is_slow:
            self.client.pause(_OTHER_SIDE_SLOW)
        else:
            self.client.resume(_OTHER_SIDE_SLOW)

    def _broker_lost(self) -> None:
        """Disconnect the client, with the DISCONNECT that EMQX would send, if any."""
        silent_for_s = self._loop.time() - self._client_heard_at
        reason_code = self.observer.broker_closed(silent_for_s)
        if reason_code is not None and self.client.transport is not None:
            self.client.transport.write(packet(DISCONNECT << 4, bytes((reason_code,))))
        self.client.close()

    def close(self) -> None:
        """Close both sides."""
        self.client.close()
        self.broker.close()


def _never() -> bool:
    return False
