"""The messages of one connection: publishes, deliveries, acknowledgements and subscriptions. Pure."""

import re

from manifold.contracts.topics import BrokerEvent
from manifold.sandbox.tap import events
from manifold.sandbox.tap.events import Delivery
from manifold.sandbox.tap.packets import read_ack, read_filters, read_suback
from manifold.sandbox.tap.properties import USER, Properties, read_properties
from manifold.sandbox.tap.publication_store import Publication, Sent
from manifold.sandbox.tap.scanner import SUBSCRIBE, PublishHead, Scanner
from manifold.sandbox.tap.sessions import Session, Sessions

NO_SUBSCRIBERS, FIRST_REFUSAL = 16, 0x80  # reason codes; every code from FIRST_REFUSAL on is a refusal
NO_PROPERTIES: Properties = {USER: {}}


class MessageTracker:
    """Tracks the messages of one connection. `version`, `client_id` and `session` are set once the connection knows them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.version, self.client_id = 4, ""
        self.session: Session | None = None
        self.is_open = False  # true between the CONNACK and the end of the connection
        self.scanners: tuple[Scanner, Scanner]  # of the client's bytes, and of the broker's
        # The client's PUBLISHes that the broker has not confirmed: publication, QoS and retain flag, by packet id.
        self._unconfirmed: dict[int, tuple[Publication, int, bool]] = {}
        self._unanswered_filters: dict[int, list[str]] = {}  # of SUBSCRIBEs and UNSUBSCRIBEs, by packet id
        self._client_aliases: dict[int, bytes] = {}  # topics by the topic alias in the client's PUBLISHes
        self._broker_aliases: dict[int, bytes] = {}  # the same of the broker's PUBLISHes

    def on_filters_requested(self, kind: int, body: bytes) -> None:
        """Handle a SUBSCRIBE or UNSUBSCRIBE from the client."""
        mid, filters = read_filters(body, self.version, with_options=kind == SUBSCRIBE)
        self._unanswered_filters[mid] = filters

    def on_client_ack(self, body: bytes) -> None:
        """Handle a PUBACK or PUBREC from the client."""
        session = self.session
        mid, _, props = read_ack(body, self.version)
        delivery = session.inflight.pop(mid, None) if session else None
        if delivery is None:
            return  # the tap has not seen this message, or it is acknowledged already
        fields = events.acked(self._sessions.now_ms(), self.client_id, delivery, props)
        self._sessions.emit(BrokerEvent.ACKED, self.client_id, fields, None)
        if delivery.publication:
            self._sessions.store.forget(delivery.publication)

    def on_client_publish(self, head: PublishHead, crc: int, size: int) -> None:
        """Handle a PUBLISH from the client."""
        props = read_properties(head.properties) if self.version >= 5 else NO_PROPERTIES
        topic = self._topic(head, props, self.scanners[0], self._client_aliases)
        match = self._sessions.match_request(topic)
        if match is None:
            return  # not a message for a vehicle
        if not head.qos and not self._sessions.emit_delivered:
            return  # with QoS 0 there is no acknowledgement, and `delivered` would be the only event
        owner = _owner_of(match)
        sent = Sent(owner, topic, self.client_id, props, crc, size)
        store = self._sessions.store
        publication = store.find_undelivered(sent) if head.dup else None  # a repetition is not stored a second time
        if publication is None:
            vehicle_session = self._sessions.by_id.get(owner.decode("utf-8", "replace"))
            # A vehicle on MQTT 5 gets the properties in the packet itself, so they need not survive a restart of the tap.
            persist = vehicle_session is None or vehicle_session.version < 5
            publication = store.remember(sent, self._sessions.now_ms(), persist=persist)
        if head.qos:
            self._unconfirmed[head.mid] = (publication, head.qos, head.retain)

    def _topic(self, head: PublishHead, props: Properties, scanner: Scanner, aliases: dict[int, bytes]) -> bytes:
        """Return the topic of a PUBLISH, by its topic alias if the topic itself is empty; remove the alias from `props`.

        Empty if nothing has defined the alias.
        """
        alias = props.pop("Topic-Alias", None)
        if alias is None:
            return head.topic
        scanner.wanted = _want_every_topic  # from now on any PUBLISH may redefine this alias
        if head.topic:
            aliases[alias] = head.topic
        return head.topic or aliases.get(alias, b"")

    def on_broker_ack(self, body: bytes) -> None:
        """Handle the broker's PUBACK or PUBREC for a PUBLISH of the client: forget a message that no vehicle will get."""
        mid, reason, _ = read_ack(body, self.version)
        unconfirmed = self._unconfirmed.pop(mid, None)
        if unconfirmed is None:
            return  # not a message for a vehicle
        publication, qos, retain = unconfirmed
        if reason == NO_SUBSCRIBERS:
            fields = events.dropped(self._sessions.now_ms(), publication, qos, retain)
            self._sessions.emit(BrokerEvent.DROPPED, self.client_id, fields, None)
        if reason == NO_SUBSCRIBERS or reason >= FIRST_REFUSAL:
            self._sessions.store.forget(publication)

    def on_suback(self, body: bytes) -> None:
        """Handle the broker's SUBACK: its reason code for a filter is the granted QoS, or a refusal."""
        mid, reasons = read_suback(body, self.version)
        filters = self._unanswered_filters.pop(mid, ())
        for topic_filter, reason in zip(filters, reasons, strict=False):
            if reason >= FIRST_REFUSAL:
                continue
            qos = reason
            if self.session is not None and self.session.filters is not None:
                self.session.filters[topic_filter] = qos
            self._emit_if_reported(BrokerEvent.SUBSCRIBED, topic_filter, qos)

    def on_unsuback(self, body: bytes) -> None:
        """Handle the broker's UNSUBACK: emit an event for each filter to which the client was subscribed.

        If the session's filters are unknown, the broker's reason codes decide; before MQTT 5 there are none, and all filters
        count.
        """
        mid, reasons = read_suback(body, self.version)
        for index, topic_filter in enumerate(self._unanswered_filters.pop(mid, ())):
            subscribed_filters = self.session.filters if self.session else None
            if subscribed_filters is None:
                was_subscribed = index >= len(reasons) or reasons[index] == 0
                qos = 0
            else:
                was_subscribed = topic_filter in subscribed_filters
                qos = subscribed_filters.pop(topic_filter, 0)
            if was_subscribed:
                self._emit_if_reported(BrokerEvent.UNSUBSCRIBED, topic_filter, qos)

    def _emit_if_reported(self, event: BrokerEvent, topic_filter: str, qos: int) -> None:
        """Emit a subscribed or unsubscribed event, if EMQX's rules report this filter."""
        if self._sessions.is_reported(topic_filter):
            fields = events.subscription(event, self._sessions.now_ms(), self.client_id, topic_filter, qos)
            self._sessions.emit(event, self.client_id, fields, None)

    def on_broker_publish(self, head: PublishHead, crc: int, size: int) -> None:
        """Handle a PUBLISH from the broker: find the publication that it delivers, or the delivery that it repeats."""
        session = self.session
        props = read_properties(head.properties) if self.version >= 5 else NO_PROPERTIES
        topic = self._topic(head, props, self.scanners[1], self._broker_aliases)
        match = self._sessions.match_request(topic)
        if match is None or session is None or not self.is_open:
            return
        topic_text = topic.decode("utf-8", "replace")
        delivery = session.inflight.get(head.mid) if head.dup else None
        if delivery is None or delivery.topic != topic_text:  # not a repetition; with another topic, the packet id was reused
            store = self._sessions.store
            received = Sent(_owner_of(match), topic, self.client_id, props, crc, size)
            publication = store.match_delivery(received, self._sessions.now_ms(), by_payload=self.version < 5)
            message_id = publication.id if publication else store.new_id()
            delivery = Delivery(topic_text, head.qos, head.retain, props, message_id, publication)
        if head.qos:
            session.inflight[head.mid] = delivery
        elif delivery.publication:
            self._sessions.store.forget(delivery.publication)  # with QoS 0 nothing acknowledges it
        if self._sessions.emit_delivered:
            fields = events.delivered(self._sessions.now_ms(), self.client_id, delivery, head.dup)
            self._sessions.emit(BrokerEvent.DELIVERED, self.client_id, fields, None)


def _owner_of(match: re.Match[bytes]) -> bytes:
    """Return the client id of the vehicle whose topic `Sessions.match_request` has matched."""
    return match[1] or match[2] or b""


def _want_every_topic(_: bytes) -> bool:
    return True
