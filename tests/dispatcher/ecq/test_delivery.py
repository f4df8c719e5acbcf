"""Triggers for the delivery of a compacted queue: a write, a subscription, a resumed session, a heartbeat."""

import pytest

from manifold.contracts import keys
from manifold.contracts.topics import Sign
from tests.dispatcher.ecq.ground import EcqGround, keys_of
from tests.dispatcher.vehicle import Vehicle


def test_a_subscribed_consumer_gets_a_write_at_once(ground: EcqGround, protocol: int) -> None:
    """In real time, without a sign; the position follows."""
    consumer = ground.consumer(protocol)

    seqs = [ground.write(consumer, key, key.encode()) for key in ("climate", "calendar/monday", "größe")]

    got = consumer.waits_for(3)
    assert keys_of(got) == ["climate", "calendar/monday", "größe"]
    assert [each.payload.decode() for each in got] == keys_of(got)
    assert [each.seq for each in got] == (seqs if protocol == 5 else [None] * 3)
    ground.acknowledged_up_to(consumer, seqs[-1])
    consumer.leave()


def test_a_new_subscription_gets_pending_messages_in_order(ground: EcqGround, protocol: int) -> None:
    """The subscription says that it is ready."""
    consumer = Vehicle(ground, protocol=protocol)
    seqs = ground.write_all(consumer, [(f"k{n}", b"%d" % n) for n in range(5)])
    ground.in_queue(consumer, 5)

    ground.listens(consumer.connect(subscribe=False))

    assert keys_of(consumer.waits_for(5)) == [f"k{n}" for n in range(5)]
    ground.acknowledged_up_to(consumer, seqs[-1])
    consumer.leave()


def test_a_resumed_session_gets_pending_messages_without_a_new_subscribe(ground: EcqGround, protocol: int) -> None:
    """The session holds the subscription."""
    consumer = ground.consumer(protocol)
    ground.leaves(consumer)
    ground.write_all(consumer, [("a", b"1"), ("b", b"2")])
    ground.in_queue(consumer, 2)

    consumer.connect(subscribe=False)
    assert consumer.session_present
    assert keys_of(consumer.waits_for(2)) == ["a", "b"]

    ground.write(consumer, "c", b"3")
    assert keys_of(consumer.waits_for(3)) == ["a", "b", "c"]
    consumer.leave()


def test_a_resumed_session_is_served_if_its_subscription_is_unknown(ground: EcqGround, protocol: int) -> None:
    """The consumer subscribed before the dispatchers ran, or so long ago that its presence has expired."""
    consumer = ground.consumer(protocol)
    ground.leaves(consumer)
    with ground.platform.blocking() as redis:
        redis.delete(keys.presence(consumer.vin))
    ground.write(consumer, "a", b"1")
    ground.in_queue(consumer, 1)

    consumer.connect(subscribe=False)

    assert keys_of(consumer.waits_for(1)) == ["a"]
    consumer.leave()


@pytest.mark.parametrize("sign", Sign)
def test_a_heartbeat_starts_delivery_if_the_subscribe_event_was_lost(ground: EcqGround, protocol: int, sign: Sign) -> None:
    """Events can be lost."""
    consumer = ground.consumer(protocol)
    with ground.platform.blocking() as redis:
        redis.hset(keys.presence(consumer.vin), "ecq", "no")
    ground.write(consumer, "a", b"1")
    ground.in_queue(consumer, 1)
    assert consumer.got == []

    consumer.say(sign)

    assert keys_of(consumer.waits_for(1)) == ["a"]
    consumer.leave()


def test_a_qos_0_subscription_gets_nothing(ground: EcqGround, protocol: int) -> None:
    """Nothing that is sent so would be acknowledged."""
    consumer = Vehicle(ground, protocol=protocol)
    ground.listens(consumer.connect(subscribe=False), qos=0)
    ground.write_all(consumer, [("a", b"1"), ("b", b"2")])
    consumer.say(Sign.HEARTBEAT)
    ground.in_queue(consumer, 2)
    assert ground.in_flight(consumer) is None
    assert consumer.got == []

    consumer.subscribe(f"$ECQ/{consumer.vin}/#", qos=2)

    assert keys_of(consumer.waits_for(2)) == ["a", "b"]
    consumer.leave()


@pytest.mark.parametrize("topic_filter", ["$ECQ/{}/#", "$ECQ/{}/+", "$ECQ/{}/a"])
def test_any_filter_that_matches_the_topic_counts(ground: EcqGround, protocol: int, topic_filter: str) -> None:
    """The filter of a subscription is between the client and its broker."""
    consumer = Vehicle(ground, protocol=protocol)
    ground.write(consumer, "a", b"1")
    ground.listens(consumer.connect(subscribe=False), topic_filter.format(consumer.vin))
    assert keys_of(consumer.waits_for(1)) == ["a"]
    consumer.leave()


def test_after_unsubscribe_nothing_is_sent_until_a_new_subscribe(ground: EcqGround, protocol: int) -> None:
    consumer = ground.consumer(protocol)
    consumer.unsubscribe(f"$ECQ/{consumer.vin}/#")
    ground.seen(consumer, ecq="no")

    ground.write(consumer, "a", b"1")
    ground.in_queue(consumer, 1)
    assert ground.in_flight(consumer) is None
    ground.listens(consumer)

    assert [(got.topic, got.dup) for got in consumer.waits_for(1)] == [(f"$ECQ/{consumer.vin}/a", False)]
    consumer.leave()


def test_publishing_to_a_consumer_without_subscription_counts_no_attempt(ground: EcqGround, protocol: int) -> None:
    """One publish, which the broker has nobody for; then the queue waits for the subscription."""
    consumer = Vehicle(ground, protocol=protocol).connect(subscribe=False)
    ground.seen(consumer, connected="yes")
    ground.write(consumer, "a", b"1")
    ground.seen(consumer, ecq="no")  # the broker had no subscriber
    assert ground.in_flight(consumer) is None

    ground.listens(consumer)

    assert keys_of(consumer.waits_for(1)) == ["a"]
    consumer.leave()


def test_the_two_queues_of_a_vehicle_are_independent(ground: EcqGround, protocol: int) -> None:
    consumer = Vehicle(ground, protocol=protocol)
    consumer.acks = False
    ground.listens(consumer.connect())
    ground.here(consumer)

    ground.batch(consumer.vin, request_id="first")
    ground.batch(consumer.vin, request_id="second")
    ground.write_all(consumer, [("a", b"1"), ("b", b"2")])

    got = consumer.waits_for(2)
    assert {each.topic for each in got} == {f"agent/{consumer.vin}/proxy/request/first", f"$ECQ/{consumer.vin}/a"}
    ecq = next(each for each in got if each.topic.startswith("$ECQ/"))
    consumer.ack(ecq)
    assert keys_of(consumer.waits_for(3)[2:]) == ["b"]
    consumer.ack(consumer.got[2])
    ground.nothing_waiting(consumer)
    assert len(consumer.got) == 3, "the batch was not acknowledged, and the next one waits for its acknowledgement"
    consumer.leave()
