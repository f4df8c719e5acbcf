"""Vehicles that need little CPU: bare MQTT connections in one process, which acknowledge every message."""

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
    """Messages in the order of arrival: the seq of each (0 if it has none), and its arrival in seconds on the monotonic clock."""

    seqs: "array[int]"
    at_s: "array[float]"


class Fleet:
    """Controls the process of the vehicles, which are numbered from 0. Use `fleet` to create it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def connect(self, first: int, count: int) -> None:
        """Connect and subscribe `count` vehicles from number `first` on; each then publishes `online`."""
        self._call("connect", first, count)

    def beat(self, count: int, rounds: int) -> None:
        """Send `rounds` heartbeats from each of the first `count` vehicles, keeping to `MAX_UNCONFIRMED`."""
        self._call("beat", count, rounds)

    def wait(self, total: int, within_s: float) -> float:
        """Wait until `total` messages have arrived since the last `take`; return the time on the monotonic clock, in seconds.

        Raises:
            TimeoutError: fewer messages arrived within `within_s`.
        """
        at_s, arrived = self._call("wait", total, within_s)
        if arrived < total:
            raise TimeoutError(f"{arrived} of {total} messages arrived within {within_s} s")
        return float(at_s)

    def take(self) -> Arrivals:
        """Return the messages that arrived since the last call."""
        return Arrivals(*self._call("take"))

    def _call(self, *command: Any) -> Any:
        """Call a method of `_Vehicles` in the other process, by its name and arguments; return its result or raise its error."""
        self._pipe.send(command)
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result


@contextmanager
def fleet(url: str, filter_of: Callable[[str], str], name: Callable[[int], str]) -> Iterator[Fleet]:
    """Run a process with vehicles that connect to the broker at `url`, until the block ends.

    The vehicle with number n is called `name(n)`, and subscribes to `filter_of(name(n))`.
    """
    pipe, child_pipe = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_main, args=(child_pipe, url, filter_of, name), daemon=True)
    process.start()
    try:
        yield Fleet(pipe)
    finally:
        pipe.send(None)
        process.join(20)
        if process.is_alive():
            process.kill()


class _Vehicle:
    """The connection of one vehicle."""

    def __init__(self, name: str, fleet: "_Vehicles") -> None:
        self.name, self._fleet = name, fleet
        self._connection: Connection
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def come_online(self, endpoint: Endpoint) -> None:
        self._connection = await open_connection(endpoint, self._take, lambda _, __: None, self._lost)
        self._connection.send(mqtt5.ConnectPacket(self.name, clean_start=True, keep_alive=KEEPALIVE_S).write())
        await self._ready
        self.publish_sign(topics.Sign.ONLINE)

    def publish_sign(self, sign: topics.Sign) -> None:
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
                topic_filter = mqtt5.TopicFilter(self._fleet.filter_of(self.name), max_qos=mqtt5.QoS.AT_LEAST_ONCE)
                self._connection.send(mqtt5.SubscribePacket(2, [topic_filter]).write())
            case mqtt5.SubAckPacket() if not self._ready.done():
                self._ready.set_result(None)

    def _lost(self, reason: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(ConnectionError(f"{self.name}: {reason}"))


class _Vehicles:
    """All vehicles, and the messages that they received."""

    def __init__(self, url: str, filter_of: Callable[[str], str], name: Callable[[int], str]) -> None:
        self.filter_of, self._endpoint, self._name = filter_of, Endpoint.of(url), name
        self.unconfirmed = 0
        self._vehicles: dict[int, _Vehicle] = {}
        self._seqs, self._at_s = array("q"), array("d")
        self._awaited: tuple[int, asyncio.Event] = (1 << 62, asyncio.Event())  # number of messages, and the event to set for it
        self._was_confirmed = asyncio.Event()

    def arrived(self, packet: mqtt5.PublishPacket) -> None:
        self._at_s.append(time.monotonic())
        properties = packet.user_properties  # the dispatcher puts `seq` first
        self._seqs.append(int(properties[0][1]) if properties and properties[0][0] == "seq" else 0)
        if len(self._at_s) >= self._awaited[0]:
            self._awaited[1].set()

    def confirmed(self) -> None:
        self.unconfirmed -= 1
        self._was_confirmed.set()

    async def connect(self, first: int, count: int) -> None:
        connecting = asyncio.Semaphore(MAX_CONNECTING)

        async def connect_one(number: int) -> None:
            vehicle = self._vehicles[number] = _Vehicle(self._name(number), self)
            async with connecting:
                await vehicle.come_online(self._endpoint)

        await asyncio.gather(*(connect_one(number) for number in range(first, first + count)))

    async def beat(self, count: int, rounds: int) -> None:
        for _ in range(rounds):
            for number in range(count):
                self._vehicles[number].publish_sign(topics.Sign.HEARTBEAT)
                while self.unconfirmed >= MAX_UNCONFIRMED:
                    self._was_confirmed.clear()
                    await self._was_confirmed.wait()

    async def wait(self, total: int, within_s: float) -> tuple[float, int]:
        """Return when message number `total` arrived, 0 if it did not within `within_s`, and the number of messages so far."""
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
    """Execute the commands of a `Fleet` from `pipe` until one is None."""

    async def execute_commands() -> None:
        vehicles = _Vehicles(url, filter_of, name)
        while (command := await asyncio.to_thread(pipe.recv)) is not None:
            verb, *args = command
            try:
                result = await getattr(vehicles, verb)(*args)
            except (OSError, ConnectionError, RuntimeError) as exc:
                result = exc
            pipe.send(result)

    uvloop.run(execute_commands())
