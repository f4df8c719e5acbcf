"""Redis out of memory or wiped: new messages are recorded, and service resumes by itself."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from manifold.console._doctor import examine
from manifold.contracts import topics
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import IDS
from manifold.contracts.topics import Sign
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.reads import TRIGGER_COLUMNS
from manifold.queues import Loader, LoadResult, Policy, _loader
from pipelines.cli import TRY_AGAIN
from pipelines.populate.workers import entry_loader
from tests.dispatcher.platform import Platform, a_platform, health, healthy
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Vehicle
from tests.support.lake_rows import append, append_payloads
from tests.support.servers import start_redis, wait_until
from tests.support.wire import trigger

OUT_OF_MEMORY = "suspended: Redis is out of memory"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with a_platform(tmp_path_factory.mktemp("memory")) as it:
        it.start_recorder()
        it.start_dispatcher()
        yield it


@pytest.fixture
def platform(running: Platform) -> Iterator[Platform]:
    yield running
    limit(running, 0)
    wait_until(lambda: direct_enqueue(running) == "on")


def limit(platform: Platform, bytes_: int) -> None:
    """Redis' memory limit; 0 is unlimited, 1 is already exceeded."""
    with platform.blocking() as redis:
        redis.config_set("maxmemory-policy", "noeviction")
        redis.config_set("maxmemory", bytes_)


def direct_enqueue(platform: Platform) -> str:
    return str(health(platform.settings.recorder_port).get("direct_enqueue"))


def findings(platform: Platform) -> dict[str, Any]:
    return {finding.check: finding for finding in examine(platform.settings)}


def test_with_redis_out_of_memory_delivery_and_recording_go_on_and_recover(platform: Platform) -> None:
    platform_client, vehicle = PlatformClient(platform.settings), Vehicle(platform)
    platform_client.send(topics.data_topic("d"), b"hello")
    seqs = [platform_client.send(topics.TRIGGER, trigger([vehicle.vin], f"before_{n}"))["seq"] for n in range(5)]
    limit(platform, 1)
    vehicle.connect().say(Sign.ONLINE)
    vehicle.waits_for(5)  # deliveries free memory
    wait_until(lambda: len(platform.outcomes(vehicle.vin)) == 5)

    seqs += [platform_client.send(topics.TRIGGER, trigger([vehicle.vin], f"amid_{n}"))["seq"] for n in range(3)]
    wait_until(lambda: direct_enqueue(platform).startswith(OUT_OF_MEMORY))
    assert healthy(platform.settings.recorder_port)
    found = findings(platform)
    assert not found["redis memory"].passed
    assert "maxmemory" in found["redis memory"].remedy
    assert found["direct enqueue"].seen.startswith(OUT_OF_MEMORY)
    assert len(vehicle.got) == 5

    limit(platform, 0)
    vehicle.waits_for(8)
    wait_until(lambda: direct_enqueue(platform) == "on")
    seqs.append(platform_client.send(topics.TRIGGER, trigger([vehicle.vin], "after"))["seq"])
    assert [got.seq for got in vehicle.waits_for(9)] == seqs
    assert findings(platform)["redis memory"].passed
    assert findings(platform)["redis persistence"].seen == "every write is in the append-only file"
    vehicle.leave()
    platform_client.close()


def test_a_dispatcher_starts_with_redis_out_of_memory(platform: Platform) -> None:
    vehicle = Vehicle(platform)
    seq = platform.enqueue(vehicle.vin)
    limit(platform, 1)
    platform.dispatchers[0].kill()
    platform.start_dispatcher()
    vehicle.connect().say(Sign.ONLINE)
    assert [got.seq for got in vehicle.waits_for(1)] == [seq]
    vehicle.leave()


def test_populating_a_full_redis_says_so_and_asks_for_a_retry(platform: Platform) -> None:
    ensure_tables(open_catalog(platform.settings))
    limit(platform, 1)

    command = [sys.executable, "-m", "pipelines", "populate"]
    done = subprocess.run(command, env=os.environ | platform.env, capture_output=True, text=True, timeout=120)

    assert (done.returncode, "raise its maxmemory, then run this again" in done.stderr) == (TRY_AGAIN, True), done.stderr


