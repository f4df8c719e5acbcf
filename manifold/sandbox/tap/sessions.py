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

_GRACE_MS = 60_000  # delay before an expired session is forgotten, because the broker's clock decides, as its CONNACK shows

Emit = Callable[[BrokerEvent, str, Fields, Callable[[], None] | None], None]


class Holder(Protocol):
    """The connection that holds or requests a session."""

    asked: Connect | None

    def taken_over(self, clean_start: bool) -> None:
        """Another connection has taken over the session."""


class Session:
    """The broker's session of one client id, as reconstructed from its packets."""

    __slots__ = ("client_id", "expires_at_ms", "filters", "holder", "inflight", "version")

    def __init__(self, client_id: str, version: int, filters: dict[str, int] | None) -> None:
        self.client_id, self.version = client_id, version
        self.inflight: dict[int, Delivery] = {}  # by packet id; outlives the connection, like in the broker
        self.filters = filters  # filter → QoS; None: the session is older than this tap, so they are unknown
        self.holder: Holder | None = None  # the current connection
        self.expires_at_ms: int | None = None


def session_expiry_s(asked: Connect, granted: Properties) -> int:
    """Return the seconds for which a session outlives its connection; `granted` are the properties of the CONNACK."""
    if asked.version < 5:
        return 0 if asked.clean_start else SESSION_MAX_S
    wanted: int = granted.get("Session-Expiry-Interval") or asked.properties.get("Session-Expiry-Interval") or 0
    return min(wanted, SESSION_MAX_S)


class Sessions:
    """All sessions, the client ids awaiting their CONNACK, and the event sink.

    `emit(event, client_id, fields, done)` must not lose events, and calls `done` when the broker has confirmed the event.
    """

    def __init__(
        self, rights: Rights, store: PublicationStore, emit: Emit, now_ms: Callable[[], int], *, emit_delivered: bool = False
    ) -> None:
        self.rights, prefix = rights, rights.topic_prefix
        self.prefix, self.store, self.emit, self.now_ms, self.emit_delivered = prefix, store, emit, now_ms, emit_delivered
        self.by_id: dict[str, Session] = {}
        self.asking: dict[str, list[Holder]] = {}
        # `agent/+/proxy/request/+`, and `$ECQ/+/#` except `w` and `r`; the group is the recipient
        requests = rb"(?:%s/([^/]*)/proxy/request/[^/]*|\$ECQ/(?![wr](?:/|\Z))([^/]*)(?:/.*)?)\Z" % re.escape(prefix.encode())
        self.request = re.compile(requests, re.DOTALL).match

    def is_request(self, topic: bytes) -> bool:
        """Whether messages on `topic` cause events; an empty topic means a topic alias."""
        return not topic or self.request(topic) is not None

    def is_own(self, client_id: str, topic_filter: str) -> bool:
        """Whether a subscription causes an event: EMQX's rules name these topics, and its ACL allows a vehicle only its own.

        Shared subscriptions do not, even if they are granted.
        """
        if "/" in client_id:
            return False
        own = f"{self.prefix}/{client_id}/proxy/request/"
        if topic_filter.startswith(own):
            return "/" not in topic_filter[len(own) :]
        return topic_filter == f"$ECQ/{client_id}" or topic_filter.startswith(f"$ECQ/{client_id}/")

    def register(self, holder: Holder) -> None:
        """Register a connection that has sent its CONNECT and awaits the CONNACK."""
        assert holder.asked is not None
        self.asking.setdefault(holder.asked.client_id, []).append(holder)

    def unregister(self, holder: Holder) -> None:
        """Unregister a connection that has its CONNACK, or has ended without one."""
        client_id = holder.asked.client_id if holder.asked else None
        waiting = self.asking.get(client_id, []) if client_id is not None else []
        if holder in waiting:
            waiting.remove(holder)
        if client_id is not None and not waiting:
            self.asking.pop(client_id, None)

    def begin(self, holder: Holder, client_id: str, version: int, *, present: bool, clean_start: bool) -> Session:
        """Start or resume a session; an older connection with the same client id ends first, with its event."""
        session = self.by_id.get(client_id)
        if session is not None and session.holder is not None and session.holder is not holder:
            session.holder.taken_over(clean_start)
        if session is None or not present:
            if not present:
                self.store.forget_owner(client_id.encode())
            session = self.by_id[client_id] = Session(client_id, version, None if present else {})
        session.version, session.holder, session.expires_at_ms = version, holder, None
        return session

    def end(self, session: Session, expiry_s: int) -> None:
        """Release a session whose connection has ended; it lives for `expiry_s` more seconds."""
        session.holder = None
        if expiry_s:
            session.expires_at_ms = self.now_ms() + expiry_s * 1000
        else:
            self._drop(session)

    def sweep(self) -> None:
        """Forget expired sessions."""
        limit = self.now_ms() - _GRACE_MS
        for session in [s for s in self.by_id.values() if s.expires_at_ms is not None and s.expires_at_ms < limit]:
            self._drop(session)

    def _drop(self, session: Session) -> None:
        if self.by_id.get(session.client_id) is session:
            del self.by_id[session.client_id]
            self.store.forget_owner(session.client_id.encode())
