"""Events wait for the broker, are never dropped, and arrive in order."""

import asyncio
from pathlib import Path

from structlog.testing import capture_logs

from manifold.sandbox.tap import event_publisher
from manifold.sandbox.tap.event_publisher import EventPublisher
from tests.manifold.messaging.test_mqtt import cuttable, until
from tests.manifold.sandbox.tap.raw_connection import PUBLISH, RawConnection
from tests.support.servers import Server, free_port, start_mosquitto, stopping

WITHIN_S = 60


def dial_to(port: int) -> event_publisher.Dial:
    async def dial(factory: event_publisher.Factory) -> object:
        return await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", port)

    return dial


def test_a_flood_of_events_pauses_the_readers_and_arrives_complete(mosquitto: Server) -> None:
    full: list[bool] = []
    done: list[int] = []
    total = event_publisher.HIGH_WATERMARK + 500

    async def flood() -> None:
        it = EventPublisher(dial_to(mosquitto.port), full.append)
        for n in range(total):
            it.publish(b"flood/events", b"%d" % n, lambda n=n: done.append(n))  # type: ignore[misc]  # mypy sees no default here
        running = asyncio.create_task(it.run())
        assert await it.drain(WITHIN_S)
        running.cancel()

    with RawConnection(mosquitto.port) as listener:
        listener.open("ears-flood")
        listener.listen("flood/events")
        asyncio.run(flood())
        heard = [listener.expect(PUBLISH).payload for _ in range(1000)]

    assert full == [True, False]
    assert done == list(range(total))
    assert heard == [b"%d" % n for n in range(1000)]


def test_events_wait_for_an_unreachable_broker(tmp_path: Path) -> None:
    port = free_port()
    done: list[int] = []

    async def tell() -> None:
        it = EventPublisher(dial_to(port), lambda _: None)
        running = asyncio.create_task(it.run())
        for n in range(50):
            it.publish(b"away", b"%d" % n, lambda n=n: done.append(n))  # type: ignore[misc]  # mypy does not see the default
        assert not await it.drain(0.3)
        with stopping(await asyncio.to_thread(start_mosquitto, tmp_path, port=port)):
            assert await it.drain(WITHIN_S)
            running.cancel()

    asyncio.run(tell())

    assert done == list(range(50))


def test_unconfirmed_events_are_resent_after_a_broker_kill(tmp_path: Path) -> None:
    port = free_port()
    kept = "persistence true\nautosave_interval 1\n"

    async def tell() -> None:
        it = EventPublisher(dial_to(port), lambda _: None)
        running = asyncio.create_task(it.run())
        broker = await asyncio.to_thread(start_mosquitto, tmp_path, port=port, extra=kept)
        it.publish(b"again", b"before")
        assert await it.drain(WITHIN_S)
        broker.kill()
        for n in range(20):
            it.publish(b"again", b"%d" % n)
        with stopping(await asyncio.to_thread(start_mosquitto, tmp_path, port=port, extra=kept)):
            assert await it.drain(WITHIN_S)
            assert (it.confirmed, it.backlog) == (21, 0)
            running.cancel()

    asyncio.run(tell())


def test_each_loss_of_a_connection_that_worked_is_logged_once(mosquitto: Server) -> None:
    losses = 3

    async def lose() -> None:
        async with asyncio.timeout(WITHIN_S), cuttable(mosquitto.port) as (port, cut, _):
            it = EventPublisher(dial_to(port), lambda _: None)
            running = asyncio.create_task(it.run())
            for loss in range(losses):
                await until(lambda loss=loss: it.reconnects == loss)  # type: ignore[misc]  # mypy does not see the default
                cut()
            await until(lambda: it.reconnects == losses)
            running.cancel()

    with capture_logs() as logs:
        asyncio.run(lose())

    reasons = [entry["reason"] for entry in logs if entry["event"].startswith("event publisher not connected")]
    assert reasons == ["closed by the broker"] * losses
