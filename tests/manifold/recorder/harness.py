"""A recorder process with real servers, and queries to it."""

import asyncio
import contextlib
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import redis

from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.contracts import keys
from manifold.contracts.envelope import Envelope, Stream
from tests.support.platforms import variables
from tests.support.redis_users import RedisUsers
from tests.support.servers import Server, free_port, start_mosquitto, start_redis, start_service, wait_until

RECORDER = ("manifold.recorder.__main__",)
FAST = {"MANIFOLD_JOURNAL_RETRY_SECONDS": "0.05", "MANIFOLD_SEGMENT_MAX_SECONDS": "3600"}


@dataclass(slots=True)
class Harness:
    """A broker, a Redis and the settings of one recorder; each server may be killed and restarted."""

    folder: Path
    broker: Server
    redis_server: Server
    env: dict[str, str] = field(default_factory=dict)
    recorder: Server | None = None
    module: str = "manifold.recorder"  # what `python -m` runs
    users: RedisUsers | None = None  # the recorder's rights in an environment; None: all rights

    def start(self, *, clock: Path | None = None, **settings: object) -> Server:
        """Start the recorder and wait until it accepts messages; `clock` is the file that offsets its wall clock."""
        port, port_of_redis = free_port(), self.redis_server.port
        env = {
            "MANIFOLD_HOME": str(self.folder / "home"),
            "MANIFOLD_MQTT_PORT": str(self.broker.port),
            "MANIFOLD_REDIS_URL": self.users.url("recorder", port_of_redis) if self.users else "",
            "MANIFOLD_REDIS_PORT": str(port_of_redis),
            "MANIFOLD_RECORDER_PORT": str(port),
            **FAST,
            **self.env,
            **variables(**settings),
        }
        log = self.folder / "recorder.log"
        module = [self.module] if clock is None else ["tests.faults.clocked_recorder", str(clock)]
        ready = lambda: self.is_healthy(port)
        self.recorder = start_service(*module, port=port, log=log, env=env, ready=ready, imports=RECORDER)
        return self.recorder

    async def start_enqueuing(self) -> None:
        """Start the recorder and wait until it enqueues directly."""
        await asyncio.to_thread(self.start)
        await asyncio.to_thread(self.wait_direct_enqueue)

    def is_healthy(self, port: int | None = None) -> bool:
        """Whether the recorder reports that it accepts messages."""
        with contextlib.suppress(httpx.TransportError):
            return self.get("/healthz", port).status_code == 200
        return False

    def get(self, path: str, port: int | None = None) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{port or self.running.port}{path}", timeout=5)

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.get("/healthz").json()
        return answer

    def flush(self) -> list[str]:
        """Close the open segments; return their paths."""
        answer = httpx.post(f"http://127.0.0.1:{self.running.port}/flush", timeout=70)
        assert answer.status_code == 200, answer.text
        paths: list[str] = answer.json()["segments"]
        return paths

    def archived(self, stream: Stream) -> list[Envelope]:
        """All envelopes in the archive, in seq order."""
        return list(RecordedSegments(Archive(f"file://{self.folder}/home/archive")).recorded_since(stream, 0))

    def journal_files(self) -> list[Path]:
        """The unsealed files of its journal, oldest first."""
        return sorted((self.folder / "home" / "journal" / "0").glob("*.journal"))

    def journal_bytes(self) -> int:
        """The total size of its journal."""
        return sum(path.stat().st_size for path in self.journal_files())

    def wait_direct_enqueue(self, state: str = "on") -> None:
        """Wait until direct enqueue is `on`, or `suspended…`."""
        wait_until(lambda: str(self.health()["direct_enqueue"]).startswith(state), what=f"direct enqueue to be {state}")

    @property
    def running(self) -> Server:
        """The running recorder."""
        assert self.recorder is not None
        return self.recorder

    @property
    def redis(self) -> redis.Redis:
        port = self.redis_server.port
        return redis.Redis(port=port) if self.users is None else self.users.connect("tests", port)

    def load(self) -> None:
        """Mark the queues as completely loaded, as a rebuild does."""
        self.redis.set(keys.LOADED, 1)

    def pending(self, owner: str) -> list[int]:
        """The seqs queued for a vehicle, in order."""
        found: Any = self.redis.zrange(keys.pending(owner), 0, -1)
        return [int(seq) for seq in found]

    def keys(self, pattern: str) -> list[str]:
        """The matching keys in Redis."""
        found: Any = self.redis.keys(pattern)
        return [key.decode() for key in found]

    def woken(self) -> list[str]:
        """Owners in the wake-up streams."""
        found: list[Any] = [self.redis.xrange(key) for key in self.keys("{wake}:*")]
        return [owner for records in found for _, fields in records for owner in fields[b"owners"].decode().split("\n")]

    def stop_recorder(self) -> None:
        """Stop the recorder cleanly; the broker keeps its session."""
        self.running.stop()

    def connections(self) -> int:
        """The number of connections that recorders have made to the broker."""
        return (self.folder / "recorder.log").read_text().count("mqtt connected")

    def restart_redis(self, *, wiped: bool = False) -> None:
        """Restart Redis on its port as another process; `wiped` removes its content."""
        self.redis_server.kill()
        folder = self.folder / ("redis" if not wiped else f"redis-{free_port()}")
        self.redis_server = start_redis(folder, port=self.redis_server.port, append_only=True, users=self._users_file)

    def written(self) -> int:
        """The current size of Redis' file."""
        return self._redis_file.stat().st_size

    def take_redis_back(self, written: int) -> None:
        """Restart Redis with its file cut at this size, marks included, like a backup or a lagging replica."""
        self.redis_server.kill()
        os.truncate(self._redis_file, written)
        port, users = self.redis_server.port, self._users_file
        self.redis_server = start_redis(self.folder / "redis", port=port, append_only=True, users=users)

    @property
    def _users_file(self) -> Path | None:
        return self.users.file if self.users is not None else None

    @property
    def _redis_file(self) -> Path:
        (file,) = (self.folder / "redis" / "appendonlydir").glob("*.incr.aof")
        return file

    def restart_broker(self) -> None:
        """Restart the broker on its port without its state."""
        self.broker.kill()
        self.broker = start_mosquitto(self.folder / "broker", port=self.broker.port)

    def stop(self) -> None:
        for server in (self.recorder, self.redis_server, self.broker):
            if server is not None:
                server.stop()


@contextmanager
def harness(folder: Path, **env: str) -> Iterator[Harness]:
    """A broker, a Redis and a recorder not yet started, for one test."""
    broker = start_mosquitto(folder / "broker")
    try:
        users = RedisUsers(folder / "users", exact=True)
        redis_server = start_redis(folder / "redis", append_only=True, users=users.file)
    except BaseException:
        broker.stop()
        raise
    home = Harness(folder, broker, redis_server, variables(**env), users=users)
    try:
        yield home
    finally:
        home.stop()


@contextmanager
def running_harness(folder: Path, *, clock: Path | None = None, **env: str) -> Iterator[Harness]:
    """A harness with loaded queues and a recorder that enqueues directly."""
    with harness(folder, **env) as home:
        home.load()
        home.start(clock=clock)
        home.wait_direct_enqueue()
        yield home


def take_away(folder: Path) -> None:
    """Make a folder inaccessible."""
    folder.rename(folder.with_name("away"))
    folder.write_text("a file where the folder should be")


def put_back(folder: Path) -> None:
    """Make it accessible again."""
    folder.unlink()
    folder.with_name("away").rename(folder)


def metric(home: Harness, name: str) -> float:
    """A metric of the recorder's /metrics."""
    lines = home.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), math.nan)
