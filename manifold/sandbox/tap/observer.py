"""Observes the packets of one connection in both directions and emits EMQX's events. Pure: bytes in, events out.

Some connections are silent: they cause no events, and only their PUBLISHes to vehicles are observed. These are the connections of
services, and of clients whose id cannot be part of a topic.
"""

import secrets
from collections.abc import Callable
from enum import Enum, auto

from manifold.contracts.names import is_service
from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap import events
from manifold.sandbox.tap.message_tracker import NO_PROPERTIES, MessageTracker
from manifold.sandbox.tap.packets import Connect, packet, read_connack, read_connect, read_disconnect
from manifold.sandbox.tap.passage import Passage
from manifold.sandbox.tap.properties import Properties
from manifold.sandbox.tap.scanner import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBREC,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Scanner,
)
from manifold.sandbox.tap.sessions import Sessions, session_expiry_s
from manifold.sandbox.tap.subscription_rights import SubscriptionRights
from manifold.sandbox.tap.topic_syntax import fault_of_name
from manifold.settings.embedded_broker import MAX_INFLIGHT, SESSION_MAX_S

KEEPALIVE_FACTOR = 1.5  # a broker disconnects a client that sends nothing for this multiple of its keep-alive

# Reason codes of the DISCONNECT that EMQX sends before it closes, but Mosquitto does not; by EMQX's name of the reason.
_EMQX_DISCONNECT_CODES = {"takenover": 0x8E, "discarded": 0x8E, "keepalive_timeout": 0x8D}

# Packet types to observe on an open connection. PUBLISH is not among them: `Scanner.wanted` selects PUBLISHes by topic.
_FROM_SERVICE = frozenset({SUBSCRIBE, UNSUBSCRIBE})
_TO_SERVICE = frozenset({PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT})
_FROM_VEHICLE = frozenset({PUBACK, PUBREC, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT})
_TO_VEHICLE = frozenset({PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT})


class Stage(Enum):
    """The stage of a connection."""

    NEW = auto()  # before the CONNECT
    CONNECTING = auto()  # between CONNECT and CONNACK
    OPEN = auto()
    ENDED = auto()  # refused, closed, or taken over: emits no more events


