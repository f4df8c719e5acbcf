"""A campaign that is stopped: nothing of it is sent, and what was released is withdrawn."""

from collections.abc import Iterator

import pytest

from manifold.contracts import keys
from manifold.contracts.brakes import OFF, Brake
from manifold.contracts.campaigns import Cancel, Command, Pause, encode
from manifold.contracts.outcomes import Outcome
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.topics import CAMPAIGN, RELEASE
from manifold.queues import Queues
from tests.dispatcher.cases.ground import Ground
from tests.dispatcher.platform_client import PlatformClient
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import start_redis, wait_until
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
        receipt = self._client.send(RELEASE, release(vins, self.name, f"data-{self.name}", step=self._steps, until_ms=until_ms))
        assert receipt["status"] == "recorded", receipt
        return int(receipt["seq"])

    def order(self, command: Command) -> int:
        """Give an order, which is in force when this returns; returns its seq."""
        receipt = self._client.send(CAMPAIGN, encode(command))
        assert (receipt["status"], receipt["reason"]) == ("recorded", None)
        return int(receipt["seq"])

    def pause(self) -> int:
        return self.order(Pause(self.name, "anna"))

    def cancel(self) -> int:
        return self.order(Cancel(self.name, "anna"))

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


def test_an_unacknowledged_entry_is_not_sent_again_and_a_late_word_counts(brisk: Ground, campaign: Campaign) -> None:
    vehicle = Vehicle(brisk)
    vehicle.acks = False
    brisk.here(vehicle.connect())
    seq = campaign.release(vehicle.vin)
    vehicle.waits_for(1)

    campaign.pause()
    ended = brisk.ended(vehicle, seq)
    assert (ended[seq].outcome, ended[seq].attempts) == (Outcome.WITHDRAWN, 1)
    assert len(vehicle.got) == 1

    vehicle.ack(vehicle.got[0])
    wait_until(
        lambda: [record.outcome for record in brisk.platform.outcomes(vehicle.vin)] == [Outcome.WITHDRAWN, Outcome.DELIVERED],
        what="the late acknowledgement to be recorded beside the first end",
    )
    vehicle.leave()


def test_entries_of_vehicles_that_stay_away_are_withdrawn_by_the_walk(brisk: Ground, campaign: Campaign) -> None:
    away = [Vehicle(brisk) for _ in range(3)]
    seq = campaign.release(*(vehicle.vin for vehicle in away))
    other = brisk.batch(away[0].vin, request_id="other")

    campaign.cancel()

    for vehicle in away[1:]:
        record = brisk.ended(vehicle, seq)[seq]
        assert (record.outcome, record.reason) == (Outcome.WITHDRAWN, f"campaign {campaign.name} is cancelled")
    wait_until(lambda: brisk.pending(away[0]) == [other], what="only what is of no campaign to be left")
    with brisk.platform.blocking() as redis:
        wait_until(lambda: not redis.exists(keys.releases(campaign.name)), what="the walk to have nothing more to look for")
    brisk.here(away[0].connect())
    assert brisk.ended(away[0], seq, other)[other].outcome is Outcome.DELIVERED
    away[0].leave()


def test_an_entry_is_sent_within_its_window_alone(brisk: Ground, client: PlatformClient, campaign: Campaign) -> None:
    vehicle, away = Vehicle(brisk), Vehicle(brisk)
    over = campaign.release(vehicle.vin, away.vin, until_ms=wall_clock_ms() - 1)
    open_ = Campaign(brisk, client, "in-time").release(vehicle.vin, until_ms=wall_clock_ms() + 60_000)

    brisk.here(vehicle.connect())
    ended = brisk.ended(vehicle, over, open_)

    assert (ended[over].outcome, ended[over].reason) == (Outcome.WITHDRAWN, "the time window of the vehicle is over")
    assert ended[open_].outcome is Outcome.DELIVERED
    (got,) = vehicle.got
    assert got.expiry_s is not None
    assert 0 < got.expiry_s <= 60
    assert brisk.ended(away, over)[over].outcome is Outcome.WITHDRAWN
    vehicle.leave()


def test_what_the_broker_holds_for_an_absent_vehicle_is_dropped_with_its_window(
    brisk: Ground, client: PlatformClient, campaign: Campaign
) -> None:
    """Both left unnoticed, so the broker holds a message for each session; the second one's window stays open."""
    gone, back = Vehicle(brisk), Vehicle(brisk)
    for vehicle in (gone, back):
        brisk.here(vehicle.connect())
        brisk.leaves(vehicle)
        with brisk.platform.blocking() as redis:
            redis.hset(keys.presence(vehicle.vin), "connected", "yes")
    other = Campaign(brisk, client, f"{campaign.name}-open")
    other.release(back.vin, until_ms=wall_clock_ms() + 60_000)
    over = campaign.release(gone.vin, until_ms=wall_clock_ms() + 3_000)
    wait_until(lambda: brisk.in_flight(back) is not None, what="one message to be with the broker")
    ended = brisk.ended(gone, over)[over]
    assert (ended.outcome, ended.attempts > 0) == (Outcome.WITHDRAWN, True)

    back.connect(subscribe=False)
    assert back.waits_for(1)[0].request_id == other.name, "the broker has held it"
    gone.connect(subscribe=False)
    brisk.here(gone)
    later = brisk.batch(gone.vin, request_id="later")
    assert brisk.ended(gone, over, later)[later].outcome is Outcome.DELIVERED
    assert gone.requests == ["later"]
    back.leave()
    gone.leave()


def test_a_brake_holds_over_the_death_of_dispatcher_redis_and_broker(brisk: Ground, campaign: Campaign) -> None:
    vehicle = Vehicle(brisk)
    campaign.pause()
    seq = campaign.release(vehicle.vin)
    platform = brisk.platform
    platform.dispatchers.pop(0).kill()
    platform.redis.kill()
    users = None if platform.users is None else platform.users.file
    platform.redis = start_redis(platform.home / "redis", port=platform.settings.redis_port, append_only=True, users=users)
    platform.restart_broker()
    platform.start_dispatcher()

    brisk.here(vehicle.connect())

    assert brisk.ended(vehicle, seq)[seq].outcome is Outcome.WITHDRAWN
    assert vehicle.got == []
    vehicle.leave()
