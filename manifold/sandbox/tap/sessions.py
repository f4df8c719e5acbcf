"""Sessions of all vehicles, which outlive connections, and the state shared by all connections. Pure: the clock is passed in."""

import re
from collections.abc import Callable
from typing import Protocol

from manifold.contracts.rights import Rights
from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap.events import Delivery, Fields
from manifold.sandbox.tap.packets import Connect
from manifold.sandbox.tap.properties import Properties
from manifold.sandbox.tap.publication_store import PublicationStore
from manifold.settings.embedded_broker import SESSION_MAX_S

# An expired session is kept this long: the broker decides by its own clock, and a later CONNACK shows whether it resumed it.
_GRACE_MS = 60_000

Emit = Callable[[BrokerEvent, str, Fields, Callable[[], None] | None], None]


class Holder(Protocol):
    """The connection that holds or requests a session."""

    connect_packet: Connect | None  # None: it has not arrived yet

    def taken_over(self, clean_start: bool) -> None:
        """Another connection has taken over the session."""


class Session:
    """The broker's session of one client id, as reconstructed from its packets."""

    __slots__ = ("client_id", "expires_at_ms", "filters", "holder", "inflight", "version")

    def __init__(self, client_id: str, version: int, filters: dict[str, int] | None) -> None:
        self.client_id, self.version = client_id, version
        self.inflight: dict[int, Delivery] = {}  # by packet id; outlives the connection, like in the broker
        self.filters = filters  # filter → QoS; None: unknown, because the session is older than this tap
        self.holder: Holder | None = None  # the current connection; None: the client is not connected
        self.expires_at_ms: int | None = None  # Unix milliseconds; None while a connection holds the session


def session_expiry_s(connect: Connect, connack_properties: Properties) -> int:
    """Return the seconds for which a session outlives its connection.

    On MQTT 5 an expiry other than 0 in the CONNACK overrides that of the CONNECT.
    """
    if connect.version < 5:
        return 0 if connect.clean_start else SESSION_MAX_S
    granted: int | None = connack_properties.get("Session-Expiry-Interval")
    requested: int | None = connect.properties.get("Session-Expiry-Interval")
    return min(granted or requested or 0, SESSION_MAX_S)


class Sessions:
    """All sessions, the connections that await their CONNACK, and the event sink.

    `emit(event, client_id, fields, done)` must not lose events. It calls `done` when the broker has confirmed the event.
    `match_request(topic)` matches topics of messages for vehicles; group 1 or 2 is the vehicle's client id.
    """

    def __init__(
        self, rights: Rights, store: PublicationStore, emit: Emit, now_ms: Callable[[], int], *, emit_delivered: bool = False
    ) -> None:
        self.rights = rights
        self.prefix = rights.topic_prefix
        self.store = store
        self.emit = emit
        self.now_ms = now_ms
        self.emit_delivered = emit_delivered
        self.by_id: dict[str, Session] = {}
        self.awaiting_connack: dict[str, list[Holder]] = {}  # by client id, oldest CONNECT first
        # The topics `<prefix>/+/proxy/request/+` and `$ECQ/+/#`, but neither `$ECQ/w/#` nor `$ECQ/r/#`.
        request_topic = rb"(?:%s/([^/]*)/proxy/request/[^/]*|\$ECQ/(?![wr](?:/|\Z))([^/]*)(?:/.*)?)\Z"
        self.match_request = re.compile(request_topic % re.escape(self.prefix.encode()), re.DOTALL).match
        # The filters `<prefix>/+/#` and `$ECQ/+/#` of the rules in infra/emqx/manifold.conf; `#` also matches no level at all.
        self._match_reported = re.compile(rf"(?:{re.escape(self.prefix)}|\$ECQ)/[^/]*(?:/.*)?\Z", re.DOTALL).match

    def is_request(self, topic: bytes) -> bool:
        """Whether messages on `topic` may cause events. An empty topic may: the PUBLISH names its topic by an alias."""
        return not topic or self.match_request(topic) is not None

    def is_reported(self, topic_filter: str) -> bool:
        """Whether EMQX's rules emit an event for a subscription to this filter, if it is granted.

        They do for filters below `<prefix>/+` and `$ECQ/+`. They match no shared subscription.
        """
        return self._match_reported(topic_filter) is not None

    def register(self, holder: Holder) -> None:
        """Register a connection that has sent its CONNECT and awaits the CONNACK."""
        assert holder.connect_packet is not None
        self.awaiting_connack.setdefault(holder.connect_packet.client_id, []).append(holder)

    def unregister(self, holder: Holder) -> None:
        """Unregister a connection that has received its CONNACK, or has ended without one."""
        if holder.connect_packet is None:
            return
        client_id = holder.connect_packet.client_id
        waiting = self.awaiting_connack.get(client_id, [])
        if holder in waiting:
            waiting.remove(holder)
        if not waiting:
            self.awaiting_connack.pop(client_id, None)

    def begin(self, holder: Holder, client_id: str, version: int, *, session_present: bool, clean_start: bool) -> Session:
        """Start a session, or resume the existing one if the CONNACK says that the broker has it (`session_present`).

        An older connection with the same client id ends first, which emits its disconnected event.
        """
        session = self.by_id.get(client_id)
        if session is not None and session.holder is not None and session.holder is not holder:
            session.holder.taken_over(clean_start)
        if session is None or not session_present:
            if not session_present:  # the broker has discarded the old session, and its messages with it
                self.store.forget_owner(client_id.encode())
            # A session that the broker has, but the tap has not, is older than this tap.
            filters: dict[str, int] | None = None if session_present else {}
            session = self.by_id[client_id] = Session(client_id, version, filters)
        session.version, session.holder, session.expires_at_ms = version, holder, None
        return session

    def end(self, session: Session, expiry_s: int) -> None:
        """Release a session whose connection has ended. It expires after `expiry_s` seconds; 0: at once."""
        session.holder = None
        if expiry_s:
            session.expires_at_ms = self.now_ms() + expiry_s * 1000
        else:
            self._drop(session)

    def sweep(self) -> None:
        """Forget expired sessions."""
        limit_ms = self.now_ms() - _GRACE_MS
        for session in list(self.by_id.values()):
            if session.expires_at_ms is not None and session.expires_at_ms < limit_ms:
                self._drop(session)

    def _drop(self, session: Session) -> None:
        """Forget a session and its messages, unless a newer session has replaced it."""
        if self.by_id.get(session.client_id) is session:
            del self.by_id[session.client_id]
            self.store.forget_owner(session.client_id.encode())
