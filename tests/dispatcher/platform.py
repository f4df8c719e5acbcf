"""The platform of the dispatcher's tests: real Redis, Mosquitto behind the event tap, dispatchers and vehicles."""

import asyncio
import json
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

from redis import Redis as BlockingRedis

from manifold.archive.records import read_journal
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import Loader, Policy, Queues, connect
from manifold.runtime.redis import connect as connect_blocking
from manifold.sandbox.platform import broker as mosquitto
from manifold.settings import Settings
from tests.manifold.queues.triggers import enqueue_trigger
from tests.support.platforms import variables
from tests.support.redis_users import RedisUsers
from tests.support.servers import Server, free_port, listens, start, start_redis, start_service

T = TypeVar("T")
_seqs = SeqSource(0)


@dataclass
class Platform:
    """Everything between a queued entry and a vehicle."""

    home: Path
    settings: Settings
    env: dict[str, str]
    redis: Server
    broker: Server
    tap: Server
    users: RedisUsers | None = None
    recorder: Server | None = None
    dispatchers: dict[int, Server] = field(default_factory=dict)

    def env_of(self, service: str) -> dict[str, str]:
        """The environment of a service, with its own Redis user if Redis has users."""
        return self.env | ({"MANIFOLD_REDIS_URL": self.users.url(service, self.redis.port)} if self.users else {})

    def start_recorder(self) -> Server:
        """Start `python -m manifold.recorder` and wait until it enqueues."""
        with self.blocking() as redis:
            Loader(redis, Policy.of(self.settings)).mark_loaded(1)
        port, log = self.settings.recorder_port, self.home / "logs" / "recorder.log"
        self.recorder = start_service(
            "manifold.recorder",
            port=port,
            log=log,
            env=self.env_of("recorder"),
            ready=lambda: health(port).get("direct_enqueue") == "on",
        )
        return self.recorder

    def start_dispatcher(self, replica: int = 0) -> Server:
        """Start `python -m dispatcher --replica <replica>` and wait until it is ready."""
        port = self.settings.dispatcher_port + replica
        log = self.home / "logs" / f"dispatcher-{replica}.log"
        server = start_service(
            "dispatcher",
            "--replica",
            str(replica),
            port=port,
            log=log,
            env=self.env_of("dispatcher"),
            ready=lambda: healthy(port),
        )
        self.dispatchers[replica] = server
        return server

    def start_dispatcher_on_the_same_port(self) -> None:
        """Start a second process with the same number."""
        log = self.home / "logs" / "second.log"
        server = start_service("dispatcher", port=0, log=log, env=self.env, ready=lambda: False)
        server.stop()

    def restart_broker(self) -> None:
        """Kill the broker and start it again with its saved state."""
        self.broker.kill()
        self.broker = start(mosquitto.command(self.settings), port=self.settings.broker_port, log=self.broker.log)

    def stop(self) -> None:
        """Kill everything at once; the state is no longer needed."""
        for server in (*self.dispatchers.values(), self.recorder, self.tap, self.broker, self.redis):
            if server is not None:
                server.kill()

    def ask(self, question: Callable[[Queues], Awaitable[T]]) -> T:
        """Run a query on the queues over a new connection."""

        async def asked() -> T:
            async with connect(self.settings.redis) as redis:
                return await question(Queues(redis, Policy.of(self.settings)))

        return asyncio.run(asked())

    def enqueue(self, *vins: str, request_id: str = "task_a_1", data: bytes | None = b"hello", data_id: str = "d1") -> int:
        """Queue one batch as the recorder does and return its seq. `data=None` leaves the payload out."""
        seq = _seqs.next()

        async def queue(queues: Queues) -> None:
            if data is not None:
                await queues.store_data(data_id, data, wall_clock_ms())
            await enqueue_trigger(queues, seq, vins, request_id, data_id, wall_clock_ms())

        self.ask(queue)
        return seq

    def store_data(self, data_id: str, data: bytes) -> None:
        """Store the payload as the recorder does."""
        self.ask(lambda queues: queues.store_data(data_id, data, wall_clock_ms()))

    def blocking(self) -> BlockingRedis:
        return connect_blocking(self.settings.redis)

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

    def outcomes(self, vin: str = "") -> list[OutcomeRecord]:
        """All outcomes of one vehicle or of all, from the recorder's journal, or from Redis if no recorder runs."""
        if self.recorder is None:
            with self.blocking() as redis:
                records: Any = redis.xrange(keys.OUTCOMES)
            payloads = [fields[b"o"] for _, fields in records]
        else:
            files = [read_journal(path) for path in sorted(self.settings.journal_folder.iterdir())]
            payloads = [m.payload for file in files for m in file.messages if m.stream == Stream.OUTCOME]
        found = [OutcomeRecord.from_wire(payload) for payload in payloads if vin.encode() in payload]
        return [record for record in found if vin in ("", record.vin)]

    def metric(self, name: str, replica: int = 0) -> float:
        """One metric of /metrics, summed over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.settings.dispatcher_port + replica}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((name + " ", name + "{")))


def health(port: int) -> dict[str, Any]:
    """The body of /healthz; empty if it does not report success."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
            said: dict[str, Any] = json.load(answer)
            return said
    except (HTTPError, URLError, OSError):
        return {}


def healthy(port: int) -> bool:
    """Whether /healthz reports success."""
    return bool(health(port).get("healthy"))


@contextmanager
def a_platform(home: Path, users: RedisUsers | None = None, /, **overrides: Any) -> Iterator[Platform]:
    """Redis, broker and tap on free ports; the test starts dispatchers. With `users`, services have their own Redis rights."""
    ports = {
        name: free_port()
        for name in ("mqtt_port", "broker_port", "redis_port", "tap_port", "dispatcher_port", "recorder_port", "api_port")
    }
    ports["dispatcher_port"] = _free_range(8)
    settings = Settings(home=home, **{"ack_deadline_seconds": 30, **ports, **overrides})
    given = {"home": home, **{name: getattr(settings, name) for name in {"ack_deadline_seconds": 0, **ports}}, **overrides}
    env = variables(**given)
    started: list[Server] = []
    try:
        started.append(
            redis := start_redis(home / "redis", port=settings.redis_port, append_only=True, users=users.file if users else None)
        )
        command, log = mosquitto.command(settings), home / "logs" / "broker.log"
        started.append(broker := start(command, port=settings.broker_port, log=log))
        tap = start_service(
            "manifold.sandbox.tap",
            port=settings.mqtt_port,
            log=home / "logs" / "tap.log",
            env=env,
            ready=lambda: healthy(settings.tap_port),
        )
        started.append(tap)
        platform = Platform(home, settings, env, redis, broker, tap, users)
        try:
            yield platform
        finally:
            platform.stop()
    finally:
        for server in started:
            server.stop()


def _free_range(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        first = free_port()
        if first + count < 65_000 and not any(listens(first + n) for n in range(1, count)):
            return first
