"""Slowly acknowledging vehicles that detect forbidden events meanwhile."""

import heapq
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from manifold.contracts.outcomes import Outcome
from manifold.contracts.topics import Sign
from tests.dispatcher.platform import Platform
from tests.dispatcher.vehicle import Got, Vehicle
from tests.support.servers import wait_until

ACK_AFTER_S = 0.01


class Acker:
    """One thread that acknowledges for all vehicles with a delay."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Driver, Got]] = []
        self._ties = itertools.count()
        self._changed = threading.Condition()
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="acker", daemon=True)

    def later(self, driver: "Driver", got: Got) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + ACK_AFTER_S, next(self._ties), driver, got))
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._ended)
                if self._ended:
                    return
                at, _, driver, got = self._due[0]
                if at > time.monotonic():
                    self._changed.wait(at - time.monotonic())
                    continue
                heapq.heappop(self._due)
            driver.acknowledge(got)


class Driver(Vehicle):
    """A vehicle; `wrong` lists violations: another seq before the PUBACK of the previous one."""

    def __init__(self, platform: Platform, acker: Acker) -> None:
        super().__init__(platform)
        self.acks, self.look, self._acker = False, self._judge, acker
        self._unanswered: Got | None = None
        self.wrong: list[str] = []

    def acknowledge(self, got: Got) -> None:
        if self._unanswered is not None and self._unanswered.seq == got.seq:
            self._unanswered = None  # first, because the broker may send the next one before `ack` returns
        self.ack(got)

    def _judge(self, got: Got) -> None:
        before = self._unanswered
        if before is not None and before.seq != got.seq:
            self.wrong.append(f"{self.vin}: {got.seq} came before the PUBACK of {before.seq}")
        self._unanswered = got
        self._acker.later(self, got)


@contextmanager
def a_fleet(platform: Platform, count: int) -> Iterator[list[Driver]]:
    """This many vehicles, online."""
    acker = Acker()
    acker.thread.start()
    drivers = [Driver(platform, acker) for _ in range(count)]
    try:
        for driver in drivers:
            driver.connect()
            driver.say(Sign.ONLINE)
        wait_until(lambda: all(platform.presence(d.vin).get("connected") == "yes" for d in drivers))
        yield drivers
    finally:
        acker.end()
        for driver in drivers:
            driver.leave()


def all_arrived_in_order(platform: Platform, drivers: Sequence[Driver], seqs: Sequence[int], *, within_s: float) -> None:
    """Check that every entry was delivered, with first copies in seq order, and nothing else."""
    wanted = {(d.vin, seq) for d in drivers for seq in seqs}

    def missing() -> set[tuple[str, int]]:
        return wanted - {(r.vin, r.seq) for r in platform.outcomes() if r.outcome is Outcome.DELIVERED}

    try:
        wait_until(lambda: not missing(), within_s=within_s)
    except TimeoutError:
        stuck = {vin: (platform.in_flight(vin), platform.pending(vin), platform.presence(vin)) for vin, _ in missing()}
        raise AssertionError(f"not within {within_s} s: {stuck}") from None
    assert [wrong for d in drivers for wrong in d.wrong] == []
    for driver in drivers:
        assert list(dict.fromkeys(got.seq for got in driver.got)) == sorted(seqs)
        assert platform.pending(driver.vin) == []
        assert platform.in_flight(driver.vin) is None
