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

NEEDED = (
    BrokerEvent.CONNECTED,
    BrokerEvent.DISCONNECTED,
    BrokerEvent.SUBSCRIBED,
    BrokerEvent.UNSUBSCRIBED,
    BrokerEvent.ACKED,
    BrokerEvent.DELIVERY_DROPPED,
)
FILTERS = (*map(event_filter, NEEDED), ONLINE_FILTER, HEARTBEAT_FILTER)
HEARD = PresenceSign()
MAX_OWNERS_IN_HAND = 10_000  # owners with events in hand: more than wake-ups, deadlines and the receive maximum add up to
SEEN = {kind: _metrics.EVENTS.labels(kind.value) for kind in (*BrokerEvent, *Sign)}  # looking up a label costs more than counting

log = structlog.get_logger(__name__)
Offer = Callable[[QueueName, Event, Callable[[], Any] | None], None]


def filters(*, in_a_group: bool) -> tuple[str, ...]:
    """The topic filters of a dispatcher. In a shared subscription, each message goes to one of the replicas."""
    return tuple(shared(DISPATCHER_GROUP, each) for each in FILTERS) if in_a_group else FILTERS


def read(message: Message) -> tuple[QueueName, Event] | None:
    """Parse the event in `message` and the queue that it concerns; None if the client is not a vehicle.

    A vehicle's connection event belongs to its fanout queue, which forwards it.

    Raises:
        ValueError: the message is not an event; the text says why.
    """
    sign = sign_of(message.topic)
    if sign is not None:
        SEEN[sign[1]].inc()
        return (fanout_queue(sign[0]), HEARD) if is_vin(sign[0]) else None
    named = event_of(message.topic)
    if named is None:
        raise ValueError("neither an event nor a sign")
    name, client_id = named
    # A client id may contain what a VIN may not: publishing to a topic built from it would make the broker disconnect this
    # dispatcher.
    if is_service(client_id) or not is_vin(client_id):
        return None
    event = parse_event(name, client_id, message.payload)
    SEEN[name].inc()
    match event:
        case None:
            return None
        case Acked(topic=topic) | DeliveryDropped(topic=topic) | Subscribed(topic_filter=topic):
            return queue_of_topic(event.owner, topic), event
    return fanout_queue(event.owner), event


class EventReader:
    """Reads the broker's messages and offers their events to the scheduler.

    QoS 1 messages are bounded by the receive maximum, QoS 0 messages by `crowd`, the number of owners with events in hand.
    """

    def __init__(self, mqtt: Mqtt, offer: Offer, crowd: Callable[[], int]) -> None:
        self._mqtt, self._offer, self._crowd = mqtt, offer, crowd
        self.open = True

    def take(self, message: Message) -> None:
        """Handle a message from the broker."""
        if not self.open:
            return  # not acknowledged, so another replica, or the next run of this one, gets it
        if not message.qos and self._crowd() >= MAX_OWNERS_IN_HAND:
            _metrics.DROPPED_SIGNS.inc()
            return
        try:
            read_as = read(message)
        except ValueError as exc:
            _metrics.REFUSED_EVENTS.inc()
            log.warning("event rejected", topic=message.topic, reason=str(exc))
            read_as = None
        except Exception:  # without an ack, it would occupy a place of the receive maximum for good
            _metrics.REFUSED_EVENTS.inc()
            log.exception("event parsing failed", topic=message.topic)
            read_as = None
        if read_as is None:
            self._mqtt.ack(message)
            return
        queue, event = read_as
        # Drop the payload while the event waits: a vehicle chooses how large it is.
        slip = Message("", b"", message.qos, mid=message.mid, connection=message.connection)
        self._offer(queue, event, partial(self._mqtt.ack, slip) if message.qos else None)

    def take_unreadable(self, message: Message) -> None:
        """Acknowledge a message whose packet cannot be parsed. The event it may have held is recovered like any lost event."""
        _metrics.REFUSED_EVENTS.inc()
        self._mqtt.ack(message)
