"""Many vehicles in one process, with a record of every received message."""

import asyncio
import resource
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Self
from urllib.parse import urlsplit

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.names import Owner
from manifold.contracts.topics import Sign
from manifold.sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from manifold.sandbox.fleet._connection import FleetEndpoint
from manifold.sandbox.fleet._vehicle import ConnectionState, FleetListener, Received, Vehicle
from manifold.settings import Settings

CONNECT_S = 60.0
_MAX_CONCURRENT_CONNECTS = 100  # less than the connections that the broker's listen socket queues
_KEEPALIVE_CHECKS = 4  # per keep-alive interval
_SPARE_FILES = 100  # open files of the process in addition to the vehicles' sockets


class _Ledger:
    """Records the vehicles' events, and passes them on to the listener, if there is one. Each event sets `has_new_event`."""

    def __init__(self, on_received: Callable[[Received], None], listener: FleetListener | None) -> None:
        self.messages: list[Received] = []
        self.acks: list[Received] = []
        self.counts: Counter[str] = Counter()
        self.has_new_event = asyncio.Event()
        self._on_received, self._listener = on_received, listener

    def received(self, message: Received) -> None:
        self.messages.append(message)
        self.counts["duplicates"] += message.dup
        self._on_received(message)
        if self._listener:
            self._listener.received(message)
        self.has_new_event.set()

    def acknowledged(self, message: Received) -> None:
        self.acks.append(message)
        if self._listener:
            self._listener.acknowledged(message)
        self.has_new_event.set()

    def changed(self, vin: Owner, what: str) -> None:
        self.counts[what] += 1
        if self._listener:
            self._listener.changed(vin, what)
        self.has_new_event.set()


