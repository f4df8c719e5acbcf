"""A platform for the dispatcher's tests: real Redis, Mosquitto behind the event tap, dispatcher processes, and vehicles."""

import asyncio
import itertools
import json
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from contracts import keys
from contracts.outcomes import OutcomeRecord
from contracts.seq import SeqSource, wall_clock_ms
from contracts.settings import Settings
from contracts.topics import Sign, request_filter, sign_topic
from queues import Policy, Queues
from sandbox import broker as mosquitto
from tests.servers import Server, free_port, listens, start, start_python, start_redis, wait_until

T = TypeVar("T")
_seqs = SeqSource(0)
_names = itertools.count()


@dataclass
class Platform:
    """Everything between a queued entry and a vehicle."""

    home: Path
    settings: Settings
    env: dict[str, str]
    redis: Server
    broker: Server
    tap: Server
    dispatchers: dict[int, Server] = field(default_factory=dict)

    def start_dispatcher(self, replica: int = 0) -> Server:
        """`python -m dispatcher --replica <replica>`, until it says that it is ready."""
        port = self.settings.dispatcher_port + replica
        log = self.home / "logs" / f"dispatcher-{replica}.log"
        server = start_python(
            "dispatcher", "--replica", str(replica), port=port, log=log, env=self.env, ready=lambda: healthy(port)
        )
        self.dispatchers[replica] = server
        return server

    def start_dispatcher_on_the_same_port(self) -> None:
        """A second process by the same number."""
        log = self.home / "logs" / "second.log"
        server = start_python("dispatcher", port=0, log=log, env=self.env, ready=lambda: False)
        server.stop()

    def restart_broker(self) -> None:
        """Kill the broker and start it again; it has what it had saved."""
        self.broker.kill()
        self.broker = start(mosquitto.command(self.settings), port=self.settings.broker_port, log=self.broker.log)

    def stop(self) -> None:
        for server in (*self.dispatchers.values(), self.tap, self.broker, self.redis):
            server.stop()

    def ask(self, question: Callable[[Queues], Awaitable[T]]) -> T:
        """What the queues answer, over a connection of its own."""

        async def asked() -> T:
            async with Redis(port=self.settings.redis_port) as redis:
                return await question(Queues(redis, Policy.of(self.settings)))

        return asyncio.run(asked())

    def enqueue(self, *vins: str, request_id: str = "task_a_1", data: bytes | None = b"hello", data_id: str = "d1") -> int:
        """Queue one batch as the recorder does; its seq. `data=None`: the payload has not come."""
        seq = _seqs.next()

        async def queue(queues: Queues) -> None:
            if data is not None:
                await queues.store_data(data_id, data, wall_clock_ms())
            await queues.enqueue_trigger(seq, vins, request_id, data_id, wall_clock_ms())

        self.ask(queue)
        return seq

    def store_data(self, data_id: str, data: bytes) -> None:
        """The payload comes, as the recorder has it."""
        self.ask(lambda queues: queues.store_data(data_id, data, wall_clock_ms()))

    def blocking(self) -> BlockingRedis:
        return BlockingRedis(port=self.settings.redis_port)

    def in_flight(self, vin: str) -> int | None:
        with self.blocking() as redis:
            seq: Any = redis.hget(keys.inflight(vin), "seq")
        return None if seq is None else int(seq)

    def pending(self, vin: str) -> list[int]:
        with self.blocking() as redis:
            members: Any = redis.zrange(keys.pending(vin), 0, -1)
        return sorted(map(int, members))

    def presence(self, vin: str) -> dict[str, str]:
        with self.blocking() as redis:
            found: Any = redis.hgetall(keys.presence(vin))
        return {name.decode(): value.decode() for name, value in found.items()}

    def outcomes(self) -> list[OutcomeRecord]:
        """Every outcome that was handed over; no recorder takes them away here."""
        with self.blocking() as redis:
            records: Any = redis.xrange(keys.OUTCOMES)
        return [OutcomeRecord.from_wire(fields[b"o"]) for _, fields in records]

    def metric(self, name: str, replica: int = 0) -> float:
        """One number of /metrics, summed over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.settings.dispatcher_port + replica}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{")))


def healthy(port: int) -> bool:
    """Whether /healthz says so."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            return bool(json.load(answer)["healthy"])
    except (HTTPError, URLError, OSError):
        return False


