"""The sandbox without Airflow, and helpers to describe the cases."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manifold.contracts import keys
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.topics import TRIGGER, Sign, data_topic
from manifold.queues import Policy
from tests.dispatcher.platform import Platform, a_platform
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Vehicle
from tests.support.redis_users import RedisUsers, refused
from tests.support.servers import wait_until
from tests.support.wire import trigger

_batches = itertools.count()


class Ground:
    """A platform with a recorder and a dispatcher, a platform client, and queries to both."""

    def __init__(self, platform: Platform, platform_client: PlatformClient) -> None:
        self.platform, self.platform_client = platform, platform_client
        self.settings = platform.settings
        self.retention_ms = Policy.of(platform.settings).retention_ms

    # Actions of the vehicle platform

    def batch(self, *vins: str, request_id: str | None = None, data: bytes | None = b"hello", data_id: str | None = None) -> int:
        """Publish one batch, data first, and wait until it is accepted; return its seq. `data=None` leaves the data out."""
        name = f"b{next(_batches)}"
        data_id = data_id or f"data-{name}"
        if data is not None:
            self.data(data_id, data)
        receipt = self.platform_client.send(TRIGGER, trigger(vins, request_id or f"task_{name}", data_id))
        assert receipt["status"] == "recorded", receipt
        return int(receipt["seq"])

    def data(self, data_id: str, payload: bytes) -> None:
        """Publish the data."""
        receipt = self.platform_client.send(data_topic(data_id), payload)
        assert receipt["status"] == "recorded", receipt

    # Observations

    def here(self, vehicle: Vehicle) -> Vehicle:
        """Send `online` for the vehicle and return it once the dispatcher knows that it is connected and subscribed."""
        vehicle.say(Sign.ONLINE)
        wait_until(lambda: self.presence(vehicle).get("connected") == "yes", what=f"{vehicle.vin} to be present")
        return vehicle

    def seen(self, vehicle: Vehicle, **fields: str) -> None:
        """Wait until these presence fields have these values."""
        wait_until(
            lambda: all(self.presence(vehicle).get(name) == value for name, value in fields.items()),
            what=f"{vehicle.vin} to be {fields}, not {self.presence(vehicle)}",
        )

    def one_unacknowledged(self, vehicle: Vehicle) -> int:
        """Connect the vehicle; return the seq of an entry that it received and did not acknowledge."""
        vehicle.acks = False
        self.seen(vehicle.connect(), connected="yes", subscribed="yes")
        seq = self.batch(vehicle.vin)
        vehicle.waits_for(1)
        return seq

    def gone(self, vehicle: Vehicle) -> None:
        """Wait until the dispatcher knows that the vehicle is disconnected."""
        self.seen(vehicle, connected="no")

    def crashes(self, vehicle: Vehicle) -> None:
        """Drop the vehicle's connection and wait until the dispatcher knows."""
        vehicle.crash()
        self.gone(vehicle)

    def leaves(self, vehicle: Vehicle) -> None:
        """Disconnect the vehicle and wait until the dispatcher knows."""
        vehicle.leave()
        self.gone(vehicle)

    def presence(self, vehicle: Vehicle) -> dict[str, str]:
        """The presence of the vehicle; a subscription time is replaced by `yes`."""
        known = self.platform.presence(vehicle.vin)
        return known | {"subscribed": "yes"} if known.get("subscribed", "no") != "no" else known

    def in_flight(self, vehicle: Vehicle) -> int | None:
        return self.platform.in_flight(vehicle.vin)

    def pending(self, vehicle: Vehicle) -> list[int]:
        return self.platform.pending(vehicle.vin)

    def parked(self, vehicle: Vehicle) -> list[int]:
        with self.platform.blocking() as redis:
            members: Any = redis.zrange(keys.parked(vehicle.vin), 0, -1)
        return sorted(map(int, members))

    def nothing_in_flight(self, vehicle: Vehicle) -> None:
        """Wait until the entry in flight was released or has ended."""
        wait_until(lambda: self.in_flight(vehicle) is None, what=f"{vehicle.vin} to have nothing in flight")

    def given_back(self, vehicle: Vehicle, seq: int) -> None:
        """Wait until this entry, once in flight, is the only pending one again."""
        self.nothing_in_flight(vehicle)
        assert self.pending(vehicle) == [seq]

    def ended(self, vehicle: Vehicle, *seqs: int) -> dict[int, OutcomeRecord]:
        """The outcomes of exactly these entries, once the recorder has them and the vehicle's queue is empty."""

        def records() -> dict[int, OutcomeRecord]:
            found: dict[int, OutcomeRecord] = {}
            for record in self.platform.outcomes(vehicle.vin):
                found.setdefault(record.seq, record)  # the first outcome is final
            return found

        wait_until(lambda: not self.pending(vehicle), what=f"nothing of {vehicle.vin} to be pending")
        wait_until(lambda: records().keys() >= set(seqs), what=f"outcomes of {vehicle.vin}: {seqs}")
        found = records()
        assert found.keys() == set(seqs)
        return found

    def delivered(self, vehicle: Vehicle, *seqs: int) -> dict[int, OutcomeRecord]:
        """Wait until exactly these entries are delivered and the queue is empty."""
        found = self.ended(vehicle, *seqs)
        assert {record.outcome for record in found.values()} == {Outcome.DELIVERED}
        return found


@contextmanager
def a_ground(home: Path, **settings: Any) -> Iterator[Ground]:
    """Run the sandbox with these settings and a neighbour that subscribes to everyone's messages.

    Services have the Redis rights of an environment, and no refused command may occur.
    """
    with a_platform(home, RedisUsers(home / "users"), segment_max_seconds=3600, **settings) as platform:
        with ThreadPoolExecutor() as starting:  # in parallel: starting is mostly loading modules
            for started in [starting.submit(platform.start_recorder), starting.submit(platform.start_dispatcher)]:
                started.result()
        platform_client = PlatformClient(platform.settings)
        try:
            ground = Ground(platform, platform_client)
            with a_neighbour(ground):
                yield ground
        finally:
            platform_client.close()
        with platform.blocking() as redis:
            assert refused(redis) == []


@contextmanager
def a_neighbour(ground: Ground) -> Iterator[None]:
    """A vehicle subscribed to everyone's topics; EMQX and the tap refuse that, so no case is affected."""
    neighbour = Vehicle(ground.platform).connect(subscribe=False)
    for topic_filter in ("$ECQ/+/#", f"{ground.settings.topic_prefix}/+/#"):
        neighbour.subscribe(topic_filter)
    yield
    neighbour.leave()
