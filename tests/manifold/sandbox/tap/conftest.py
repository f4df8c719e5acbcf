"""Mosquitto with Manifold's configuration, and the tap in front of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from manifold.settings import Settings
from tests.support.servers import Server, free_port, start_embedded_broker, start_tap


@dataclass(slots=True)
class TapServer:
    """Both servers and their ports."""

    settings: Settings
    broker: Server
    tap: Server

    @property
    def port(self) -> int:
        """The port of the tap."""
        return self.settings.mqtt_port

    def restart_tap(self) -> None:
        self.tap = start_tap(self.settings)

    def restart_broker(self) -> None:
        self.broker = start_embedded_broker(self.settings)

    def stop(self) -> None:
        self.tap.stop()
        self.broker.stop()


def open_tap_server(home: Path, *, delivered: bool = False) -> TapServer:
    """Start both on free ports."""
    settings = Settings(home=home, mqtt_port=free_port(), broker_port=free_port(), tap_port=free_port())
    broker = start_embedded_broker(settings)
    try:
        return TapServer(settings, broker, start_tap(settings, delivered=delivered))
    except BaseException:
        broker.stop()
        raise


@pytest.fixture(scope="session")
def tap_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TapServer]:
    """One for all tests that isolate themselves by client id."""
    server = open_tap_server(tmp_path_factory.mktemp("tap-server"))
    yield server
    server.stop()


@pytest.fixture
def own_tap_server(tmp_path: Path) -> Iterator[TapServer]:
    """One that this test may kill and restart."""
    server = open_tap_server(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def vin(request: pytest.FixtureRequest) -> str:
    """A client id for this test only."""
    return "".join(c for c in request.node.name if c.isalnum() or c in "-_")[:60]
