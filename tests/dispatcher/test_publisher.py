"""Publishes suspected of breaking the connection are sent alone and block others as briefly as possible."""

import asyncio

from dispatcher._events import ClaimEvent, Loaded, NotPublished, Publish, Published, PublishLost
from dispatcher._monotonic import monotonic_ms
from dispatcher._publisher import Publisher, Window
from manifold.contracts.names import Owner
from manifold.messaging.mqtt import Mqtt
from tests.manifold.messaging.test_mqtt import cuttable, run, until, url
from tests.support.servers import Server

SUSPECT, OTHER = Owner("S"), Owner("O")
SOON_MS, LATE_MS = 500, 60_000


def publish(seq: int, within_ms: int) -> Publish:
    return Publish(Loaded(seq, 1, "r", "d", b"x"), monotonic_ms() + within_ms)


def test_a_suspect_is_sent_alone_and_blocks_others_only_until_its_deadline(mosquitto: Server) -> None:
    reports: list[tuple[Owner, ClaimEvent]] = []

    async def scenario() -> None:
        async with cuttable(mosquitto.port) as (port, cut, answering), Mqtt(url(port), "sdv-publisher") as mqtt:
            publisher = Publisher(
                mqtt,
                topic_of=lambda queue, name: f"{queue}/{name}",
                ruling=lambda *_: None,
                window=Window(10, 1 << 20),
                report=lambda *each: reports.append(each),
                on_empty_backlog=lambda: None,
            )
            running = asyncio.create_task(publisher.run())
            for lost in (1, 2):
                await mqtt.wait_connected()
                answering.clear()
                publisher.send(SUSPECT, publish(1, LATE_MS))
                assert publisher.unconfirmed == 1
                cut()
                await until(lambda: len(reports) == lost)  # noqa: B023  # awaited here
                answering.set()
            assert reports == [(SUSPECT, PublishLost(1, 1))] * 2

            await mqtt.wait_connected()
            answering.clear()
            publisher.send(SUSPECT, publish(1, SOON_MS))
            publisher.send(OTHER, publish(2, LATE_MS))
            assert (publisher.unconfirmed, publisher.backlog) == (1, 1)
            await until(lambda: publisher.unconfirmed == 2)  # no reply and no new request so far

            publisher.send(SUSPECT, publish(1, SOON_MS))
            publisher.send(OTHER, publish(3, LATE_MS))
            assert (publisher.unconfirmed, publisher.backlog) == (2, 2)
            await until(lambda: publisher.unconfirmed == 3)
            assert reports[2:] == [(SUSPECT, NotPublished(1, 1))]

            answering.set()
            await until(lambda: publisher.unconfirmed == 0)
            assert {(owner, type(report)) for owner, report in reports[3:]} == {(SUSPECT, Published), (OTHER, Published)}
            running.cancel()

    run(scenario())
