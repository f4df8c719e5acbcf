"""The platform under measurement: started for one run, its queues filled from outside, its processes' CPU read."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
from redis import Redis

from benchmarks.machine import free_ports
from manifold.contracts import keys
from manifold.contracts.seq import SeqSource, wall_clock_ms
from manifold.queues import Loader, Policy
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.health import status
from manifold.settings import Settings, load_settings

REQUEST, DATA = "bench", "bench"
PAYLOAD = b"x" * 200
QUIET_S = 0.3


def vin(number: int) -> str:
    """The client id of vehicle `number`."""
    return f"BENCH{number:012}"


class Ground:
    """A running platform; `processes` by their kind."""

    def __init__(self, settings: Settings, redis: Redis, processes: dict[str, list[psutil.Process]]) -> None:
        self.settings, self.redis, self.processes = settings, redis, processes
        self._seqs = SeqSource(900)

    def cpu_s(self, kind: str) -> float:
        """CPU seconds of user and system that the processes of this kind have taken since they began."""
        return sum(sum(process.cpu_times()[:2]) for process in self.processes[kind])

    def seqs(self, count: int) -> list[int]:
        """New seqs, each of a trigger that is known to Redis, all for the same data."""
        made = [self._seqs.next() for _ in range(count)]
        Loader(self.redis, Policy.of(self.settings)).store_triggers(dict.fromkeys(made, (REQUEST, DATA)))
        return made

    def load(self, owners: Iterable[str], seqs: Sequence[int]) -> None:
        """Queue these entries for each of the owners; the dispatchers are woken for those that are here."""
        entries = [(seq, REQUEST) for seq in seqs]
        self.offer((owner, entries) for owner in owners)

    def offer(self, entries: Iterable[tuple[str, Sequence[tuple[int, str]]]]) -> None:
        """Queue (owner, [(seq, request_id), …])."""
        Loader(self.redis, Policy.of(self.settings)).enqueue(entries, wall_clock_ms())

    def pending(self, owners: Iterable[str]) -> int:
        """Entries of these owners that are not acknowledged."""
        pipe = self.redis.pipeline(transaction=False)
        for owner in owners:
            pipe.zcard(keys.pending(owner))
        return sum(pipe.execute())

    def seal(self) -> None:
        """Have the recorder write down what it still has to: that is a cost of what came before."""
        httpx.post(f"http://{self.settings.host}:{self.settings.recorder_port}/flush", timeout=60).raise_for_status()

    def settle(self, owners: Sequence[str], within_s: float = 30.0) -> None:
        """Return when none of these owners has anything pending.

        Raises:
            TimeoutError: one still has.
        """
        deadline = time.monotonic() + within_s
        while left := self.pending(owners):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{left} entries are still pending after {within_s} s")
            time.sleep(QUIET_S)


@contextmanager
def platform(**overrides: object) -> Iterator[Ground]:
    """The embedded platform without Airflow, on free ports, in a folder of its own."""
    with TemporaryDirectory(prefix="manifold-bench-") as folder:
        settings = load_settings(home=Path(folder), with_airflow=False, with_signals=False, **{**free_ports(), **overrides})
        supervise.up(settings)
        try:
            found = {kind: [psutil.Process(pid) for pid in pids] for kind, pids in status(settings).processes.items()}
            with Redis.from_url(settings.redis) as redis:
                redis.set(keys.data(DATA), PAYLOAD)
                yield Ground(settings, redis, found)
        finally:
            supervise.down(settings)
