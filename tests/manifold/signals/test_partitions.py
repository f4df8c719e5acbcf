"""Partitions of the raw queue: the signals of a device in order, by one service at a time; repartitioning loses nothing."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from manifold.contracts.signals import topology
from manifold.messaging.amqp import connection_url
from manifold.settings import Settings
from manifold.signals._freshness import Backlogs
from tests.manifold.signals.gateway import FOREIGN, Door, Gateway, body_of, signed
from tests.support.rabbitmq import running_rabbitmq
from tests.support.servers import Server, wait_until

COUNT, DEVICES, ROUNDS = 4, 12, 5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def with_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A RabbitMQ with the plug-in, as the sandbox starts it for partitions."""
    with running_rabbitmq(tmp_path_factory.mktemp("partitions"), signals_partitions=COUNT) as settings:
        yield settings


def send_round(gateway: Gateway, number: int) -> list[tuple[str, int]]:
    """Send one signal per device with `number` as payload."""
    sent = [(f"device-{n}", number) for n in range(DEVICES)]
    for device, _ in sent:
        body = body_of(device, str(number).encode())
        gateway.send(body, signed(body, device=device) | {"x-device-id": device})
    return sent


def processed(gateway: Gateway, count: int) -> list[tuple[str, int]]:
    """Device and payload of this many processed messages, in order."""
    said = [json.loads(gateway.get(topology.PROCESSED)[1]) for _ in range(count)]
    return [(one["deviceId"], int(base64.b64decode(one["originalPayload"]))) for one in said]


def test_each_device_belongs_to_one_service_with_partitions_and_to_any_without(
    with_plugin: Settings, tmp_path: Path, redis_server: Server
) -> None:
    doors = [
        Door(tmp_path / f"door-{n}", with_plugin, redis_server.port, signals_partitions=COUNT, signals_prefetch=5)
        for n in range(2)
    ]
    gateway = Gateway(with_plugin)
    try:
        for door in doors:
            door.start()
        sent = [one for number in range(ROUNDS) for one in send_round(gateway, number)]
        got = processed(gateway, len(sent))
        of_device = {device: [value for name, value in got if name == device] for device, _ in sent}
        assert of_device == {device: list(range(ROUNDS)) for device, _ in sent}
        assert [len(door.recorded()) for door in doors] == [len(sent), 0], "the first consumer reads all partitions"

        assert doors[0].server is not None
        doors[0].server.kill()
        later = send_round(gateway, ROUNDS)
        assert sorted(processed(gateway, len(later))) == sorted(later)
        assert [door.home for door in doors if FOREIGN in door.log] == []

        doors[1].stop()
        waiting = send_round(gateway, ROUNDS + 1)
        spread = {queue.name: gateway.count(queue.name) for queue in topology.partitions(COUNT)}
        assert sum(spread.values()) == len(waiting)
        assert max(spread.values()) < len(waiting), f"devices are spread: {spread}"
        assert gateway.count(topology.RAW) == 0
        doors[1].start()
        assert sorted(processed(gateway, len(waiting))) == sorted(waiting)

        doors[1].stop()
        doors[1].with_settings(signals_partitions=0).start()
        last = send_round(gateway, ROUNDS + 2)
        assert sorted(processed(gateway, len(last))) == sorted(last)
        assert sum(gateway.count(queue.name) for queue in topology.partitions(COUNT)) == 0
    finally:
        gateway.close()
        for door in doors:
            door.stop()


def test_a_server_without_the_plugin_is_reported_with_the_remedy(
    tmp_path: Path, rabbitmq: Settings, redis_server: Server
) -> None:
    door = Door(tmp_path / "home", rabbitmq, redis_server.port, signals_partitions=COUNT)
    with pytest.raises(RuntimeError, match="ended with 2"):
        door.start()
    assert "run: rabbitmq-plugins enable rabbitmq_consistent_hash_exchange, or set signals_partitions=0" in door.log
    with pika.BlockingConnection(pika.URLParameters(connection_url(rabbitmq))) as connection:
        channel = connection.channel()
        wait_until(lambda: channel.queue_declare(topology.RAW, passive=True), what="the raw queue")


def test_a_backlog_in_one_partition_ages_no_other() -> None:
    backlogs = Backlogs(["raw", "p0", "p1"], 3600, in_flight=0)
    backlogs.delivered_until = 1000
    backlogs.observe_depth("raw", 0, 1010)
    backlogs.observe_depth("p0", 0, 1010)
    backlogs.observe_depth("p1", 3, 1010)

    assert (backlogs.count, backlogs.delivered_until) == (3, 1000)
    assert [backlogs.queue_age_s(queue, 1020) for queue in ("raw", "p0", "p1", "a queue of statuses")] == [0, 0, 20, 20]
    for _ in range(3):
        backlogs.record_delivery("p1")
    assert backlogs.queue_age_s("p1", 1020) == 10, "the mark has passed: later messages were published after it"
