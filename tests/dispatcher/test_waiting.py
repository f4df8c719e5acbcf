"""Which events of one owner wait, and which are dropped."""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher._effect_batch import EffectBatch
from dispatcher._event_reader import HEARD, MAX_BUSY_OWNERS, EventReader
from dispatcher._events import Event
from dispatcher._waiting import MAX_WAITING_CONNECTIONS, Job, enqueue_job
from manifold.contracts import keys
from manifold.contracts.events import Connected, Disconnected, PresenceSign, Subscribed
from manifold.contracts.names import Owner
from manifold.contracts.topics import Sign, sign_topic
from manifold.messaging.mqtt import Message, Mqtt
from manifold.queues import Policy, Queues, connect
from manifold.queues.verbs.claims import UpdatePresence
from manifold.settings import Settings
from tests.dispatcher.steps import ACKED, LISTENS, NOW, VIN
from tests.support.servers import Server, start_redis, stopping

STOPS = Subscribed(VIN, NOW + 1, LISTENS.topic_filter, on=False)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("waiting")
    with stopping(start_redis(folder)) as server:
        yield server


def came(at_ms: int, *, clean: bool = False) -> Connected:
    return Connected(VIN, at_ms, clean, 60)


def left(connected_at_ms: int) -> Disconnected:
    return Disconnected(VIN, connected_at_ms + 1, connected_at_ms, None, "tcp_closed")


def waiting_after(events: list[Event], done: list[int] | None = None) -> list[Event]:
    """The events that wait after these arrived in order; `done` receives the indexes of the completed ones."""
    waiting: deque[Job] = deque()
    finished: list[int] = [] if done is None else done
    for place, event in enumerate(events):
        enqueue_job(waiting, Job(VIN, event, partial(finished.append, place)))
    return [job.event for job in waiting]


def test_of_presence_messages_and_subscriptions_only_the_last_waits() -> None:
    done: list[int] = []
    flood: list[Event] = [HEARD, LISTENS, ACKED, HEARD, STOPS, HEARD]
    assert waiting_after(flood, done) == [ACKED, STOPS, HEARD]
    assert done == [0, 1, 3]


def test_a_qos_0_presence_message_keeps_the_ack_of_the_one_it_replaces() -> None:
    waiting: deque[Job] = deque()
    done: list[str] = []
    enqueue_job(waiting, Job(VIN, HEARD, lambda: done.append("with QoS 1")))
    enqueue_job(waiting, Job(VIN, HEARD, None))
    assert done == []
    (job,) = waiting
    assert job.done is not None
    job.done()
    assert done == ["with QoS 1"]


def test_connections_of_one_vehicle_are_limited_to_their_share() -> None:
    done: list[int] = []
    storm: list[Event] = [event for at in range(0, 2000, 2) for event in (came(at), left(at))]
    kept = waiting_after([ACKED, *storm], done)
    assert kept == [ACKED, *storm[-MAX_WAITING_CONNECTIONS:]]
    assert done == list(range(1, len(storm) - MAX_WAITING_CONNECTIONS + 1))


EVENTS = st.one_of(
    st.just(HEARD),
    st.builds(Subscribed, st.just(VIN), st.integers(NOW, NOW + 99), st.just(LISTENS.topic_filter), st.booleans()),
    st.builds(Connected, st.just(VIN), st.integers(NOW, NOW + 99), st.booleans(), st.sampled_from([0, 60])),
    st.builds(Disconnected, st.just(VIN), st.integers(NOW, NOW + 99), st.integers(NOW, NOW + 99), st.none(), st.just("x")),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(EVENTS, max_size=12))
def test_coalesced_events_carry_the_same_information(redis: Server, events: list[Event]) -> None:
    async def presences() -> list[Any]:
        async with connect(f"redis://127.0.0.1:{redis.port}") as client:
            queues = Queues(client, Policy.of(Settings()))
            known: list[Any] = []
            await client.flushall()
            for owner, line in (("all", events), ("joined", waiting_after(events))):
                for event in line:
                    assert isinstance(event, PresenceSign | Connected | Disconnected | Subscribed)
                    batch = EffectBatch(queues, NOW, asked_at=0)
                    batch.add(Owner(owner), UpdatePresence(event, claim=False))
                    await batch.run(repeated=False)
                known.append(await cast(Any, client.hgetall(keys.presence(owner))))
            return known

    after_all, after_joined = asyncio.run(presences())
    assert after_joined == after_all


def test_qos_0_presence_messages_are_dropped_when_too_many_events_wait() -> None:
    offered: list[tuple[str, Event]] = []
    crowd = MAX_BUSY_OWNERS
    reader = EventReader(
        Mqtt("mqtt://127.0.0.1:1", "sdv-x"), lambda owner, event, _: offered.append((owner, event)), lambda: crowd
    )
    topic = sign_topic(VIN, Sign.ONLINE)
    reader.handle_message(Message(topic, b"", qos=0))
    assert offered == []
    reader.handle_message(Message(topic, b"", qos=1))
    crowd -= 1
    reader.handle_message(Message(topic, b"", qos=0))
    assert offered == [(VIN, HEARD)] * 2


def test_a_waiting_presence_message_keeps_no_payload() -> None:
    waiting: list[object] = []
    reader = EventReader(Mqtt("mqtt://127.0.0.1:1", "sdv-x"), lambda *offered: waiting.append(offered), lambda: 0)
    payload = bytes(1000)
    before = sys.getrefcount(payload)
    reader.handle_message(Message(sign_topic(VIN, Sign.ONLINE), payload, qos=1))
    assert len(waiting) == 1
    assert sys.getrefcount(payload) == before