class Fleet:
    """`async with Fleet(settings, vins(200, seed=1), seed=1) as fleet`. Entering connects no vehicle; leaving disconnects all.

    The vehicles connect to the broker of the settings, on the event loop that runs the block. `received` has every PUBLISH in
    order of arrival, including repeated ones; `acknowledged` has those whose PUBACK was sent. `counts` has the number of each
    event (`online`, `left`, `crashed`, `cut off`), and that of received messages with the dup flag (`duplicates`). A `listener`
    gets every event at once.

    Raises:
        Permanent: the broker's URL is not plain `mqtt://`, and not the sandbox's own.
    """

    def __init__(
        self,
        settings: Settings,
        vins: Iterable[Owner],
        *,
        seed: int = 1,
        behaviour: Behaviour | None = None,
        on_received: Callable[[Received], None] = lambda _: None,
        listener: FleetListener | None = None,
    ) -> None:
        self.vins = list(dict.fromkeys(vins))
        self.behaviour = behaviour or Behaviour()
        self._ledger = _Ledger(on_received, listener)
        self._endpoint = _endpoint(settings)
        self._seed = seed
        self._vehicles: dict[Owner, Vehicle] = {}
        self._keepalive: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        _allow_files(len(self.vins))
        for vin in self.vins:
            model = BehaviourModel(self._seed, vin, self.behaviour)
            self._vehicles[vin] = Vehicle(vin, self._endpoint, self.behaviour, model, self._ledger)
        self._keepalive = asyncio.create_task(self._check_keepalives(), name="fleet.keepalive")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._keepalive is not None:
            self._keepalive.cancel()
            await asyncio.gather(self._keepalive, return_exceptions=True)
        for vehicle in self._vehicles.values():
            vehicle.leave()

    @property
    def received(self) -> list[Received]:
        """Every PUBLISH, in order of arrival."""
        return self._ledger.messages

    @property
    def acknowledged(self) -> list[Received]:
        """The messages whose PUBACK was sent, in the order of the PUBACKs."""
        return self._ledger.acks

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of events by kind."""
        return self._ledger.counts

    @property
    def online(self) -> list[Owner]:
        """The vehicles that are connected and subscribed now."""
        return [vin for vin, vehicle in self._vehicles.items() if vehicle.state is ConnectionState.ONLINE]

    def protocol(self, vin: Owner) -> int:
        """Return the vehicle's protocol version: 5, or 4 for MQTT 3.1.1."""
        return self._vehicles[vin].protocol

    async def connect(
        self, vins: Iterable[Owner] | None = None, *, clean_start: bool = False, within_s: float = CONNECT_S
    ) -> None:
        """Bring these vehicles (None: all) online: connected, subscribed, and `online` sent.

        They reconnect automatically if the connection is lost.

        Raises:
            Retryable: some vehicles were not online in time; they continue to try.
        """
        waiting = deque(self._vehicles_of(vins))
        connecting: dict[Vehicle, int] = {}  # vehicles, with their number of arrivals before this call
        try:
            async with asyncio.timeout(within_s):
                while waiting or connecting:
                    while waiting and len(connecting) < _MAX_CONCURRENT_CONNECTS:
                        vehicle = waiting.popleft()
                        connecting[vehicle] = vehicle.arrivals
                        vehicle.connect(clean_start=clean_start)
                    # A vehicle that has come online counts, even if it has left again because of its model.
                    connecting = {
                        vehicle: arrivals
                        for vehicle, arrivals in connecting.items()
                        if vehicle.state is not ConnectionState.ONLINE and vehicle.arrivals == arrivals
                    }
                    if connecting:
                        await self._wait_for_event()
        except TimeoutError as exc:
            raise Retryable(self._timeout_message([*connecting, *waiting], within_s)) from exc

    async def go_offline(self, vins: Iterable[Owner] | None = None) -> None:
        """Disconnect these vehicles (None: all); they stay offline until `connect`."""
        for vehicle in self._vehicles_of(vins):
            vehicle.leave()
        await asyncio.sleep(0)

    async def crash(self, vins: Iterable[Owner] | None = None) -> None:
        """Close the sockets of these vehicles (None: all) without a DISCONNECT; they stay offline until `connect`."""
        for vehicle in self._vehicles_of(vins):
            vehicle.crash()
        await asyncio.sleep(0)

    async def heartbeat(self, vins: Iterable[Owner] | None = None) -> None:
        """Send a heartbeat from these vehicles (None: all), if they are online."""
        for vehicle in self._vehicles_of(vins):
            vehicle.send_sign(Sign.HEARTBEAT)
        await asyncio.sleep(0)  # the event loop sends them in its next turn

    async def wait_for(self, predicate: Callable[["Fleet"], object], within_s: float) -> None:
        """Wait until the predicate is true. It is evaluated after events, possibly once for many events.

        Raises:
            TimeoutError: it was not true within `within_s` seconds.
        """
        async with asyncio.timeout(within_s):
            while not predicate(self):
                await self._wait_for_event()

    def _timeout_message(self, missing: list[Vehicle], within_s: float) -> str:
        """Return the message that these vehicles are not online, with the first one's problem as an example."""
        example = f"{missing[0].vin}: {missing[0].problem or 'no answer'}"
        broker = f"{self._endpoint.host}:{self._endpoint.port}"
        return f"{len(missing)} vehicles are not online at {broker} after {within_s:g} s; {example}"

    async def _wait_for_event(self) -> None:
        """Wait until a vehicle has another event."""
        self._ledger.has_new_event.clear()
        await self._ledger.has_new_event.wait()

    async def _check_keepalives(self) -> None:
        while True:
            await asyncio.sleep(self.behaviour.keepalive_s / _KEEPALIVE_CHECKS)
            for vehicle in self._vehicles.values():
                vehicle.check_keepalive()

    def _vehicles_of(self, vins: Iterable[Owner] | None) -> list[Vehicle]:
        return list(self._vehicles.values()) if vins is None else [self._vehicles[vin] for vin in vins]


def _endpoint(settings: Settings) -> FleetEndpoint:
    """Return the vehicles' endpoint.

    Only the sandbox's own broker may speak TLS, because its CA can issue the vehicles' certificates.
    """
    parts = urlsplit(settings.mqtt_for_vehicles)
    if settings.tls and parts.scheme == "mqtts" and parts.hostname:
        from manifold.sandbox.fleet._certificates import VehicleCertificates  # imported here, because the import is slow

        return FleetEndpoint(parts.hostname, parts.port or 8883, settings.topic_prefix, VehicleCertificates(settings).context)
    if parts.scheme not in ("mqtt", "tcp") or not parts.hostname:
        raise Permanent(
            f"the vehicles' broker is {settings.mqtt_for_vehicles!r}: "
            "the simulated fleet speaks TLS only to the sandbox's own broker; use mqtt://<host>:<port>"
        )
    return FleetEndpoint(parts.hostname, parts.port or 1883, settings.topic_prefix)


def _allow_files(vehicles: int) -> None:
    """Raise the soft limit of open files, usually 1,024, to one socket per vehicle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = vehicles + _SPARE_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise Permanent(f"{vehicles} vehicles need {needed} open files and the system allows {hard}; raise it with ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
