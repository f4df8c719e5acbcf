"""Kills, hangs and full disks: no confirmed message is lost, and none passes unverified or twice."""

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from manifold.contracts.signals import topology
from manifold.contracts.signals.records import read_raw
from manifold.contracts.signals.rights import DOOR
from manifold.runtime import secret_files
from manifold.settings import Settings, load_settings
from tests.manifold.signals.gateway import Door, Gateway, body_of, signed
from tests.support.rabbitmq import DEFINITIONS, ctl, needs_rabbitmq, start_rabbitmq
from tests.support.servers import Server, free_port, start_redis, wait_until

pytestmark = pytest.mark.slow


def health(door: Door) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{door.settings.signals}/healthz", timeout=5).json()
    return found


def settled(door: Door) -> int:
    """The number of messages that it has acknowledged, with any disposition."""
    families = text_string_to_metric_families(httpx.get(f"{door.settings.signals}/metrics").text)
    return sum(int(one.value) for family in families for one in family.samples if one.name == "signals_messages_total")


def devices_recorded(door: Door) -> list[str]:
    return [read_raw(e.payload).device_id for e in door.recorded() if e.refused_because is None]


def drain(gateway: Gateway, count: int, *, within_s: float = 120) -> dict[str, int]:
    """The devices of the processed messages, until `count` arrived, with their counts."""
    seen: dict[str, int] = {}

    def take() -> bool:
        method, _, body = gateway.channel.basic_get(topology.PROCESSED, auto_ack=True)
        if method is not None:
            device = json.loads(body or b"")["deviceId"]
            seen[device] = seen.get(device, 0) + 1
        return len(seen) >= count

    deadline = time.monotonic() + within_s
    while not take():
        assert time.monotonic() < deadline, f"{len(seen)} of {count}"
    return seen


def send_many(gateway: Gateway, count: int, prefix: str) -> set[str]:
    names = {f"{prefix}-{number}" for number in range(count)}
    for name in sorted(names):
        body = body_of(name)
        gateway.send(body, signed(body, device=name))
    return names


def _until_recorded(door: Door, count: int) -> None:
    wait_until(lambda: len(door.recorded()) >= count, what=f"{count} recorded")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Pause the process for the duration of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_service_killed_repeatedly_loses_nothing(own_door: Door, gateway: Gateway) -> None:
    """Each is recorded and processed at least once; a duplicate in the journal has one key, of which the lake takes one."""
    chance = random.Random(7)
    own_door.start()
    names: set[str] = set()
    for turn in range(3):
        aim = len(own_door.recorded()) + chance.randrange(1, 100)
        names |= send_many(gateway, 150, f"turn-{turn}")
        _until_recorded(own_door, min(aim, len(names)))
        assert own_door.server is not None
        own_door.server.kill()
        own_door.start()
    seen = drain(gateway, len(names))

    assert set(seen) == set(devices_recorded(own_door)) == names
    wait_until(lambda: gateway.count(topology.RAW) == 0)
    assert gateway.count(topology.DEAD) == 0
    keys = {(r.device_id, r.content_digest) for r in (read_raw(e.payload) for e in own_door.recorded())}
    assert len(keys) == len(names)


def test_while_redis_is_down_nothing_passes_and_health_says_so(own_door: Door, own_redis: Server, gateway: Gateway) -> None:
    own_door.start()
    gateway.send_signed()
    gateway.get(topology.PROCESSED)
    own_redis.kill()
    names = send_many(gateway, 20, "waiting")
    wait_until(lambda: "Redis unavailable" in " ".join(health(own_door)["problems"]))

    assert not health(own_door)["healthy"]
    assert gateway.count(topology.PROCESSED) == 0
    assert len(own_door.recorded()) == 1
    again = start_redis(own_redis.log.parent, port=own_redis.port, append_only=True)
    try:
        assert set(drain(gateway, len(names))) == names
        wait_until(lambda: health(own_door)["healthy"])
        assert gateway.count(topology.DEAD) == 0
    finally:
        again.stop()


def test_the_service_recovers_from_a_hang_of_itself_or_redis(own_door: Door, own_redis: Server, gateway: Gateway) -> None:
    server = own_door.start()
    with stopped(server.pid):
        names = send_many(gateway, 50, "hanging")
    assert set(drain(gateway, 50)) == names
    with stopped(own_redis.pid):
        more = send_many(gateway, 50, "slow")
        wait_until(lambda: "Redis unavailable" in " ".join(health(own_door)["problems"]))
    assert set(drain(gateway, 50)) == more
    assert gateway.count(topology.DEAD) == 0


def test_with_a_full_disk_nothing_is_acknowledged_until_there_is_room(own_door: Door, gateway: Gateway) -> None:
    """The journal's folder is removed: as on a full disk, no file can be written there."""
    own_door.start()
    journal = own_door.settings.signals_journal_folder
    hidden = journal.with_name("hidden")
    journal.rename(hidden)
    names = send_many(gateway, 20, "full")
    wait_until(lambda: "is unwritable" in " ".join(health(own_door)["problems"]))

    assert not health(own_door)["healthy"]
    assert gateway.count(topology.PROCESSED) == 0
    hidden.rename(journal)
    assert set(drain(gateway, 20)) == names
    wait_until(lambda: health(own_door)["healthy"])


def test_a_queue_deleted_at_run_time_is_declared_again(own_door: Door, gateway: Gateway) -> None:
    own_door.start()
    gateway.channel.queue_delete(topology.STATUS)
    wait_until(lambda: own_door.log.count("consuming") == 2)
    gateway.channel.queue_delete(topology.PROCESSED)
    wait_until(lambda: own_door.log.count("consuming") == 3)
    gateway.send_signed()

    assert gateway.get(topology.PROCESSED)


