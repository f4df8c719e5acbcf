"""The sandbox of the cases, with helpers for compacted queues."""

from datetime import timedelta
from typing import Any

from manifold.archive.records import read_journal
from manifold.contracts import keys
from manifold.contracts.ecq import ACKNOWLEDGEMENTS, EcqAck
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.contracts.topics import ecq_filter, ecq_rewind_topic, ecq_write_topic
from manifold.queues.verbs.ecq import Append
from manifold.queues.verbs.ecq_reads import Read, ReadReply
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.vehicle import Got, Vehicle
from tests.support.servers import wait_until


class EcqGround(Ground):
    """Publishers and consumers of compacted queues, and queries about them."""

    def consumer(self, protocol: int = 5, *, acks: bool = True) -> Vehicle:
        """A connected consumer that has subscribed to its queue; with `acks` it acknowledges at once."""
        consumer = Vehicle(self, protocol=protocol)
        consumer.acks = acks
        return self.listens(consumer.connect(subscribe=False))

    def write(self, consumer: Vehicle, key: str, payload: bytes = b"") -> int:
        """Publish one message and wait until it is accepted; return its seq."""
        return self.write_all(consumer, [(key, payload)])[0]

    def write_all(self, consumer: Vehicle, messages: list[tuple[str, bytes]]) -> list[int]:
        """Publish messages back to back; return their seqs."""
        receipts = self.platform_client.send_all([(ecq_write_topic(consumer.vin, key), payload) for key, payload in messages])
        assert {receipt["status"] for receipt in receipts} == {"recorded"}, receipts
        return [int(receipt["seq"]) for receipt in receipts]

    def queue_aged(self, consumer: Vehicle, key: str, age: timedelta) -> int:
        """Append a message of this age to the queue; return its seq."""
        now_ms = wall_clock_ms()
        seq = seq_of(now_ms - round(age.total_seconds() * 1000), 0, 0)

        async def append(queues: Any) -> None:
            batch = queues.batch()
            batch.add(ecq_queue(consumer.vin), Append(seq, key, b"aged"), now_ms)
            await batch.run()

        self.platform.ask(append)
        return seq

    def expired(self, consumer: Vehicle) -> list[EcqAck]:
        """The expiry records of the consumer's messages in the recorder's journal, once there is one."""

        def records() -> list[EcqAck]:
            files = [read_journal(path) for path in sorted(self.settings.journal_folder.iterdir())]
            topic = f"{ACKNOWLEDGEMENTS}{consumer.vin}"
            found = [EcqAck.from_wire(m.payload) for file in files for m in file.messages if m.topic == topic]
            return [record for record in found if record.is_expired]

        wait_until(lambda: bool(records()), what=f"a message of {consumer.vin} to expire")
        return records()

    def rewind(self, consumer: Vehicle, word: str) -> None:
        """Publish a rewind for the consumer."""
        consumer.client.publish(ecq_rewind_topic(consumer.vin), word.encode(), qos=1).wait_for_publish(60)

    def listens(self, consumer: Vehicle, topic_filter: str | None = None, *, qos: int = 1) -> Vehicle:
        """Subscribe the consumer to its queue and return it once the dispatcher knows."""
        consumer.subscribe(topic_filter or ecq_filter(consumer.vin), qos=qos)
        wait_until(lambda: "ecq" in self.platform.presence(consumer.vin), what=f"the subscription of {consumer.vin}")
        return consumer

    def queue(self, consumer: Vehicle) -> ReadReply:
        """All live messages in Redis."""

        async def read(queues: Any) -> ReadReply:
            batch = queues.batch()
            batch.add(ecq_queue(consumer.vin), Read(), wall_clock_ms())
            (reply,) = await batch.run()
            assert isinstance(reply, ReadReply)
            return reply

        return self.platform.ask(read)

    def in_queue(self, consumer: Vehicle, count: int) -> list[int]:
        """The seqs pending or in flight, once there are this many."""
        wait_until(
            lambda: len(self.waiting(consumer)) == count, what=f"{count} messages of {consumer.vin}: {self.queue(consumer)}"
        )
        return self.waiting(consumer)

    def waiting(self, consumer: Vehicle) -> list[int]:
        return [message.seq for message in self.queue(consumer).messages if not message.is_delivered]

    def nothing_waiting(self, consumer: Vehicle) -> None:
        """Wait until all messages are acknowledged."""
        wait_until(lambda: not self.waiting(consumer), what=f"the queue of {consumer.vin} to be empty: {self.queue(consumer)}")

    def acknowledged_up_to(self, consumer: Vehicle, seq: int) -> None:
        """Wait until the position is at this seq."""
        wait_until(lambda: self.queue(consumer).acked_seq == seq, what=f"position {seq}, not {self.queue(consumer)}")

    def in_flight(self, vehicle: Vehicle) -> int | None:
        with self.platform.blocking() as redis:
            found: Any = redis.hget(keys.ecq_keys(vehicle.vin)[1], "seq")
        return None if found is None else int(found)


def keys_of(got: list[Got]) -> list[str]:
    """The keys of received messages in order."""
    return [each.topic.split("/", 2)[2] for each in got]
