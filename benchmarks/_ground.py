"""A platform under measurement: its queues are filled from outside, and the CPU of its processes is read."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import httpx
import psutil
from redis import Redis

from benchmarks._servers import sandbox
from manifold.contracts import keys
from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import Loader, Policy
from manifold.sandbox.platform.health import status
from manifold.settings import Settings

REQUEST, DATA = "bench", "bench"
PAYLOAD = b"x" * 200
BATCH = EntryTrigger(REQUEST, DATA)
LOOK_S = 0.3


def vin(number: int) -> str:
    """Return the client id of vehicle `number`."""
    return f"BENCH{number:012}"


class Ground:
    """A running platform, with its processes by kind."""

    def __init__(self, settings: Settings, redis: Redis, processes: dict[str, list[psutil.Process]]) -> None:
        self.settings, self.redis, self.processes = settings, redis, processes
        self._seqs = SeqSource(900)

    def cpu_s(self, kind: str) -> float:
        """CPU seconds (user and system) of the processes of this kind since they started."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes[kind])

    def seqs(self, count: int, trigger: EntryTrigger = BATCH) -> list[int]:
        """Return new seqs, each of such a trigger, stored in Redis."""
        made = [self._seqs.next() for _ in range(count)]
        Loader(self.redis, Policy.of(self.settings)).store_triggers(dict.fromkeys(made, trigger))
        return made

    def load(self, owners: Iterable[str], seqs: Sequence[int]) -> None:
        """Queue these entries for each owner; dispatchers are woken for owners that are online."""
        entries = [(seq, REQUEST) for seq in seqs]
        self.offer((owner, entries) for owner in owners)

    def offer(self, entries: Iterable[tuple[str, Sequence[tuple[int, str]]]]) -> None:
        """Queue (owner, [(seq, request_id), …])."""
        Loader(self.redis, Policy.of(self.settings)).enqueue(entries, wall_clock_ms())

    def pending(self, owners: Iterable[str]) -> int:
        """Return how many entries of these owners are not acknowledged."""
        pipe = self.redis.pipeline(transaction=False)
        for owner in owners:
            pipe.zcard(keys.pending(owner))
        return sum(pipe.execute())

    def seal(self) -> None:
        """Have the recorder seal its journal, whose cost belongs to the work before."""
        httpx.post(f"http://{self.settings.host}:{self.settings.recorder_port}/flush", timeout=60).raise_for_status()

    def settle(self, owners: Sequence[str], within_s: float = 30.0) -> None:
        """Wait until none of these owners has an entry pending.

        Raises:
            TimeoutError: one still has.
        """
        deadline = time.monotonic() + within_s
        while left := self.pending(owners):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} entries are still pending after {within_s} s")
            time.sleep(LOOK_S)


@contextmanager
def platform(**overrides: object) -> Iterator[Ground]:
    """The embedded platform without Airflow and RabbitMQ, with one payload in Redis."""
    with sandbox(**overrides) as settings, Redis.from_url(settings.redis) as redis:
        found = {kind: [psutil.Process(pid) for pid in pids] for kind, pids in status(settings).processes.items()}
        redis.set(keys.data(DATA), PAYLOAD)
        yield Ground(settings, redis, found)
