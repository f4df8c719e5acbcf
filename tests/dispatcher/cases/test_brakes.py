"""A campaign that is stopped: nothing of it is sent, and what was released is withdrawn."""

from collections.abc import Iterator

import pytest

from manifold.contracts.brakes import OFF, Brake
from manifold.contracts.campaigns import Command, Pause, encode
from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import CAMPAIGN, TRIGGER
from manifold.queues import Queues
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import wait_until
from tests.support.wire import release


class Campaign:
    """One campaign of a test: its orders and releases come through the door, as those of people and campaigner."""

    def __init__(self, ground: Ground, client: PlatformClient, name: str) -> None:
        self._ground, self._client, self.name = ground, client, name
        self._steps = 0
        ground.data(f"data-{name}", b"hello")

    def release(self, *vins: str, until_ms: int | None = None) -> int:
        """Release these vehicles; returns the seq of their entries."""
        self._steps += 1
        receipt = self._client.send(TRIGGER, release(vins, self.name, f"data-{self.name}", step=self._steps, until_ms=until_ms))
        assert receipt["status"] == "recorded", receipt
        return int(receipt["seq"])

    def order(self, command: Command) -> int:
        """Give an order, which is in force when this returns; returns its seq."""
        receipt = self._client.send(CAMPAIGN, encode(command))
        assert (receipt["status"], receipt["reason"]) == ("recorded", None)
        return int(receipt["seq"])

    def pause(self) -> int:
        return self.order(Pause(self.name, "anna"))

    def goes_on(self, seq: int) -> None:
        """Take the brake off that the order `seq` put on, as a campaigner does after a resume."""

        async def turn(queues: Queues) -> bool:
            return await queues.turn_brake(self.name, Brake(seq, "pause"), Brake(seq, OFF))

        assert self._ground.platform.ask(turn)


@pytest.fixture
def client(brisk: Ground) -> Iterator[PlatformClient]:
    client = PlatformClient(brisk.settings, brisk.settings.mqtt_username_campaigns)
    yield client
    client.close()


@pytest.fixture
def campaign(brisk: Ground, client: PlatformClient, request: pytest.FixtureRequest) -> Campaign:
    return Campaign(brisk, client, f"c-{abs(hash(request.node.name))}")


def test_what_is_released_under_a_brake_is_withdrawn_and_blocks_nothing(brisk: Ground, campaign: Campaign) -> None:
    vehicle = Vehicle(brisk)
    paused = campaign.pause()
    withdrawn = campaign.release(vehicle.vin)
    other = brisk.batch(vehicle.vin, request_id="other")

    brisk.here(vehicle.connect())
    ended = brisk.ended(vehicle, withdrawn, other)

    assert ended[other].outcome is Outcome.DELIVERED
    assert (ended[withdrawn].outcome, ended[withdrawn].attempts) == (Outcome.WITHDRAWN, 0)
    assert ended[withdrawn].reason == f"campaign {campaign.name} is paused"
    assert vehicle.requests == ["other"]

    campaign.goes_on(paused)
    again = campaign.release(vehicle.vin)
    wait_until(lambda: vehicle.requests == ["other", campaign.name], what="the campaign to go on")
    assert brisk.ended(vehicle, withdrawn, other, again)[again].outcome is Outcome.DELIVERED
    vehicle.leave()