class SessionObserver:
    """Observes one connection. The client's bytes must pass through `up`, and the broker's through `down`.

    When the connection ends, call `client_closed`, `broker_closed` or `tap_closes`. While `holds_connack` is true, the CONNACK
    must not be forwarded; `release_connack` is called when it may be.
    """

    def __init__(self, sessions: Sessions, release_connack: Callable[[], None]) -> None:
        self._sessions, self._release_connack = sessions, release_connack
        self._messages = MessageTracker(sessions)
        self._client = Scanner(frozenset({CONNECT}), self._on_client_packet, self._messages.on_client_publish)
        self._broker = Scanner(frozenset({CONNACK}), self._on_broker_packet, self._messages.on_broker_publish)
        self._messages.scanners = self._client, self._broker
        self.stage = Stage.NEW
        self.connect_packet: Connect | None = None
        self.client_id = ""
        self.is_silent = True
        self.holds_connack = False
        self._rights = SubscriptionRights(sessions.rights)
        self.up, self.down = Passage(self._client), Passage(self._broker)
        self._expiry_s = self._connected_at_ms = 0
        self._broker_reason: str | None = None  # in the DISCONNECT that the broker has sent; None: it has sent none
        self._end_reason: str | None = None  # in the disconnected event; None: no event was emitted

    # ---- start and end of the connection

    def _on_connect(self, connect: Connect) -> None:
        """Handle the CONNECT: store its fields, and observe the client's further packets."""
        self.connect_packet = connect
        self.stage = Stage.CONNECTING
        self.client_id = self._messages.client_id = connect.client_id
        self._messages.version = self._client.version = self._broker.version = connect.version
        self._client.stop()  # the bytes after the CONNECT are not observed before the CONNACK is forwarded
        self._client.kinds = _FROM_VEHICLE
        self._client.wanted = self._is_wanted_publish
        self._client.computes_crc = True
        self._sessions.register(self)

    def _on_connack(self, body: bytes) -> None:
        """Handle the CONNACK: open the session unless it was refused, and choose the packets to observe from now on."""
        connect = self.connect_packet
        self._broker.stop()  # the bytes after the CONNACK are not observed before it is forwarded
        if connect is None or self.stage is not Stage.CONNECTING:
            return  # the connection has ended meanwhile, or had no CONNECT
        self._sessions.unregister(self)
        session_present, reason, props = read_connack(body, self._messages.version)
        if reason:
            self.stage = Stage.ENDED
            return
        self.stage, self._messages.is_open = Stage.OPEN, True
        # Before MQTT 5 a client never learns the id that the broker generates for it, so any id that nobody else has will do.
        self.client_id = self.client_id or props.get("Assigned-Client-Identifier") or f"auto-{secrets.token_hex(16)}"
        self._messages.client_id = self.client_id
        self.is_silent = is_service(self.client_id) or not events.is_valid_topic_suffix(self.client_id)
        if self.is_silent:
            self._client.kinds, self._broker.kinds = _FROM_SERVICE, _TO_SERVICE
            return
        self._broker.kinds = _TO_VEHICLE
        self._broker.wanted = self._sessions.is_request
        self._broker.computes_crc = self._messages.version < 5  # on MQTT 5 deliveries are matched by user properties
        self._open_session(connect, session_present, props)

    def _open_session(self, connect: Connect, session_present: bool, connack_properties: Properties) -> None:
        """Begin or resume the session, emit the connected event, and hold the CONNACK until the event is confirmed."""
        self._expiry_s = session_expiry_s(connect, connack_properties)
        self._messages.session = self._sessions.begin(
            self,
            self.client_id,
            self._messages.version,
            session_present=session_present,
            clean_start=connect.clean_start,
        )
        self._connected_at_ms = now_ms = self._sessions.now_ms()
        receive_maximum = min(connect.properties.get("Receive-Maximum", MAX_INFLIGHT), MAX_INFLIGHT)
        self.holds_connack = True
        fields = events.connected(now_ms, self.client_id, connect, self._expiry_s, receive_maximum)
        self._sessions.emit(BrokerEvent.CONNECTED, self.client_id, fields, self._on_connected_confirmed)

    def _on_connected_confirmed(self) -> None:
        self.holds_connack = False
        self._release_connack()

    def taken_over(self, clean_start: bool) -> None:
        """End this connection, because the broker has accepted a newer one with its client id.

        `clean_start`: whether the newer connection has discarded the session.
        """
        self._end("discarded" if clean_start else "takenover", NO_PROPERTIES, keep_session=True)

    def client_closed(self) -> None:
        """Handle the end of the connection by the client."""
        self._end("tcp_closed", NO_PROPERTIES)

    def broker_closed(self, silent_for_s: float) -> int | None:
        """Handle the end of the connection by the broker, `silent_for_s` seconds after the client's last bytes.

        Returns the reason code of the DISCONNECT to send to the client first, as EMQX would. None: send none, because EMQX would
        send none, the broker has sent one itself, or the client does not use MQTT 5.
        """
        newer_connections = self._sessions.awaiting_connack.get(self.client_id, [])
        newest = newer_connections[-1] if newer_connections else None
        if newest is not None and newest is not self and newest.connect_packet is not None:
            # A newer CONNECT with this client id makes the broker close the older connection.
            self.taken_over(newest.connect_packet.clean_start)
        else:
            self._end(self._broker_reason or self._probable_reason(silent_for_s), NO_PROPERTIES)
        if self._messages.version < 5 or self._broker_reason is not None:
            return None
        return _EMQX_DISCONNECT_CODES.get(self._end_reason or "")

    def _probable_reason(self, silent_for_s: float) -> str:
        """Return EMQX's name of the most probable reason for which the broker closed without a DISCONNECT."""
        if self._rights.fault is not None:
            return events.reason_name(self._rights.fault)
        if self.up.unobserved:  # the client's bytes were not MQTT
            return "protocol_error"
        keepalive_s = self.connect_packet.keepalive_s if self.connect_packet else 0  # 0: the client may be silent forever
        is_overdue = keepalive_s > 0 and silent_for_s >= keepalive_s * KEEPALIVE_FACTOR
        return "keepalive_timeout" if is_overdue else "internal_error"

    def tap_closes(self) -> None:
        """Handle the end of the connection by the tap itself, which is stopping."""
        self._end("server_shutting_down", NO_PROPERTIES)

    def _end(self, reason: str, props: Properties, *, keep_session: bool = False) -> None:
        """End the connection, once; if it was open and is not silent, emit a disconnected event and release its session.

        `props` are the properties of the client's DISCONNECT. With `keep_session` the session outlives the connection at least by
        a second, because a newer connection is about to resume it.
        """
        self._sessions.unregister(self)
        was_open = self.stage is Stage.OPEN
        self.stage = Stage.ENDED
        self._messages.is_open = False
        if not was_open:
            return
        self._end_reason = reason
        session = self._messages.session
        if session is None:
            return  # the connection is silent
        now_ms = self._sessions.now_ms()
        fields = events.disconnected(now_ms, self.client_id, self._messages.version, reason, props, self._connected_at_ms)
        self._sessions.emit(BrokerEvent.DISCONNECTED, self.client_id, fields, None)
        if session.holder is self:
            minimum_s = 1 if keep_session else 0
            self._sessions.end(session, max(self._expiry_s, minimum_s))

    # ---- packets of the client

    def _on_client_packet(self, kind: int, body: bytes) -> None:
        if kind == CONNECT:
            self._on_connect(read_connect(body))
        elif self.stage not in (Stage.CONNECTING, Stage.OPEN):
            return  # the connection has ended, so the packet has no effect any more
        elif kind in (PUBACK, PUBREC):
            self._messages.on_client_ack(body)
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            self._on_filters_requested(kind, body)
        elif kind == DISCONNECT:
            self._on_client_disconnect(body)

    def _is_wanted_publish(self, topic: bytes) -> object:
        """Return a true value if PUBLISHes on this topic may cause events.

        If the topic is invalid, store the reason code with which EMQX disconnects the client.
        """
        fault = fault_of_name(topic, self._messages.version)
        if fault is not None:
            self._rights.fault = fault
        return self._sessions.is_request(topic)

    def _on_filters_requested(self, kind: int, body: bytes) -> None:
        """Handle a SUBSCRIBE or UNSUBSCRIBE: replace it if a filter is refused or invalid; track the granted filters."""
        username = self.connect_packet.username if self.connect_packet else None
        decision = self._rights.decide(kind, body, self._messages.version, self.client_id, username or "")
        if decision.replacement is not None:
            original_size = len(packet(kind << 4 | 2, body))
            self.up.replacement = original_size, decision.replacement
            self._client.stop()  # `up` replaces the packet at which the scanner stops
        if decision.granted is not None and not self.is_silent:
            self._messages.on_filters_requested(kind, decision.granted)

    def _on_filters_answered(self, kind: int, body: bytes) -> None:
        """Handle the broker's SUBACK or UNSUBACK."""
        self._complete_packet(kind, body)
        if self.stage is not Stage.OPEN or self.is_silent:
            return
        if kind == SUBACK:
            self._messages.on_suback(body)
        else:
            self._messages.on_unsuback(body)

    def _complete_packet(self, kind: int, body: bytes) -> None:
        """Replace the broker's packet if the tap has refusals to add to it, or another reason for a DISCONNECT."""
        completed = self._rights.complete(kind, body, self._messages.version)
        if completed is not None:
            original_size = len(packet(kind << 4, body))
            self.down.replacement = original_size, completed
            self._broker.stop()

    @property
    def must_complete_packet(self) -> bool:
        """Whether one of the broker's next packets must be completed, so that incomplete packets may not be forwarded."""
        return self._rights.is_pending

    def _on_client_disconnect(self, body: bytes) -> None:
        """Handle the client's DISCONNECT, which may change how long the session outlives the connection."""
        reason, props = read_disconnect(body, self._messages.version)
        expiry_s = props.get("Session-Expiry-Interval")
        if expiry_s is not None:
            if expiry_s and not self._expiry_s:  # MQTT 5, 3.14.2.2.2: an expiry of 0 in the CONNECT cannot be changed
                self._end("protocol_error", props)
                return
            self._expiry_s = min(expiry_s, SESSION_MAX_S)
        self._end(events.reason_name(reason), props)

    # ---- packets of the broker

    def _on_broker_packet(self, kind: int, body: bytes) -> None:
        if kind == CONNACK:
            self._on_connack(body)
        elif kind in (PUBACK, PUBREC):
            self._messages.on_broker_ack(body)
        elif kind in (SUBACK, UNSUBACK):
            self._on_filters_answered(kind, body)
        elif kind == DISCONNECT and self.stage is Stage.OPEN:
            self._complete_packet(kind, body)
            code = self._rights.fault or read_disconnect(body, self._messages.version)[0]
            self._broker_reason = events.reason_name(code)
