"""Content of a compacted queue: the newest message per key, acknowledged messages, and rewinds."""

from datetime import timedelta

from manifold.contracts.seq import datetime_of
from manifold.contracts.topics import Sign
from tests.dispatcher.ecq.ground import EcqGround, keys_of
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import wait_until


def test_a_thousand_writes_to_ten_keys_deliver_the_newest_of_each(ground: EcqGround, protocol: int) -> None:
    """The newest message of a key is its state."""
    consumer = Vehicle(ground, protocol=protocol)
    ground.write_all(consumer, [(f"k{n % 10}", b"%d" % n) for n in range(1000)])
    ground.in_queue(consumer, 10)

    ground.listens(consumer.connect(subscribe=False))

    got = consumer.waits_for(10)
    assert [each.payload for each in got] == [b"%d" % n for n in range(990, 1000)]
    ground.nothing_waiting(consumer)
    assert len(consumer.got) == 10
    consumer.leave()


def test_an_expired_message_is_never_sent_even_after_subscribe_or_rewind(ground: EcqGround, protocol: int) -> None:
    consumer = Vehicle(ground, protocol=protocol)
    old = ground.queue_aged(consumer, "a", timedelta(days=ground.settings.ecq_retention_days, seconds=1))
    young = ground.write(consumer, "b", b"young")

    ground.listens(consumer.connect(subscribe=False))

    assert [each.payload for each in consumer.waits_for(1)] == [b"young"]
    ground.acknowledged_up_to(consumer, young)
    assert [(record.seq, record.passed_over) for record in ground.expired(consumer)] == [(old, True)]
    ground.rewind(consumer, "earliest")
    assert [each.payload for each in consumer.waits_for(2)] == [b"young"] * 2
    assert [message.seq for message in ground.queue(consumer).messages] == [young]
    assert len(ground.expired(consumer)) == 1
    consumer.leave()


def test_the_message_in_flight_completes_before_a_newer_one_of_its_key(ground: EcqGround, protocol: int) -> None:
    consumer = ground.consumer(protocol, acks=False)
    ground.write(consumer, "a", b"old")
    (old,) = consumer.waits_for(1)
    for n in range(3):
        newest = ground.write(consumer, "a", b"new %d" % n)
    assert len(consumer.got) == 1

    consumer.acks = True
    consumer.ack(old)

    assert [each.payload for each in consumer.waits_for(2)] == [b"old", b"new 2"]
    ground.acknowledged_up_to(consumer, newest)
    assert [message.seq for message in ground.queue(consumer).messages] == [newest]
    consumer.leave()


def test_a_superseded_message_in_flight_is_not_sent_to_a_new_session(ground: EcqGround, protocol: int) -> None:
    consumer = ground.consumer(protocol, acks=False)
    ground.write(consumer, "a", b"old")
    consumer.waits_for(1)
    ground.crashes(consumer)
    newest = ground.write(consumer, "a", b"new")

    consumer.acks = True
    ground.listens(consumer.connect(clean=True, subscribe=False))

    ground.acknowledged_up_to(consumer, newest)
    assert [each.payload for each in consumer.got] == [b"old", b"new"]
    consumer.leave()


def test_a_resumed_session_gets_the_message_in_flight_from_the_broker_once(ground: EcqGround, protocol: int) -> None:
    """One copy for each session."""
    consumer = ground.consumer(protocol, acks=False)
    ground.write_all(consumer, [("a", b"1"), ("b", b"2")])
    consumer.waits_for(1)
    ground.crashes(consumer)

    consumer.acks = True
    consumer.connect(subscribe=False)
    consumer.say(Sign.HEARTBEAT)

    assert [(each.payload, each.dup) for each in consumer.waits_for(3)] == [(b"1", False), (b"1", True), (b"2", False)]
    ground.nothing_waiting(consumer)
    consumer.leave()


def test_a_takeover_moves_the_queue_to_the_new_connection(ground: EcqGround, protocol: int) -> None:
    """The consumer of a queue is the client id, not a connection."""
    first = ground.consumer(protocol, acks=False)
    ground.write_all(first, [("a", b"1"), ("b", b"2")])
    first.waits_for(1)

    second = Vehicle(ground, protocol=protocol, vin=first.vin)
    second.connect(subscribe=False)
    first.forget()

    assert [each.payload for each in second.waits_for(2)] == [b"1", b"2"]
    ground.nothing_waiting(second)
    second.leave()


def test_a_negative_ack_counts_as_an_ack_and_the_message_stays_readable(ground: EcqGround) -> None:
    """The consumer has decided; the reason is kept."""
    consumer = ground.consumer(acks=False)
    seq = ground.write(consumer, "a", b"1")
    consumer.refuse(consumer.waits_for(1)[0], 0x83, "no such setting")

    ground.acknowledged_up_to(consumer, seq)
    assert [(message.key, message.is_delivered) for message in ground.queue(consumer).messages] == [("a", True)]
    consumer.leave()


