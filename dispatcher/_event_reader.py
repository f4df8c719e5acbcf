"""Turns MQTT messages into events. A message is acknowledged once the effects of its event are carried out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from dispatcher import _metrics
from dispatcher._events import Event
from dispatcher._queue_types import queue_of_topic
from manifold.contracts.events import Acked, DeliveryDropped, PresenceSign, Subscribed, parse_event
from manifold.contracts.names import is_service, is_vin
from manifold.contracts.queue_names import QueueName, fanout_queue
from manifold.contracts.topics import (
    DISPATCHER_GROUP,
    HEARTBEAT_FILTER,
    ONLINE_FILTER,
    BrokerEvent,
    Sign,
    event_filter,
    event_of,
    shared,
    sign_of,
)
from manifold.messaging.mqtt import Message, Mqtt

HANDLED_EVENTS = (
    BrokerEvent.CONNECTED,
    BrokerEvent.DISCONNECTED,
    BrokerEvent.SUBSCRIBED,
    BrokerEvent.UNSUBSCRIBED,
    BrokerEvent.ACKED,
    BrokerEvent.DELIVERY_DROPPED,
)
FILTERS = (*map(event_filter, HANDLED_EVENTS), ONLINE_FILTER, HEARTBEAT_FILTER)
HEARD = PresenceSign()
# QoS 0 messages are dropped while so many owners have unfinished events. All other sources of events are bounded, and together
# never reach this number.
MAX_BUSY_OWNERS = 10_000
# Looked up in advance, because looking up the label of a counter costs more than counting.
EVENT_COUNTERS = {kind: _metrics.EVENTS.labels(kind.value) for kind in (*BrokerEvent, *Sign)}

log = structlog.get_logger(__name__)
Offer = Callable[[QueueName, Event, Callable[[], Any] | None], None]


def filters(*, is_shared: bool) -> tuple[str, ...]:
    """The topic filters of a dispatcher; with `is_shared`, those of a shared subscription, so that each replica gets a part."""
    return tuple(shared(DISPATCHER_GROUP, name) for name in FILTERS) if is_shared else FILTERS


def read(message: Message) -> tuple[QueueName, Event] | None:
    """Parse the event in `message` and the queue that it concerns.

    Returns None if the client is not a vehicle, or if the dispatcher does not use events of this kind. A vehicle's connection
    event is returned for the fanout queue, which wakes the vehicle's compacted queue if necessary.

    Raises:
        ValueError: the message is not an event; the text says why.
    """
    sign = sign_of(message.topic)
    if sign is not None:  # an online message or a heartbeat, which the vehicle itself has published
        owner, kind = sign
        EVENT_COUNTERS[kind].inc()
        return (fanout_queue(owner), HEARD) if is_vin(owner) else None
    broker_event = event_of(message.topic)
    if broker_event is None:
        raise ValueError("the topic is neither that of a broker event nor that of an online message or heartbeat")
    name, client_id = broker_event
    # A client id may contain characters that a VIN may not. If the dispatcher published to a topic with such a character, the
    # broker would disconnect it.
    if is_service(client_id) or not is_vin(client_id):
        return None
    event = parse_event(name, client_id, message.payload)
    EVENT_COUNTERS[name].inc()
    match event:
        case None:
            return None
        case Acked(topic=topic) | DeliveryDropped(topic=topic) | Subscribed(topic_filter=topic):
            return queue_of_topic(event.owner, topic), event
    return fanout_queue(event.owner), event


class EventReader:
    """Reads the broker's messages and offers their events to the scheduler.

    The receive maximum bounds the QoS 1 messages in progress. QoS 0 messages are dropped while `busy_owners`, which returns the
    number of owners with unfinished events, reaches `MAX_BUSY_OWNERS`.
    """

    def __init__(self, mqtt: Mqtt, offer: Offer, busy_owners: Callable[[], int]) -> None:
        self._mqtt, self._offer, self._busy_owners = mqtt, offer, busy_owners
        self.is_open = True

    def handle_message(self, message: Message) -> None:
        """Offer the event in a message from the broker, and acknowledge the message once the event is handled."""
        if not self.is_open:
            return  # the message stays unacknowledged, so another replica, or the next run of this one, gets it
        if message.qos == 0 and self._busy_owners() >= MAX_BUSY_OWNERS:
            _metrics.DROPPED_SIGNS.inc()
            return
        try:
            queue_and_event = read(message)
        except ValueError as exc:
            _metrics.REFUSED_EVENTS.inc()
            log.warning("event rejected", topic=message.topic, reason=str(exc))
            queue_and_event = None
        except Exception:  # without an ack, the message would occupy a slot of the receive maximum forever
            _metrics.REFUSED_EVENTS.inc()
            log.exception("event parsing failed", topic=message.topic)
            queue_and_event = None
        if queue_and_event is None:
            self._mqtt.ack(message)
            return
        queue, event = queue_and_event
        # While the event waits, keep only what the acknowledgement needs: a vehicle chooses how large the payload is.
        acknowledgeable = Message("", b"", message.qos, mid=message.mid, connection=message.connection)
        done = partial(self._mqtt.ack, acknowledgeable) if message.qos > 0 else None
        self._offer(queue, event, done)

    def ack_unreadable(self, message: Message) -> None:
        """Acknowledge a message whose packet cannot be decoded. An event in it is recovered like any other lost event."""
        _metrics.REFUSED_EVENTS.inc()
        self._mqtt.ack(message)
