"""Mosquitto with Manifold's configuration, and the tap in front of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.settings import Settings
from tests.servers import Server, free_port, start_embedded_broker, start_tap


@dataclass(slots=True)
class FrontDoor:
    """Both, and where they listen."""

    settings: Settings
    broker: Server
    tap: Server

    @property
    def port(self) -> int:
        """The tap's."""
        return self.settings.mqtt_port

    def restart_tap(self) -> None:
        self.tap = start_tap(self.settings)

    def restart_broker(self) -> None:
        self.broker = start_embedded_broker(self.settings)

    def stop(self) -> None:
        self.tap.stop()
        self.broker.stop()


def open_front_door(home: Path, *, delivered: bool = False) -> FrontDoor:
    """Start both on free ports."""
    settings = Settings(home=home, mqtt_port=free_port(), broker_port=free_port(), tap_port=free_port())
    broker = start_embedded_broker(settings)
    try:
        return FrontDoor(settings, broker, start_tap(settings, delivered=delivered))
    except BaseException:
        broker.stop()
        raise


@pytest.fixture(scope="session")
def front_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontDoor]:
    """One for all tests that isolate themselves by client id."""
    door = open_front_door(tmp_path_factory.mktemp("front-door"))
    yield door
    door.stop()


@pytest.fixture
def own_front_door(tmp_path: Path) -> Iterator[FrontDoor]:
    """One that this test may kill and restart."""
    door = open_front_door(tmp_path)
    yield door
    door.stop()


@pytest.fixture
def vin(request: pytest.FixtureRequest) -> str:
    """A client id of this test's own."""
    return "".join(c for c in request.node.name if c.isalnum() or c in "-_")[:60]