def test_large_and_empty_messages_arrive_unchanged(ground: EcqGround, protocol: int) -> None:
    consumer = Vehicle(ground, protocol=protocol)
    messages = [("empty", b""), ("nul", b"\0\xff\0"), ("large", bytes(range(256)) * 800), ("k" * 512, b"of a long key")]
    ground.write_all(consumer, messages)
    ground.listens(consumer.connect(subscribe=False))
    got = consumer.waits_for(4)
    assert list(zip(keys_of(got), [each.payload for each in got], strict=True)) == messages
    consumer.leave()


def test_a_message_too_large_for_the_connection_is_skipped_at_once(ground: EcqGround) -> None:
    """No attempt can succeed while this connection lasts."""
    consumer = Vehicle(ground, largest_packet=256)
    seqs = ground.write_all(consumer, [("large", bytes(5_000)), ("larger", bytes(50_000)), ("small", b"1")])
    ground.listens(consumer.connect(subscribe=False))

    assert keys_of(consumer.waits_for(1)) == ["small"]
    ground.acknowledged_up_to(consumer, seqs[-1])
    assert [message.key for message in ground.queue(consumer).messages] == ["large", "larger", "small"]
    consumer.leave()


def test_a_rewind_to_earliest_resends_live_messages_in_order(ground: EcqGround, protocol: int) -> None:
    """Superseded messages are gone."""
    consumer, seqs = _served(ground, protocol, ["a", "b", "a", "c"])

    ground.rewind(consumer, "earliest")

    assert keys_of(consumer.waits_for(7)[4:]) == ["b", "a", "c"]
    ground.acknowledged_up_to(consumer, seqs[-1])
    consumer.leave()


def test_a_rewind_to_a_seq_resends_from_that_message(ground: EcqGround, protocol: int) -> None:
    consumer, seqs = _served(ground, protocol, ["a", "b", "c", "d"])

    ground.rewind(consumer, str(seqs[2]))

    assert keys_of(consumer.waits_for(6)[4:]) == ["c", "d"]
    ground.acknowledged_up_to(consumer, seqs[-1])
    consumer.leave()


def test_a_rewind_to_a_time_resends_later_writes(ground: EcqGround, protocol: int) -> None:
    """The time is in the seq."""
    consumer, seqs = _served(ground, protocol, ["a", "b"])
    wait_until(lambda: ground.write(consumer, "later", b"") >> 22 > seqs[1] >> 22, what="a later millisecond")
    consumer.waits_for(3)
    ground.nothing_waiting(consumer)
    before = len(consumer.got)

    ground.rewind(consumer, (datetime_of(seqs[1]) + timedelta(milliseconds=1)).isoformat())

    assert keys_of(consumer.waits_for(before + 1)[before:]) == ["later"]
    consumer.leave()


def test_an_ack_sent_before_a_rewind_ends_only_its_own_message(ground: EcqGround, protocol: int) -> None:
    """Acknowledgements are matched by seq."""
    consumer, seqs = _served(ground, protocol, ["a", "b"])
    consumer.acks = False
    last = ground.write(consumer, "c", b"")
    in_flight = consumer.waits_for(3)[2]
    ground.rewind(consumer, "earliest")
    ground.in_queue(consumer, 3)

    consumer.acks = True
    consumer.ack(in_flight)

    assert keys_of(consumer.waits_for(5)[3:]) == ["a", "b"]
    ground.nothing_waiting(consumer)
    ground.acknowledged_up_to(consumer, last)
    assert len(consumer.got) == 5
    assert seqs[-1] < last
    consumer.leave()


def test_an_unacknowledged_message_is_resent_with_its_seq(brisk: EcqGround) -> None:
    consumer = brisk.consumer(acks=False)
    seq = brisk.write(consumer, "a", b"1")

    again = consumer.waits_for(2)[1]
    consumer.ack(again)

    brisk.acknowledged_up_to(consumer, seq)
    assert {each.seq for each in consumer.got} == {seq}
    consumer.leave()


def test_a_message_is_skipped_after_its_last_attempt_and_a_rewind_resends_it(brisk: EcqGround) -> None:
    """One message must not hold up the others."""
    consumer = brisk.consumer(acks=False)
    first = brisk.write(consumer, "a", b"1")
    second = brisk.write(consumer, "b", b"2")

    wait_until(lambda: any(each.seq == second for each in consumer.got), what="the next message")
    assert [each.seq for each in consumer.got[:3]] == [first] * 3
    consumer.acks = True
    brisk.rewind(consumer, "earliest")
    wait_until(lambda: [each.seq for each in consumer.got[-2:]] == [first, second], what=f"both again: {consumer.got}")
    consumer.leave()


def _served(ground: EcqGround, protocol: int, keys: list[str]) -> tuple[Vehicle, list[int]]:
    """A consumer that has acknowledged one message for each of these keys, and their seqs."""
    consumer = ground.consumer(protocol)
    seqs = []
    for place, key in enumerate(keys, 1):
        seqs.append(ground.write(consumer, key, b"%d" % place))
        consumer.waits_for(place)
    ground.acknowledged_up_to(consumer, seqs[-1])
    return consumer, seqs
