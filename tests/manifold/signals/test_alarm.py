"""Services of a test's own: RabbitMQ's memory alarm, expired messages, and interrupted work."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from aio_pika import Message

from manifold.contracts.signals import topology
from manifold.contracts.signals.records import DIGEST
from manifold.contracts.signals.rights import DOOR
from manifold.lake.day_keys import DayKeys
from manifold.messaging.amqp import connection_url
from manifold.sandbox.platform import rabbitmq as embedded
from manifold.settings import Settings
from manifold.signals._outgoing import Outgoing
from manifold.signals._session import SESSION_ERRORS, open_session
from tests.manifold.signals.gateway import Door, Gateway, body_of, now_text, signed
from tests.manifold.signals.test_dead_letters import refusals, replayed
from tests.manifold.signals.test_faults import health
from tests.support.rabbitmq import ctl
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow
CONFIRM_S = 0.5


@contextmanager
def alarm(settings: Settings) -> Iterator[None]:
    """Make the server believe that it is out of memory."""
    ctl(settings, "set_vm_memory_high_watermark", "0")
    try:
        yield
    finally:
        ctl(settings, "set_vm_memory_high_watermark", "absolute", str(embedded.MEMORY_BYTES))


def slow_door(own_door: Door) -> Door:
    """The service with a confirm timeout of half a second."""
    return own_door.with_settings(signals_confirm_seconds=CONFIRM_S)


def test_a_rabbitmq_memory_alarm_records_nothing_twice(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    door = slow_door(own_door)
    for number in range(5):
        gateway.send_signed(body_of(f"device-{number}"), device=f"device-{number}")
    gateway.send(b"no JSON", {})
    with alarm(rabbitmq):
        door.start(healthy=False)
        wait_until(lambda: "RabbitMQ blocks publishers" in " ".join(health(door)["problems"]))
        assert httpx.get(f"{door.settings.signals}/healthz").status_code == 503
        ctl(rabbitmq, "close_all_connections", "the operator has closed them")
        wait_until(lambda: door.log.count("rabbitmq unavailable") >= 1)
        wait_until(lambda: door.log.count("waiting for dependency") >= 2, what="the client to wait again")
    client = Gateway(rabbitmq)
    wait_until(lambda: client.count(topology.PROCESSED) >= 5)
    wait_until(lambda: health(door)["healthy"] and client.count(topology.RAW) == 0)
    ids = {client.get(topology.PROCESSED)[0].message_id for _ in range(client.count(topology.PROCESSED))}

    assert len(ids) == 5
    assert len(door.recorded()) == 6


def test_a_refused_message_has_one_digest_if_the_service_dies_before_its_ack(
    own_door: Door, rabbitmq: Settings, gateway: Gateway
) -> None:
    """It is in the journal twice; by its digest the lake takes one."""
    status = json.dumps({"deviceId": "device-1", "status": "online", "lastSeen": now_text()}).encode()
    gateway.send(b"no JSON", {"x-device-id": "device-1"})
    gateway.send(status, signed(status), queue=topology.STATUS)
    with alarm(rabbitmq):
        server = own_door.start(healthy=False)
        wait_until(lambda: own_door.recorded())
        server.kill()
    own_door.start()
    wait_until(lambda: gateway.count(topology.DEAD) >= 1)  # two if RabbitMQ reads the first publish once it has room
    wait_until(lambda: gateway.count(topology.RAW) == 0 and health(own_door)["in_hand"] == 0)
    found = [e.headers[DIGEST] for e in own_door.recorded()]

    assert len(found) == 2
    assert len(set(found)) == 1


def test_an_expired_message_is_recorded_and_a_dead_letter(own_door: Door, gateway: Gateway) -> None:
    """An error header written by a client does not prevent the record."""
    bodies = [body_of("device-1"), body_of("device-2")]
    gateway.send(bodies[0], signed(bodies[0]), expiration="1")
    gateway.send(bodies[1], signed(bodies[1], device="device-2") | {"x-error": "{}"}, expiration="1")
    wait_until(lambda: gateway.count(topology.DEAD) == 2)
    own_door.start()
    wait_until(lambda: len(refusals(own_door)) == 2)
    found = refusals(own_door)
    wait_until(lambda: gateway.count(topology.DEAD_COPY) == 0)

    assert [e.refused_because.partition(":")[0] for e in found] == ["PROCESSING_ERROR"] * 2  # type: ignore[union-attr]
    assert [e.topic for e in found] == ["xray.raw.v1/device-1", "xray.raw.v1/device-2"]
    assert [DayKeys.of(own_door.settings).open(e.payload, seq=e.seq) for e in found] == bodies
    assert gateway.count(topology.DEAD) == 2
    assert replayed(own_door, "--vouch") == [("EXPIRED", "accepted", False, True)] * 2
    assert gateway.get(topology.PROCESSED)
    assert gateway.get(topology.PROCESSED)


def test_a_publisher_whose_connection_ends_gets_a_connection_error(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """The library cancels the waiting task; mistaken for its own cancellation, that ended the service."""
    gateway.purge()
    one = Outgoing(topology.EXCHANGE, topology.PROCESSED, Message(b"{}"))

    async def scenario() -> list[Exception | None]:
        url = connection_url(rabbitmq, as_user=DOOR)
        async with open_session(url, own_door.settings) as session:
            publishing = asyncio.create_task(session.publish([one]))
            while not await session.is_blocked():  # noqa: ASYNC110  # polled from the library
                await asyncio.sleep(0.01)
        await asyncio.wait((publishing,))
        return publishing.result()

    with alarm(rabbitmq):
        [why] = asyncio.run(scenario())
    assert isinstance(why, SESSION_ERRORS)


def test_a_service_that_may_not_read_one_queue_keeps_its_journal_whole(
    own_door: Door, rabbitmq: Settings, gateway: Gateway
) -> None:
    """Another consumer has exclusive access to the statuses. Each attempt is refused while signals are written to the journal."""
    other = Gateway(rabbitmq)
    other.channel.basic_consume(topology.STATUS, lambda *_: None, exclusive=True)
    names = [f"device-{number}" for number in range(150)]
    for name in names:
        gateway.send_signed(body_of(name, payload=b"x" * 100_000), device=name)
    own_door.start(healthy=False)
    wait_until(lambda: own_door.log.count("rabbitmq unavailable") and len(own_door.recorded()) > 10)
    wait_until(lambda: gateway.count(topology.PROCESSED) >= 20)
    other.close()
    wait_until(lambda: health(own_door)["healthy"], within_s=90)
    wait_until(lambda: gateway.count(topology.PROCESSED) >= len(names))
    answer = httpx.post(f"{own_door.settings.signals}/flush", timeout=90)

    assert (answer.status_code, answer.json()["left_in_journal"]) == (200, [])
