"""A platform under measurement: fills its queues from outside, and reads the CPU time of its processes."""

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
POLL_S = 0.3


def vin(number: int) -> str:
    """Return the client id of vehicle `number`."""
    return f"BENCH{number:012}"


class Ground:
    """A running platform, with its processes by kind."""

    def __init__(self, settings: Settings, redis: Redis, processes: dict[str, list[psutil.Process]]) -> None:
        self.settings, self.redis, self.processes = settings, redis, processes
        self._seqs = SeqSource(900)

    def cpu_s(self, kind: str) -> float:
        """Return the CPU seconds (user and system) of the processes of this kind since they started."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes[kind])

    def seqs(self, count: int, trigger: EntryTrigger = BATCH) -> list[int]:
        """Return `count` new seqs, after storing a trigger with the facts in `trigger` for each in Redis."""
        seqs = [self._seqs.next() for _ in range(count)]
        Loader(self.redis, Policy.of(self.settings)).store_triggers(dict.fromkeys(seqs, trigger))
        return seqs

    def load(self, owners: Iterable[str], seqs: Sequence[int]) -> None:
        """Queue an entry with each seq for each owner; this wakes the dispatchers of owners that are online."""
        entries = [(seq, REQUEST) for seq in seqs]
        self.offer((owner, entries) for owner in owners)

    def offer(self, entries: Iterable[tuple[str, Sequence[tuple[int, str]]]]) -> None:
        """Queue entries, given as (owner, [(seq, request_id), …])."""
        Loader(self.redis, Policy.of(self.settings)).enqueue(entries, wall_clock_ms())

    def pending(self, owners: Iterable[str]) -> int:
        """Return the number of entries of these owners that are not acknowledged."""
        pipe = self.redis.pipeline(transaction=False)
        for owner in owners:
            pipe.zcard(keys.pending(owner))
        return sum(pipe.execute())

    def seal(self) -> None:
        """Have the recorder seal its journal, so that the next measurement does not include the cost for earlier messages."""
        httpx.post(f"http://{self.settings.host}:{self.settings.recorder_port}/flush", timeout=60).raise_for_status()

    def settle(self, owners: Sequence[str], within_s: float = 30.0) -> None:
        """Wait until none of these owners has an entry pending.

        Raises:
            TimeoutError: an owner still has a pending entry after `within_s`.
        """
        deadline = time.monotonic() + within_s
        while pending := self.pending(owners):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{pending} entries are still pending after {within_s} s")
            time.sleep(POLL_S)


@contextmanager
def platform(**overrides: object) -> Iterator[Ground]:
    """Run the embedded platform without Airflow and RabbitMQ, with one payload in Redis."""
    with sandbox(**overrides) as settings, Redis.from_url(settings.redis) as redis:
        processes = {kind: [psutil.Process(pid) for pid in pids] for kind, pids in status(settings).processes.items()}
        redis.set(keys.data(DATA), PAYLOAD)
        yield Ground(settings, redis, processes)
