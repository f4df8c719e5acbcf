"""Entries that the broker does not accept fail or wait alone."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest

from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import Sign
from tests.dispatcher.platform import Platform, a_platform
from tests.dispatcher.vehicle import Vehicle
from tests.support.servers import free_port, wait_until

MIB = 1 << 20
SHORT = {"ack_deadline_seconds": 4, "ack_deadline_max_seconds": 4, "max_attempts": 2}
SMALL = {"max_trigger_bytes": 20_000, "max_data_bytes": 10_000}
FLEET = 8


class Guard:
    """A proxy like many in front of brokers: it closes a connection that carries a forbidden packet, without a reason."""

    FORBIDDEN = b"this is not let through"

    def __init__(self, port: int, broker_port: int) -> None:
        self._broker_port = broker_port
        self._listener = socket.create_server(("127.0.0.1", port))
        self.opened = threading.Event()  # nothing reaches the broker until it is set
        self.opened.set()
        threading.Thread(target=self._accept, name="guard", daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
                for way in ((client, broker, True), (broker, client, False)):
                    threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, guarded: bool) -> None:
        before = b""
        with suppress(OSError):
            while part := source.recv(1 << 16):
                if guarded:
                    self.opened.wait()
                    if self.FORBIDDEN in before + part:
                        break
                    before = part[-len(self.FORBIDDEN) :]
                target.sendall(part)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@dataclass
class Guarded:
    """A platform whose dispatcher reaches the broker only through the guard."""

    platform: Platform
    guard: Guard


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that accepts packets of the settings' trigger size plus some bytes for topic and properties."""
    port = free_port()
    settings = {**SMALL, "mqtt_url": f"mqtt://127.0.0.1:{port}", "mqtt_shared": "off"}
    with a_platform(tmp_path_factory.mktemp("sizes"), **settings, **SHORT) as platform:
        guard = Guard(port, platform.settings.mqtt_port)
        platform.start_dispatcher()
        yield Guarded(platform, guard)
        guard.close()


@pytest.fixture
def platform(guarded: Guarded) -> Platform:
    return guarded.platform


def fleet(platform: Platform) -> list[Vehicle]:
    vehicles = [Vehicle(platform).connect() for _ in range(FLEET)]
    for vehicle in vehicles:
        vehicle.say(Sign.ONLINE)
    wait_until(lambda: all(platform.presence(v.vin).get("connected") == "yes" for v in vehicles))
    return vehicles


def log_of(platform: Platform) -> str:
    return platform.dispatchers[0].log.read_text()


def test_an_entry_over_the_broker_limit_fails_alone_with_its_reason(platform: Platform) -> None:
    vehicles = fleet(platform)
    before = log_of(platform).count("mqtt disconnected")
    too_large = platform.enqueue(vehicles[0].vin, data=bytes(2 * MIB), data_id="too-large")
    seq = platform.enqueue(*(v.vin for v in vehicles), request_id="after")
    for vehicle in vehicles:
        assert [got.seq for got in vehicle.waits_for(1)] == [seq]
    wait_until(lambda: len(platform.outcomes(vehicles[0].vin)) == 2)
    outcomes = {record.seq: record for record in platform.outcomes(vehicles[0].vin)}
    assert (outcomes[too_large].outcome, outcomes[seq].outcome) == (Outcome.FAILED, Outcome.DELIVERED)
    limit = platform.settings.largest_packet
    assert f"over the {limit} that the broker" in (outcomes[too_large].reason or "")
    assert log_of(platform).count("mqtt disconnected") == before
    for vehicle in vehicles:
        vehicle.leave()


def test_an_entry_that_breaks_the_connection_uses_only_its_own_attempts(guarded: Guarded) -> None:
    platform, guard = guarded.platform, guarded.guard
    vehicles = fleet(platform)
    guard.opened.clear()  # so that everything is under way together, the bad one first
    bad = platform.enqueue(vehicles[0].vin, data=Guard.FORBIDDEN, data_id="bad")
    wait_until(lambda: platform.metric("manifold_dispatcher_unconfirmed_publishes") == 1)
    beside = platform.enqueue(*(v.vin for v in vehicles[1:]), request_id="beside")
    behind = platform.enqueue(vehicles[0].vin, request_id="behind")
    wait_until(lambda: platform.metric("manifold_dispatcher_unconfirmed_publishes") == FLEET)
    guard.opened.set()
    for vehicle in vehicles[1:]:
        wait_until(partial(platform.outcomes, vehicle.vin), within_s=60)
        assert {(record.seq, record.outcome) for record in platform.outcomes(vehicle.vin)} == {(beside, Outcome.DELIVERED)}
        vehicle.leave()
    wait_until(lambda: len(platform.outcomes(vehicles[0].vin)) == 2, within_s=60)
    ended = {record.seq: record for record in platform.outcomes(vehicles[0].vin)}
    assert (ended[bad].outcome, ended[bad].attempts, ended[behind].outcome) == (Outcome.FAILED, 2, Outcome.DELIVERED)
    vehicles[0].leave()