@contextmanager
def a_platform(home: Path, **overrides: Any) -> Iterator[Platform]:
    """Redis, broker and tap on free ports; dispatchers are started by the test."""
    ports = {
        name: free_port() for name in ("mqtt_port", "broker_port", "redis_port", "tap_port", "dispatcher_port", "recorder_port")
    }
    ports["dispatcher_port"] = _free_range(8)
    settings = Settings(home=home, **{"ack_deadline_seconds": 30, **ports, **overrides})
    given = {"home": home, **{name: getattr(settings, name) for name in {"ack_deadline_seconds": 0, **ports, **overrides}}}
    env = {f"MANIFOLD_{name.upper()}": str(value) for name, value in given.items()}
    started: list[Server] = []
    try:
        started.append(redis := start_redis(home / "redis", port=settings.redis_port, append_only=True))
        command, log = mosquitto.command(settings), home / "logs" / "broker.log"
        started.append(broker := start(command, port=settings.broker_port, log=log))
        tap = start_python(
            "sandbox.tap",
            port=settings.mqtt_port,
            log=home / "logs" / "tap.log",
            env=env,
            ready=lambda: healthy(settings.tap_port),
        )
        started.append(tap)
        platform = Platform(home, settings, env, redis, broker, tap)
        try:
            yield platform
        finally:
            platform.stop()
    finally:
        for server in started:
            server.stop()


def _free_range(count: int) -> int:
    """The first of `count` ports in a row on which nothing listens now."""
    while True:
        first = free_port()
        if first + count < 65_000 and not any(listens(first + n) for n in range(1, count)):
            return first


@dataclass(frozen=True, slots=True)
class Got:
    """One request as a vehicle saw it."""

    topic: str
    payload: bytes
    dup: bool
    seq: int | None  # only on MQTT 5
    mid: int
    connection: int


class Vehicle:
    """A vehicle's own MQTT client: it says when it acknowledges, and it can lose its connection like a car in a tunnel."""

    def __init__(self, platform: Platform, *, protocol: int, vin: str | None = None, persistent: bool = True) -> None:
        self.vin = vin or f"VIN{next(_names):05d}P{protocol}"
        self.platform, self.protocol, self.persistent = platform, protocol, persistent
        self.acks = True  # acknowledge at once
        self.got: list[Got] = []
        self.connections = 0
        self.session_present = False
        self._client: paho.Client | None = None
        self._subscribed = threading.Event()

    def connect(self, *, clean: bool = False, subscribe: bool = True) -> "Vehicle":
        """Connect (a persistent vehicle resumes its session unless `clean`), and wait until it is done."""
        v5 = self.protocol == 5
        clean_311 = None if v5 else clean or not self.persistent
        version = paho.MQTTv5 if v5 else paho.MQTTv311
        client = paho.Client(CallbackAPIVersion.VERSION2, self.vin, clean_311, protocol=version, manual_ack=True)
        connected = threading.Event()

        def on_connect(_c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
            assert not reason.is_failure, reason
            self.session_present = flags.session_present
            connected.set()

        client.on_connect, client.on_message = on_connect, self._on_message
        client.on_subscribe = lambda *_: self._subscribed.set()
        self._client, self.connections = client, self.connections + 1
        properties = None
        if v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho left it untyped
            properties.SessionExpiryInterval = 300 if self.persistent else 0
        start: Any = (clean or not self.persistent) if v5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        client.connect("127.0.0.1", self.platform.settings.mqtt_port, 60, clean_start=start, properties=properties)
        client.loop_start()
        assert connected.wait(10), f"{self.vin} did not connect"
        if subscribe:
            self.subscribe()
        return self

    def subscribe(self, topic_filter: str | None = None) -> None:
        self._subscribed.clear()
        assert self._client is not None
        self._client.subscribe(topic_filter or request_filter(self.platform.settings.topic_prefix, self.vin), qos=1)
        assert self._subscribed.wait(10), f"{self.vin} did not subscribe"

    def say(self, sign: Sign) -> None:
        """Send an online or a heartbeat."""
        assert self._client is not None
        self._client.publish(sign_topic(self.vin, sign), b"", qos=1).wait_for_publish(10)

    def ack(self, got: Got) -> None:
        """Send the PUBACK of one request."""
        assert got.connection == self.connections
        assert self._client is not None
        self._client.ack(got.mid, 1)

    def crash(self) -> None:
        """Drop the socket without a word."""
        assert self._client is not None
        client, self._client = self._client, None
        client.on_message = None
        sock = client.socket()
        client._sock_close()  # paho has no public way to be cut off
        assert sock is not None
        client.loop_stop()

    def forget(self) -> None:
        """Another connection has taken this one's place: do not come back."""
        assert self._client is not None
        client, self._client = self._client, None
        client.disconnect()
        client.loop_stop()

    def leave(self) -> None:
        """Disconnect as MQTT means it."""
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect()
            client.loop_stop()

    def waits_for(self, count: int, *, within_s: float = 15) -> list[Got]:
        """What came so far, as soon as that is `count` requests or more."""
        wait_until(lambda: len(self.got) >= count, within_s=within_s, what=f"{self.vin} has {self.got}, wants {count}")
        return list(self.got)

    def _on_message(self, client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        pairs = dict(getattr(message.properties, "UserProperty", ())) if message.properties else {}
        seq = int(pairs["seq"]) if "seq" in pairs else None
        self.got.append(Got(message.topic, bytes(message.payload), message.dup, seq, message.mid, self.connections))
        if self.acks:
            client.ack(message.mid, 1)
