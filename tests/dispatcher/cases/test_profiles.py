"""The profiles in docs/examples: messages of a platform written for the fan-out plug-in reach its vehicles."""

import json
from collections.abc import Iterator

import pytest

from manifold.contracts.topics import FANOUT, TRIGGER
from tests.dispatcher.cases.ground import Ground, a_ground
from tests.dispatcher.vehicle import Vehicle
from tests.manifold.settings.test_profiles import profile
from tests.support.wire import trigger

TEXT = 'transparent, not base64: "ä" \u0000'
MAPS = "maps"  # text that is also valid base64


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The profile for 0.1.0 to 0.4.7."""
    with a_ground(tmp_path_factory.mktemp("apart"), **profile("sdv-fanout.env")) as ground:
        yield ground


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """The profile for versions before 0.1.0."""
    with a_ground(tmp_path_factory.mktemp("inline"), **profile("sdv-fanout-inline.env")) as ground:
        yield ground


def message(vehicle: Vehicle, request_id: str, data: str) -> bytes:
    """One message that names its vehicles and contains its data."""
    return json.dumps({"ids": [vehicle.vin], "request_id": request_id, "data": data}).encode()


def test_without_dedup_a_repeated_trigger_is_delivered_each_time(apart: Ground) -> None:
    """With the profile of 0.1.0 to 0.4.7, no trigger is a duplicate."""
    vehicle = apart.here(Vehicle(apart).connect())
    apart.data("again", b"\x00bytes")

    again = trigger([vehicle.vin], "task_map_1", "again")
    receipts = apart.platform_client.send_all([(TRIGGER, again)] * 3)

    assert [receipt["status"] for receipt in receipts] == ["recorded"] * 3
    assert [(got.request_id, got.payload) for got in vehicle.waits_for(3)] == [("task_map_1", b"\x00bytes")] * 3
    vehicle.leave()


@pytest.mark.parametrize("text", [TEXT, MAPS, ""], ids=["text", "text that is base64, too", "empty"])
def test_inline_text_is_delivered_unchanged_on_subscription(inline: Ground, text: str) -> None:
    """Vehicles of that version send no `online`."""
    vehicle = Vehicle(inline).connect(subscribe=False)
    inline.seen(vehicle, connected="yes")

    receipt = inline.platform_client.send(FANOUT, message(vehicle, "task_config_7", text))
    vehicle.subscribe()

    assert receipt["status"] == "recorded"
    assert [(got.request_id, got.payload) for got in vehicle.waits_for(1)] == [("task_config_7", text.encode())]
    vehicle.leave()


def test_a_newer_inline_message_supersedes_the_pending_one_for_a_resumed_session(inline: Ground) -> None:
    vehicle = Vehicle(inline).connect()
    inline.seen(vehicle, subscribed="yes")
    inline.leaves(vehicle)
    for text in ("old", "new"):
        assert inline.platform_client.send(FANOUT, message(vehicle, "task_config_1", text))["status"] == "recorded"

    vehicle.connect(subscribe=False)

    assert [got.payload for got in vehicle.waits_for(1)] == [b"new"]
    inline.nothing_in_flight(vehicle)
    assert [got.payload for got in vehicle.got] == [b"new"]
    vehicle.leave()
