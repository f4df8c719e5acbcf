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
_MAX_CONCURRENT_CONNECTS = 100  # concurrent connects: fewer than the broker's backlog
_KEEPALIVE_CHECKS = 4  # keep-alive checks of each connection per interval
_SPARE_FILES = 100


class _Ledger:
    """Records the vehicles' events."""

    def __init__(self, on_received: Callable[[Received], None], other: FleetListener | None) -> None:
        self.messages: list[Received] = []
        self.acks: list[Received] = []
        self.counts: Counter[str] = Counter()
        self.news = asyncio.Event()
        self._on_received, self._other = on_received, other

    def received(self, message: Received) -> None:
        self.messages.append(message)
        self.counts["duplicates"] += message.dup
        self._on_received(message)
        if self._other:
            self._other.received(message)
        self.news.set()

    def acknowledged(self, message: Received) -> None:
        self.acks.append(message)
        if self._other:
            self._other.acknowledged(message)
        self.news.set()

    def changed(self, vin: Owner, what: str) -> None:
        self.counts[what] += 1
        if self._other:
            self._other.changed(vin, what)
        self.news.set()


class Fleet:
    """`async with Fleet(settings, vins(200, seed=1), seed=1) as fleet`. Entering connects no vehicle; leaving disconnects all.

    `received` has every PUBLISH in order of arrival, including repeats; `acknowledged` those whose PUBACK was sent. `counts` has
    the numbers of events: `online`, `left`, `crashed`, `cut off`, and `duplicates` by the dup flag. A `listener` receives every
    event immediately. The vehicles connect to the broker of the settings, on the event loop that runs the block.

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
        self._endpoint, self._seed = _endpoint(settings), seed
        self._vehicles: dict[Owner, Vehicle] = {}
        self._care: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        _allow_files(len(self.vins))
        for vin in self.vins:
            model = BehaviourModel(self._seed, vin, self.behaviour)
            self._vehicles[vin] = Vehicle(vin, self._endpoint, self.behaviour, model, self._ledger)
        self._care = asyncio.create_task(self._look_after(), name="fleet.keepalive")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._care is not None:
            self._care.cancel()
            await asyncio.gather(self._care, return_exceptions=True)
        for vehicle in self._vehicles.values():
            vehicle.leave()

    @property
    def received(self) -> list[Received]:
        """Every PUBLISH, in order of arrival."""
        return self._ledger.messages

    @property
    def acknowledged(self) -> list[Received]:
        """The messages whose PUBACK was sent, in that order."""
        return self._ledger.acks

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of events by kind."""
        return self._ledger.counts

    @property
    def online(self) -> list[Owner]:
        """The vehicles that are connected and subscribed now."""
        return [vin for vin, vehicle in self._vehicles.items() if vehicle.link is ConnectionState.ONLINE]

    def protocol(self, vin: Owner) -> int:
        """Return the protocol version: 5, or 4 for MQTT 3.1.1."""
        return self._vehicles[vin].protocol

    async def connect(
        self, vins: Iterable[Owner] | None = None, *, clean_start: bool = False, within_s: float = CONNECT_S
    ) -> None:
        """Bring these vehicles (None: all) online: connected, subscribed, and `online` sent.

        They reconnect automatically if the connection is lost.

        Raises:
            Retryable: not all were online in time; the attempts continue.
        """
        wanted = deque(self._of(vins))
        under_way: dict[Vehicle, int] = {}  # arrivals before this call
        try:
            async with asyncio.timeout(within_s):
                while wanted or under_way:
                    while wanted and len(under_way) < _MAX_CONCURRENT_CONNECTS:
                        vehicle = wanted.popleft()
                        under_way[vehicle] = vehicle.arrivals
                        vehicle.come(clean_start=clean_start)
                    # A vehicle that came online and left again by its model counts.
                    under_way = {v: n for v, n in under_way.items() if v.link is not ConnectionState.ONLINE and v.arrivals == n}
                    if under_way:
                        await self._next_news()
        except TimeoutError as exc:
            raise Retryable(self._not_in_time([*under_way, *wanted], within_s)) from exc

    async def go_offline(self, vins: Iterable[Owner] | None = None) -> None:
        """Disconnect these vehicles (None: all); they stay away until `connect`."""
        for vehicle in self._of(vins):
            vehicle.leave()
        await asyncio.sleep(0)

    async def crash(self, vins: Iterable[Owner] | None = None) -> None:
        """Close the sockets of these vehicles (None: all) without a DISCONNECT; they stay away until `connect`."""
        for vehicle in self._of(vins):
            vehicle.crash()
        await asyncio.sleep(0)

    async def heartbeat(self, vins: Iterable[Owner] | None = None) -> None:
        """Send a heartbeat from these vehicles (None: all), if they are online."""
        for vehicle in self._of(vins):
            vehicle.say(Sign.HEARTBEAT)
        await asyncio.sleep(0)

    async def wait_for(self, predicate: Callable[["Fleet"], object], within_s: float) -> None:
        """Wait until the predicate is true. It is evaluated after each change, which may comprise many messages.

        Raises:
            TimeoutError: it was not true within `within_s` seconds.
        """
        async with asyncio.timeout(within_s):
            while not predicate(self):
                await self._next_news()

    def _not_in_time(self, missing: list[Vehicle], within_s: float) -> str:
        first = f"{missing[0].vin}: {missing[0].problem or 'no answer'}"
        return (
            f"{len(missing)} vehicles are not online at {self._endpoint.host}:{self._endpoint.port} after {within_s:g} s; {first}"
        )

    async def _next_news(self) -> None:
        self._ledger.news.clear()
        await self._ledger.news.wait()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(self.behaviour.keepalive_s / _KEEPALIVE_CHECKS)
            for vehicle in self._vehicles.values():
                vehicle.look_after()

    def _of(self, vins: Iterable[Owner] | None) -> list[Vehicle]:
        return list(self._vehicles.values()) if vins is None else [self._vehicles[vin] for vin in vins]


def _endpoint(settings: Settings) -> FleetEndpoint:
    parts = urlsplit(settings.mqtt_for_vehicles)
    if settings.tls and parts.scheme == "mqtts" and parts.hostname:
        from manifold.sandbox.fleet._certificates import VehicleCertificates

        return FleetEndpoint(parts.hostname, parts.port or 8883, settings.topic_prefix, VehicleCertificates(settings).context)
    if parts.scheme not in ("mqtt", "tcp") or not parts.hostname:
        raise Permanent(
            f"the vehicles' broker is {settings.mqtt_for_vehicles!r}: the simulated fleet speaks plain MQTT only; use mqtt://<host>:<port>"
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
