"""Observes the packets of one connection in both directions and emits EMQX's events. Pure: bytes in, events out.

The connection of a service, or one with a client id that cannot be part of a topic, is silent: only its publishes to vehicles are
observed.
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

KEEPALIVE_SHARE = 1.5  # multiple of the keep-alive after which a silent client is disconnected

_GOODBYES = {"takenover": 0x8E, "discarded": 0x8E, "keepalive_timeout": 0x8D}  # DISCONNECTs of EMQX that Mosquitto does not send

_FROM_SERVICE = frozenset({SUBSCRIBE, UNSUBSCRIBE})
_TO_SERVICE = frozenset({PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT})
_FROM_VEHICLE = frozenset({PUBACK, PUBREC, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT})
_TO_VEHICLE = frozenset({PUBACK, PUBREC, SUBACK, UNSUBACK, DISCONNECT})


class Stage(Enum):
    """The stage of a connection."""

    NEW = auto()  # before the CONNECT
    ASKED = auto()  # before the CONNACK
    OPEN = auto()
    OVER = auto()  # refused, ended, or taken over: emits no more events


class SessionObserver:
    """Observes one connection, whose bytes pass through `up` and `down`. Report how the connection ends.

    While `held` is true the CONNACK must not be forwarded; `released` is called when it may.
    """

    def __init__(self, sessions: Sessions, released: Callable[[], None]) -> None:
        self._sessions, self._released = sessions, released
        self._messages = MessageTracker(sessions)
        self._client = Scanner(frozenset({CONNECT}), self._on_client_packet, self._messages.publishes)
        self._broker = Scanner(frozenset({CONNACK}), self._on_broker_packet, self._messages.delivers)
        self._messages.scanners = self._client, self._broker
        self.stage = Stage.NEW
        self.asked: Connect | None = None
        self.client_id = ""
        self.silent = True
        self.held = False
        self._rights = SubscriptionRights(sessions.rights)
        self.up, self.down = Passage(self._client), Passage(self._broker)
        self._expiry_s = self._connected_at_ms = 0
        self._said: str | None = None  # the broker's own disconnect reason
        self._ended_by: str | None = None  # the reason of the disconnected event

    # ---- start and end of the connection

    def _ask(self, asked: Connect) -> None:
        self.asked, self.stage, self._messages.version = asked, Stage.ASKED, asked.version
        self.client_id = self._messages.client_id = asked.client_id
        self._client.version = self._broker.version = asked.version
        self._client.stop()
        self._client.kinds, self._client.wanted, self._client.digests = _FROM_VEHICLE, self._publishes_to, True
        self._sessions.register(self)

    def _accepted(self, body: bytes) -> None:
        """Take in the CONNACK: whether the session is open, the client's id, and what to observe from now on."""
        asked = self.asked
        self._broker.stop()
        if asked is None or self.stage is not Stage.ASKED:
            return
        self._sessions.unregister(self)
        present, reason, props = read_connack(body, self._messages.version)
        if reason:
            self.stage = Stage.OVER
            return
        self.stage, self._messages.open = Stage.OPEN, True
        # Before MQTT 5 the client never learns the id that the broker generates for it, so nobody can resume that session.
        self.client_id = self.client_id or props.get("Assigned-Client-Identifier") or f"auto-{secrets.token_hex(16)}"
        self._messages.client_id = self.client_id
        self.silent = is_service(self.client_id) or not events.is_valid_topic_suffix(self.client_id)
        if self.silent:
            self._client.kinds, self._broker.kinds = _FROM_SERVICE, _TO_SERVICE
            return
        self._broker.kinds, self._broker.wanted, self._broker.digests = (
            _TO_VEHICLE,
            self._sessions.is_request,
            self._messages.version < 5,
        )
        self._open(asked, present, props)

    def _open(self, asked: Connect, present: bool, props: Properties) -> None:
        self._expiry_s = session_expiry_s(asked, props)
        self._messages.session = self._sessions.begin(
            self, self.client_id, self._messages.version, present=present, clean_start=asked.clean_start
        )
        self._connected_at_ms = now_ms = self._sessions.now_ms()
        at_once = min(asked.properties.get("Receive-Maximum", MAX_INFLIGHT), MAX_INFLIGHT)
        self.held = True
        fields = events.connected(now_ms, self.client_id, asked, self._expiry_s, at_once)
        self._sessions.emit(BrokerEvent.CONNECTED, self.client_id, fields, self._resume)

    def _resume(self) -> None:
        self.held = False
        self._released()

    def taken_over(self, clean_start: bool) -> None:
        """End this connection, because the broker has accepted another one with its client id."""
        self._end("discarded" if clean_start else "takenover", NO_PROPERTIES, keep=True)

    def client_closed(self) -> None:
        """Handle the end of the connection by the client."""
        self._end("tcp_closed", NO_PROPERTIES)

    def broker_closed(self, silent_for_s: float) -> int | None:
        """Handle the end of the connection by the broker, `silent_for_s` seconds after the client's last bytes.

        Returns the reason code of the DISCONNECT that EMQX would send first on MQTT 5; None: none, or the broker sent its own.
        """
        newer = self._sessions.asking.get(self.client_id, [])
        if newer and newer[-1] is not self and newer[-1].asked is not None:
            self.taken_over(newer[-1].asked.clean_start)
        else:
            self._end(self._said or self._guess(silent_for_s), NO_PROPERTIES)
        is_told = self._messages.version >= 5 and self._said is None
        return _GOODBYES.get(self._ended_by or "") if is_told else None

    def _guess(self, silent_for_s: float) -> str:
        if self._rights.fault is not None:
            return events.reason_name(self._rights.fault)
        if self.up.unobserved:
            return "protocol_error"
        limit_s = self.asked.keepalive_s * KEEPALIVE_SHARE if self.asked else 0
        return "keepalive_timeout" if limit_s and silent_for_s >= limit_s else "internal_error"

    def tap_closes(self) -> None:
        """Handle the end of the connection by the tap itself, which is stopping."""
        self._end("server_shutting_down", NO_PROPERTIES)

    def _end(self, reason: str, props: Properties, keep: bool = False) -> None:
        self._sessions.unregister(self)
        if self.stage is Stage.OPEN:
            self._ended_by = reason
        stage, self.stage, session = self.stage, Stage.OVER, self._messages.session
        self._messages.open = False
        if stage is not Stage.OPEN or session is None:
            return
        now_ms = self._sessions.now_ms()
        fields = events.disconnected(now_ms, self.client_id, self._messages.version, reason, props, self._connected_at_ms)
        self._sessions.emit(BrokerEvent.DISCONNECTED, self.client_id, fields, None)
        if session.holder is self:
            self._sessions.end(session, self._expiry_s or (1 if keep else 0))

    # ---- packets of the client

    def _on_client_packet(self, kind: int, body: bytes) -> None:
        if kind == CONNECT:
            self._ask(read_connect(body))
        elif self.stage not in (Stage.ASKED, Stage.OPEN):
            return
        elif kind in (PUBACK, PUBREC):
            self._messages.acknowledged(body)
        elif kind in (SUBSCRIBE, UNSUBSCRIBE):
            self._subscribes(kind, body)
        elif kind == DISCONNECT:
            self._says_goodbye(body)

    def _publishes_to(self, topic: bytes) -> object:
        self._rights.fault = fault_of_name(topic, self._messages.version) or self._rights.fault
        return self._sessions.is_request(topic)

    def _subscribes(self, kind: int, body: bytes) -> None:
        """Forward only the granted filters of a SUBSCRIBE or UNSUBSCRIBE."""
        username = (self.asked.username if self.asked else None) or ""
        decision = self._rights.decide(kind, body, self._messages.version, self.client_id, username)
        if decision.replacement is not None:
            self.up.replacement = len(packet(kind << 4 | 2, body)), decision.replacement
            self._client.stop()
        if decision.granted is not None and not self.silent:
            self._messages.asks(kind, decision.granted)

    def _answered_filters(self, kind: int, body: bytes) -> None:
        self._complete(kind, body)
        if self.stage is Stage.OPEN and not self.silent:
            self._messages.subscribed(body) if kind == SUBACK else self._messages.unsubscribed(body)

    def _complete(self, kind: int, body: bytes) -> None:
        completed = self._rights.complete(kind, body, self._messages.version)
        if completed is not None:
            self.down.replacement = len(packet(kind << 4, body)), completed
            self._broker.stop()

    @property
    def completes(self) -> bool:
        """Whether a packet of the broker must be completed."""
        return self._rights.is_pending

    def _says_goodbye(self, body: bytes) -> None:
        reason, props = read_disconnect(body, self._messages.version)
        expiry = props.get("Session-Expiry-Interval")
        if expiry is not None:
            if expiry and not self._expiry_s:
                self._end("protocol_error", props)
                return
            self._expiry_s = min(expiry, SESSION_MAX_S)
        self._end(events.reason_name(reason), props)

    # ---- packets of the broker

    def _on_broker_packet(self, kind: int, body: bytes) -> None:
        if kind == CONNACK:
            self._accepted(body)
        elif kind in (PUBACK, PUBREC):
            self._messages.confirmed(body)
        elif kind in (SUBACK, UNSUBACK):
            self._answered_filters(kind, body)
        elif self.stage is not Stage.OPEN:
            return
        elif kind == DISCONNECT:
            self._complete(kind, body)
            self._said = events.reason_name(self._rights.fault or read_disconnect(body, self._messages.version)[0])