def test_an_emptied_redis_is_served_and_a_rebuild_restores_everything(platform: Platform) -> None:
    platform_client, vehicle = PlatformClient(platform.settings), Vehicle(platform).connect()
    platform_client.send(topics.data_topic("d"), b"hello")
    platform.redis.kill()
    seqs = [platform_client.send(topics.TRIGGER, trigger([vehicle.vin], "away"))["seq"]]
    platform.redis = start_redis(platform.home / "another", port=platform.settings.redis_port)
    wait_until(lambda: "rebuild" in direct_enqueue(platform))
    seqs.append(platform_client.send(topics.TRIGGER, trigger([vehicle.vin], "empty"))["seq"])
    wait_until(lambda: healthy(platform.settings.dispatcher_port))
    vehicle.say(Sign.HEARTBEAT)  # nobody knows that it is connected; a heartbeat is enough
    wait_until(lambda: platform.presence(vehicle.vin).get("connected") == "heard")
    assert vehicle.got == []

    say_loaded(platform)
    seqs.append(platform_client.send(topics.TRIGGER, trigger([vehicle.vin], "after"))["seq"])
    assert [got.seq for got in vehicle.waits_for(3)] == seqs
    vehicle.leave()
    platform_client.close()


def test_a_rebuild_may_run_while_vehicles_are_served_and_triggers_arrive(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform_client, vehicles = PlatformClient(platform.settings), [Vehicle(platform) for _ in range(6)]
    vins = [vehicle.vin for vehicle in vehicles]
    platform_client.send(topics.data_topic("d"), b"hello")
    old = [int(platform_client.send(topics.TRIGGER, trigger(vins, f"old_{n}"))["seq"]) for n in range(3)]
    write_to_the_lake(platform, old, vins)
    with platform.blocking() as redis:
        redis.flushall()
    wait_until(lambda: "rebuild" in direct_enqueue(platform))
    for vehicle in vehicles:
        vehicle.connect().say(Sign.HEARTBEAT)
        wait_until(lambda vin=vehicle.vin: "connected" in platform.presence(vin))  # type: ignore[misc]

    monkeypatch.setattr(_loader, "OWNERS_PER_FLUSH", 2)
    flush, new = Loader._flush, list[int]()

    def amid_deliveries(self: Loader, some: Sequence[tuple[str, Any]], now_ms: int) -> LoadResult:
        new.append(int(platform_client.send(topics.TRIGGER, trigger(vins, f"new_{len(new)}"))["seq"]))
        result = flush(self, some, now_ms)
        for vehicle in vehicles:  # vehicles with restored queues are served before the next ones are restored
            vehicle.waits_for(len(old) if vehicle.vin in dict(some) else 0)
        return result

    monkeypatch.setattr(Loader, "_flush", amid_deliveries)
    queued = []
    for _ in ("the queues are empty", "the queues are loaded, the hand-off is on, and the lake has heard of no delivery"):
        queued.append(load_here(platform))
        say_loaded(platform)
        for vehicle in vehicles:
            vehicle.waits_for(len(old) + len(new))
        wait_until(lambda: direct_enqueue(platform) == "on")
    last = int(platform_client.send(topics.TRIGGER, trigger(vins, "last"))["seq"])

    assert (queued, len(new)) == ([len(old) * len(vins), 0], 6)
    for vehicle in vehicles:
        assert [got.seq for got in vehicle.waits_for(len(old) + len(new) + 1)] == [*old, *new, last]
        vehicle.leave()
    platform_client.close()


def write_to_the_lake(platform: Platform, seqs: list[int], vins: list[str]) -> None:
    """Write these triggers and their data to the lake as an ingest does."""
    catalog = open_catalog(platform.settings)
    ensure_tables(catalog)
    common = {"request_id": "r", "data_id": "d", "applied": True}
    ids = [{"vin": vin, "ts": datetime_of(seq), "seq": seq, **common} for seq in seqs for vin in vins]
    append(catalog, IDS, ids)
    append_payloads(catalog, {"d": b"hello"}, at=datetime_of(seqs[0]), seq=seqs[0])


def load_here(platform: Platform) -> int:
    """Load all entries of the lake in this process, as Spark's workers do in a rebuild; return the number queued."""
    settings, table = platform.settings, open_catalog(platform.settings).load_table(IDS.identifier)
    entries = table.scan(selected_fields=("vin", "seq", *TRIGGER_COLUMNS)).to_arrow()
    work = entry_loader(settings.redis, Policy.of(settings), round(datetime.now(UTC).timestamp() * 1000))
    return sum(row["queued"] for batch in work(entries.to_batches()) for row in batch.to_pylist())


def say_loaded(platform: Platform) -> None:
    """Mark the queues as loaded, as a rebuild does at its end; nothing was pending here."""
    with platform.blocking() as redis:
        Loader(redis, Policy.of(platform.settings)).mark_loaded(1)