def test_a_wrong_password_is_reported_without_being_shown(tmp_path: Path, rabbitmq: Settings, redis_server: Server) -> None:
    url = f"amqp://manifold:the-wrong-one@127.0.0.1:{rabbitmq.amqp_port}/"
    door = Door(tmp_path / "home", rabbitmq, redis_server.port, signals_amqp_url=url)
    try:
        door.start(healthy=False)
        wait_until(lambda: "ACCESS_REFUSED" in " ".join(health(door)["problems"]))
        assert "the-wrong-one" not in door.log + str(health(door))
    finally:
        door.stop()


def test_a_killed_rabbitmq_returns_and_nothing_is_lost(tmp_path: Path, redis_server: Server) -> None:
    """It has imported the definitions of an environment, which the service accepts: it would be refused otherwise."""
    needs_rabbitmq()
    settings = load_settings(home=tmp_path / "rabbitmq", amqp_port=free_port())
    servers = start_rabbitmq(settings, definitions=DEFINITIONS)
    door = Door(tmp_path / "home", settings, redis_server.port)
    try:
        client = Gateway(settings)
        assert all(client.count(queue.name) == 0 for queue in topology.QUEUES), "imported"
        door.start()
        names = send_many(client, 100, "before")  # confirmed, so on RabbitMQ's disk
        servers[1].kill()
        wait_until(lambda: not health(door)["healthy"])
        assert "not connected to RabbitMQ" in health(door)["problems"][0]
        servers[0].stop()
        servers = start_rabbitmq(settings)
        wait_until(lambda: health(door)["healthy"], within_s=90)
        names |= send_many(Gateway(settings), 20, "after")
        wait_until(lambda: set(devices_recorded(door)) == names)
        assert secret_files.read(settings.home, secret_files.AMQP_PASSWORD) not in door.log
    finally:
        door.stop()
        for server in reversed(servers):
            server.stop()


def test_two_services_share_the_queue_and_one_takes_over_when_the_other_dies(
    own_door: Door, own_redis: Server, rabbitmq: Settings, gateway: Gateway, tmp_path: Path
) -> None:
    other = Door(tmp_path / "other", rabbitmq, own_redis.port)
    try:
        first, second = own_door.start(), other.start()
        names = send_many(gateway, 300, "shared")
        _until_recorded(own_door, 20)
        _until_recorded(other, 20)
        os.kill(second.pid, signal.SIGSTOP)
        names |= send_many(gateway, 100, "more")  # some of them in hand
        second.kill()
        seen = drain(gateway, len(names))
        wait_until(lambda: gateway.count(topology.RAW) == gateway.count(topology.RETRY) == 0)
    finally:
        other.stop()

    assert first.process.poll() is None
    assert set(seen) == names
    assert set(devices_recorded(own_door)) | set(devices_recorded(other)) == names
    assert gateway.count(topology.DEAD) == 0


def test_the_service_recovers_from_a_hang_of_rabbitmq(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    own_door.start()
    names = send_many(gateway, 50, "before")
    pid = int((rabbitmq.home / "rabbitmq" / "rabbitmq.pid").read_text())
    with stopped(pid):
        wait_until(lambda: health(own_door)["node"] is not None)  # it still answers
    names |= send_many(gateway, 50, "after")

    assert set(drain(gateway, 100)) == names
    assert gateway.count(topology.DEAD) == 0


def test_connections_that_rabbitmq_closes_lose_no_message(own_door: Door, rabbitmq: Settings, gateway: Gateway) -> None:
    """What was published before its acknowledgement was lost may be published again, with the same message id."""
    own_door.start()
    names = set[str]()
    for turn in range(3):
        names |= send_many(gateway, 100, f"turn-{turn}")
        _until_recorded(own_door, len(names) - 80)
        ctl(rabbitmq, "close_all_user_connections", DOOR, "the operator has closed it")
        wait_until(lambda turn=turn: own_door.log.count("consuming") >= turn + 2)  # type: ignore[misc]

    assert set(drain(gateway, len(names))) == names
    wait_until(lambda: gateway.count(topology.RAW) == 0 and health(own_door)["in_hand"] == 0)
    assert set(devices_recorded(own_door)) == names
    assert gateway.count(topology.DEAD) == 0


def test_a_service_stopped_with_messages_in_hand_settles_each_once(own_door: Door, gateway: Gateway) -> None:
    names = send_many(gateway, 400, "stopped")
    for turn in range(3):
        own_door.start(healthy=False)
        _until_recorded(own_door, 20 + 100 * turn)
        own_door.stop()
        assert "shutdown timed out" not in own_door.log
    own_door.start()
    wait_until(lambda: gateway.count(topology.RAW) == 0 and health(own_door)["in_hand"] == 0)

    assert gateway.count(topology.PROCESSED) == len(names)
    assert drain(gateway, len(names)) == dict.fromkeys(names, 1)
    assert sorted(devices_recorded(own_door)) == sorted(names)


def test_messages_in_hand_are_bounded_by_the_prefetch(own_door: Door, own_redis: Server, gateway: Gateway) -> None:
    count, body = 30, body_of(payload=b"x" * 750_000)
    for _ in range(count):
        gateway.send_signed(body)
    with stopped(own_redis.pid):
        own_door.with_settings(signals_prefetch=20).start(healthy=False)
        wait_until(lambda: health(own_door)["in_hand"] == 20, within_s=60)
        wait_until(lambda: "Redis unavailable" in " ".join(health(own_door)["problems"]))  # seconds later

        assert health(own_door)["in_hand"] == 20
        assert gateway.count(topology.RAW) == count - 20
    wait_until(lambda: settled(own_door) == count, within_s=60)
