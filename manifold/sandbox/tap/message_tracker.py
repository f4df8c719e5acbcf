"""The messages of one connection: publishes, deliveries, acknowledgements and subscriptions. Pure."""

from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap import events
from manifold.sandbox.tap.events import Delivery
from manifold.sandbox.tap.packets import read_ack, read_filters, read_suback
from manifold.sandbox.tap.properties import USER, Properties, read_properties
from manifold.sandbox.tap.publication_store import Publication, Sent
from manifold.sandbox.tap.scanner import SUBSCRIBE, PublishHead, Scanner
from manifold.sandbox.tap.sessions import Session, Sessions

NO_SUBSCRIBERS, FIRST_REFUSAL = 16, 0x80
NO_PROPERTIES: Properties = {USER: {}}


class MessageTracker:
    """Tracks the messages of one connection. `version`, `client_id` and `session` are set once the connection knows them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.version, self.client_id = 4, ""
        self.session: Session | None = None
        self.open = False  # between the CONNACK and the end of the connection
        self.scanners: tuple[Scanner, Scanner]  # for client and broker bytes
        self._unconfirmed: dict[int, tuple[Publication | None, int, bool]] = {}  # client's publishes: publication, QoS, retain
        self._wants: dict[int, list[str]] = {}  # unanswered SUBSCRIBE and UNSUBSCRIBE packets: filters by packet id
        self._aliases: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})  # topic aliases of client and broker publishes

    def asks(self, kind: int, body: bytes) -> None:
        """Handle a SUBSCRIBE or UNSUBSCRIBE from the client."""
        mid, filters = read_filters(body, self.version, with_options=kind == SUBSCRIBE)
        self._wants[mid] = filters

    def acknowledged(self, body: bytes) -> None:
        """Handle a PUBACK or PUBREC from the client."""
        session = self.session
        mid, _, props = read_ack(body, self.version)
        delivery = session.inflight.pop(mid, None) if session else None
        if delivery is None:
            return
        self._sessions.emit(
            BrokerEvent.ACKED, self.client_id, events.acked(self._sessions.now_ms(), self.client_id, delivery, props), None
        )
        if delivery.publication:
            self._sessions.store.forget(delivery.publication)

    def publishes(self, head: PublishHead, crc: int, size: int) -> None:
        """Handle a PUBLISH from the client."""
        props = read_properties(head.properties) if self.version >= 5 else NO_PROPERTIES
        topic = self._topic(head, props, self.scanners[0], self._aliases[0])
        match = self._sessions.request(topic)
        if match is None or not (head.qos or self._sessions.emit_delivered):
            return
        sent = Sent(match[1] or match[2] or b"", topic, self.client_id, props, crc, size)
        store = self._sessions.store
        publication = store.repeated(sent) if head.dup else None
        if publication is None:
            session = self._sessions.by_id.get(sent.owner.decode("utf-8", "replace"))
            # A vehicle on MQTT 5 gets the properties in the packet itself, so they need not survive a restart of the tap.
            keep = session is None or session.version < 5
            publication = store.remember(sent, self._sessions.now_ms(), keep=keep)
        if head.qos:
            self._unconfirmed[head.mid] = (publication, head.qos, head.retain)

    def _topic(self, head: PublishHead, props: Properties, scanner: Scanner, aliases: dict[int, bytes]) -> bytes:
        alias = props.pop("Topic-Alias", None) if props is not NO_PROPERTIES else None
        if alias is None:
            return head.topic
        scanner.wanted = _every  # from now on any publish may redefine this alias
        if head.topic:
            aliases[alias] = head.topic
        return head.topic or aliases.get(alias, b"")

    def confirmed(self, body: bytes) -> None:
        """Handle the broker's answer to a PUBLISH."""
        mid, reason, _ = read_ack(body, self.version)
        publication, qos, retain = self._unconfirmed.pop(mid, (None, 0, False))
        if publication is None:
            return
        if reason == NO_SUBSCRIBERS:
            fields = events.dropped(self._sessions.now_ms(), publication, qos, retain)
            self._sessions.emit(BrokerEvent.DROPPED, self.client_id, fields, None)
        if reason == NO_SUBSCRIBERS or reason >= FIRST_REFUSAL:
            self._sessions.store.forget(publication)

    def subscribed(self, body: bytes) -> None:
        """Handle the broker's answer to a SUBSCRIBE."""
        mid, reasons = read_suback(body, self.version)
        for topic_filter, qos in zip(self._wants.pop(mid, ()), reasons, strict=False):
            if qos >= FIRST_REFUSAL:
                continue
            if self.session is not None and self.session.filters is not None:
                self.session.filters[topic_filter] = qos
            self._tell_subscription(BrokerEvent.SUBSCRIBED, topic_filter, qos)

    def unsubscribed(self, body: bytes) -> None:
        """Handle the broker's answer to an UNSUBSCRIBE."""
        mid, reasons = read_suback(body, self.version)
        for n, topic_filter in enumerate(self._wants.pop(mid, ())):
            known = self.session.filters if self.session else None
            there = topic_filter in known if known is not None else n >= len(reasons) or reasons[n] == 0
            qos = known.pop(topic_filter, 0) if known is not None else 0
            if there:
                self._tell_subscription(BrokerEvent.UNSUBSCRIBED, topic_filter, qos)

    def _tell_subscription(self, event: BrokerEvent, topic_filter: str, qos: int) -> None:
        if self._sessions.is_own(self.client_id, topic_filter):
            fields = events.subscription(event, self._sessions.now_ms(), self.client_id, topic_filter, qos)
            self._sessions.emit(event, self.client_id, fields, None)

    def delivers(self, head: PublishHead, crc: int, size: int) -> None:
        """Handle a PUBLISH from the broker."""
        session = self.session
        props = read_properties(head.properties) if self.version >= 5 else NO_PROPERTIES
        topic = self._topic(head, props, self.scanners[1], self._aliases[1])
        match = self._sessions.request(topic)
        if match is None or session is None or not self.open:
            return
        text = topic.decode("utf-8", "replace")
        delivery = session.inflight.get(head.mid) if head.dup else None
        if delivery is None or delivery.topic != text:
            store = self._sessions.store
            seen = Sent(match[1] or match[2] or b"", topic, self.client_id, props, crc, size)
            known = store.take(seen, self._sessions.now_ms(), by_payload=self.version < 5)
            delivery = Delivery(text, head.qos, head.retain, props, known.id if known else store.new_id(), known)
        if head.qos:
            session.inflight[head.mid] = delivery
        elif delivery.publication:
            self._sessions.store.forget(delivery.publication)
        if self._sessions.emit_delivered:
            fields = events.delivered(self._sessions.now_ms(), self.client_id, delivery, head.dup)
            self._sessions.emit(BrokerEvent.DELIVERED, self.client_id, fields, None)


def _every(_: bytes) -> bool:
    return True
