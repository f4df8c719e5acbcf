"""A vehicle that floods the dispatcher gets its share only: others are served and memory is bounded."""

from collections.abc import Iterator

import pytest

from manifold.contracts.topics import Sign, sign_topic
from tests.dispatcher.platform import Platform, a_platform
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import wait_until

WINDOW = 50  # unacknowledged messages that the broker may send to the dispatcher
FLOOD = 20 * WINDOW


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with a_platform(tmp_path_factory.mktemp("floods"), mqtt_receive_maximum=WINDOW) as it:
        it.start_dispatcher()
        yield it


def heartbeats(platform: Platform) -> float:
    """The number of heartbeats that the dispatcher has read."""
    return platform.metric('manifold_dispatcher_events_total{event="heartbeat"}')


def flood(vehicle: Vehicle, *, qos: int, count: int = FLOOD) -> None:
    for _ in range(count):
        last = vehicle.client.publish(sign_topic(vehicle.vin, Sign.HEARTBEAT), b"", qos=qos)
    last.wait_for_publish(20)


@pytest.mark.parametrize("qos", [0, 1])
def test_a_flood_of_heartbeats_is_drained_and_others_are_served(platform: Platform, qos: int) -> None:
    loud, quiet = Vehicle(platform).connect(), Vehicle(platform).connect()
    before, merged = heartbeats(platform), platform.metric("manifold_dispatcher_merged_events_total")
    with platform.redis.standing_still():
        flood(loud, qos=qos)
        quiet.say(Sign.HEARTBEAT)
        wait_until(lambda: heartbeats(platform) == before + FLOOD + 1, what="all heartbeats to be read while none can be written")
        assert platform.metric("manifold_dispatcher_merged_events_total") >= merged + FLOOD - 2
    wait_until(lambda: platform.presence(loud.vin) and platform.presence(quiet.vin))
    for vehicle in (loud, quiet):
        seq = platform.enqueue(vehicle.vin)
        assert [got.seq for got in vehicle.waits_for(1)] == [seq]
        vehicle.leave()
