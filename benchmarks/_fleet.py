"""Vehicles with little cost: bare MQTT connections in one process, each of which acknowledges every message."""

import asyncio
import multiprocessing
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import mqtt5
import uvloop

from manifold.contracts import topics
from manifold.messaging._connection import Connection, Endpoint, open_connection

MAX_CONNECTING = 100  # fewer than the broker's backlog
KEEPALIVE_S = 600  # longer than any run, so that no vehicle pings
MAX_UNCONFIRMED = 200


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Messages in the order of arrival: the seq (0 if there is none), and the instant on the monotonic clock."""

    seqs: "array[int]"
    at_s: "array[float]"


class Fleet:
    """Controls the process of the vehicles, which are numbered from 0; made by `fleet`."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def connect(self, first: int, count: int) -> None:
        """Connect and subscribe these vehicles, and let each publish `online`."""
        self._ask("connect", first, count)

    def beat(self, count: int, rounds: int) -> None:
        """Send `rounds` heartbeats of each of the first `count` vehicles; return when the broker has confirmed them."""
        self._ask("beat", count, rounds)

    def wait(self, total: int, within_s: float) -> float:
        """Return when (monotonic) `total` messages had arrived since the last `take`.

        Raises:
            TimeoutError: fewer arrived.
        """
        at_s, came = self._ask("wait", total, within_s)
        if came < total:
            raise TimeoutError(f"{came} of {total} messages arrived within {within_s} s")
        return float(at_s)

    def take(self) -> Arrivals:
        """Return the messages since the last call."""
        return Arrivals(*self._ask("take"))

    def _ask(self, *command: Any) -> Any:
        self._pipe.send(command)
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


@contextmanager
def fleet(url: str, filter_of: Callable[[str], str], name: Callable[[int], str]) -> Iterator[Fleet]:
    """Run a process for vehicles of the broker at `url` until the block ends. Each subscribes to `filter_of(its name)`."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_main, args=(there, url, filter_of, name), daemon=True)
    process.start()
    try:
        yield Fleet(here)
    finally:
        here.send(None)
        process.join(20)
        if process.is_alive():
            process.kill()


class _Vehicle:
    """One connection."""

    def __init__(self, name: str, fleet: "_Vehicles") -> None:
        self.name, self._fleet = name, fleet
        self._connection: Connection
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def come(self, endpoint: Endpoint) -> None:
        self._connection = await open_connection(endpoint, self._take, lambda _, __: None, self._lost)
        self._connection.send(mqtt5.ConnectPacket(self.name, clean_start=True, keep_alive=KEEPALIVE_S).write())
        await self._ready
        self.say(topics.Sign.ONLINE)

    def say(self, sign: topics.Sign) -> None:
        self._fleet.unconfirmed += 1
        packet = mqtt5.PublishPacket(topics.sign_topic(self.name, sign), b"", qos=mqtt5.QoS.AT_LEAST_ONCE, packet_id=1)
        self._connection.send(packet.write())

    def _take(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.PublishPacket():
                if packet.packet_id is not None:
                    self._connection.send(mqtt5.PubAckPacket(packet.packet_id).write())
                self._fleet.arrived(packet)
            case mqtt5.PubAckPacket():
                self._fleet.confirmed()
            case mqtt5.ConnAckPacket():
                one = mqtt5.TopicFilter(self._fleet.filter_of(self.name), max_qos=mqtt5.QoS.AT_LEAST_ONCE)
                self._connection.send(mqtt5.SubscribePacket(2, [one]).write())
            case mqtt5.SubAckPacket() if not self._ready.done():
                self._ready.set_result(None)

    def _lost(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(f"{self.name}: {reason}"))


class _Vehicles:
    """All vehicles, and the messages that they received."""

    def __init__(self, url: str, filter_of: Callable[[str], str], name: Callable[[int], str]) -> None:
        self.filter_of, self._place, self._name = filter_of, Endpoint.of(url), name
        self.unconfirmed = 0
        self._vehicles: dict[int, _Vehicle] = {}
        self._seqs, self._at_s = array("q"), array("d")
        self._awaited: tuple[int, asyncio.Event] = (1 << 62, asyncio.Event())
        self._quiet = asyncio.Event()

    def arrived(self, packet: mqtt5.PublishPacket) -> None:
        self._at_s.append(time.monotonic())
        pairs = packet.user_properties
        self._seqs.append(int(pairs[0][1]) if pairs and pairs[0][0] == "seq" else 0)
        if len(self._at_s) >= self._awaited[0]:
            self._awaited[1].set()

    def confirmed(self) -> None:
        self.unconfirmed -= 1
        self._quiet.set()

    async def connect(self, first: int, count: int) -> None:
        some = asyncio.Semaphore(MAX_CONNECTING)

        async def come(number: int) -> None:
            vehicle = self._vehicles[number] = _Vehicle(self._name(number), self)
            async with some:
                await vehicle.come(self._place)

        await asyncio.gather(*(come(number) for number in range(first, first + count)))

    async def beat(self, count: int, rounds: int) -> None:
        for _ in range(rounds):
            for number in range(count):
                self._vehicles[number].say(topics.Sign.HEARTBEAT)
                while self.unconfirmed >= MAX_UNCONFIRMED:
                    self._quiet.clear()
                    await self._quiet.wait()

    async def wait(self, total: int, within_s: float) -> tuple[float, int]:
        reached = asyncio.Event()
        if len(self._at_s) < total:
            self._awaited = (total, reached)
            try:
                async with asyncio.timeout(within_s):
                    await reached.wait()
            except TimeoutError:
                return 0.0, len(self._at_s)
        return self._at_s[total - 1], len(self._at_s)

    async def take(self) -> "tuple[array[int], array[float]]":
        taken = self._seqs, self._at_s
        self._seqs, self._at_s = array("q"), array("d")
        return taken


def _main(pipe: Pipe, url: str, filter_of: Callable[[str], str], name: Callable[[int], str]) -> None:
    async def obey() -> None:
        vehicles = _Vehicles(url, filter_of, name)
        while (command := await asyncio.to_thread(pipe.recv)) is not None:
            verb, *args = command
            try:
                answer = await getattr(vehicles, verb)(*args)
            except (OSError, ConnectionError, RuntimeError) as exc:
                answer = exc
            pipe.send(answer)

    uvloop.run(obey())
