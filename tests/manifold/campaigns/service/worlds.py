"""A platform with a campaigner: real Redis, broker, tap, recorder, dispatcher and campaigner; orders come as from the API."""

import json
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from manifold.campaigns.decided import Stage
from manifold.campaigns.fold import Campaign
from manifold.campaigns.record import read_campaigns
from manifold.contracts import campaigns as r
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt
from manifold.contracts.topics import Sign, response_topic
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet
from manifold.settings import Settings
from tests.dispatcher.platform import Platform, a_platform
from tests.dispatcher.vehicle import Got, Vehicle
from tests.support.platforms import variables
from tests.support.servers import Server, free_port, start_service, wait_until

LEASE_S = 3


@dataclass
class World:
    """The platform and its campaigners, by name."""

    platform: Platform
    campaigners: dict[str, Server] = field(default_factory=dict)
    run: str = ""  # tells campaigners of several tests of one platform apart

    @property
    def settings(self) -> Settings:
        return self.platform.settings

    def start_campaigner(self, name: str = "a", *, active: bool = True, **settings: object) -> Server:
        """Start `python -m manifold.campaigns` with a folder of its own; wait until it is active, or only until it serves."""
        port, home = free_port(), self.settings.home / "campaigners" / f"{self.run}{name}"
        own = {"home": home, "campaigner_port": port, "archive_url": self.settings.archive, "campaigner_lease_seconds": LEASE_S}
        recorder = f"http://127.0.0.1:{self.settings.recorder_port}"
        env = self.platform.env_of("campaigner") | variables(**(own | {"recorder_urls": recorder} | settings))
        log = self.settings.home / "logs" / f"campaigner-{self.run}{name}.log"

        def is_ready() -> bool:
            said = health(port)
            return bool(said) and (not active or (said["active"] and said["healthy"]))

        server = start_service("manifold.campaigns", port=port, log=log, env=env, ready=is_ready)
        self.campaigners[name] = server
        return server

    def another(self) -> "World":
        """The same platform for another test, which starts campaigners of its own."""
        for server in self.campaigners.values():
            server.stop()  # the next one need not wait for a lease
        return World(self.platform, run=f"{uuid.uuid4().hex[:8]}-")

    def flush(self) -> None:
        """Have the recorder move what it has recorded into the archive."""
        httpx.post(f"http://127.0.0.1:{self.settings.recorder_port}/flush", timeout=70, trust_env=False).raise_for_status()

    def campaign(self, name: str) -> Campaign:
        """The campaign as it is on record now."""
        return read_campaigns(self.settings, [name]).get(name, Campaign())

    def wait_for(self, name: str, *stages: Stage, within_s: float = 60) -> Campaign:
        """Wait until the campaign is at one of these stages."""

        def is_there() -> Campaign | None:
            found = self.campaign(name)
            return found if found.decided.stage in stages else None

        found = wait_until(is_there, within_s=within_s, what=f"{name} to be {' or '.join(stages)}")
        assert found is not None
        return found


def health(port: int) -> dict[str, Any]:
    """The body of /healthz, healthy or not; empty if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            said: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as exc:
        said = json.load(exc)
    except OSError:
        return {}
    return said


@contextmanager
def a_world(home: Path, **settings: Any) -> Iterator[World]:
    """A platform whose campaigners the test starts."""
    with a_platform(home, **settings) as platform:
        world = World(platform)
        try:
            platform.start_recorder()
            platform.start_dispatcher()
            yield world
        finally:
            for server in world.campaigners.values():
                server.kill()


def plan_for(name: str, vins: list[str], **fields: Any) -> dict[str, Any]:
    """The smallest plan for these vehicles, plus further fields."""
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
    return {"campaign": name, "data_id": f"data-{name}", "targets": {"vins": vins}, "ends": ends} | fields


async def propose(settings: Settings, plan: dict[str, Any], *, approve: bool = True) -> None:
    """Publish the data and the plan, and approve it."""
    name = plan["campaign"]
    async with Publisher(settings) as platform:
        await platform.data(plan["data_id"], b"the data")
    await order(settings, r.Propose(name, "author", plan=plan))
    if approve:
        await order(settings, r.Approve(name, "approver"))


async def order(settings: Settings, command: r.Command) -> Receipt:
    """Publish an order as the API does."""
    async with Publisher(settings, settings.mqtt_username_campaigns) as publisher:
        try:
            return await publisher.order(command)
        except Retryable:  # a token would make it idempotent; a repeated order has no effect here
            return await publisher.order(command)


def copies(fleet: Fleet, name: str) -> Counter[str]:
    """How often each vehicle got the message of a campaign, without what the broker repeated."""
    return Counter(message.vin for message in fleet.received if message.request_id == name and not message.dup)


def answering(world: World, vin: str, status: Callable[[Got], str | None]) -> Vehicle:
    """A connected vehicle that answers each message with this status; None: not at all."""
    vehicle = Vehicle(world, vin=vin)

    def answer(got: Got) -> None:
        word = status(got)
        if word is not None:
            topic = response_topic(world.settings.topic_prefix, vin, got.request_id)
            vehicle.client.publish(topic, json.dumps({"seq": got.seq, "status": word}), qos=1)

    vehicle.look = answer
    return online(vehicle)


def online(vehicle: Vehicle) -> Vehicle:
    """Connect the vehicle, and let it say so."""
    vehicle.connect()
    vehicle.say(Sign.ONLINE)
    return vehicle
