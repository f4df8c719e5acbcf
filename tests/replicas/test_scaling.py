"""Dispatchers scale under load: no leader, nothing stuck, never two in flight."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from manifold.settings import Settings
from tests.dispatcher.platform import Platform, a_platform
from tests.dispatcher.vehicle import Got
from tests.replicas.drivers import Acker, Driver, a_fleet, all_arrived_in_order
from tests.support.servers import wait_until

BOUND_S = 120  # 35 s with the deadlines of the default settings (docs/guides/high-availability.md), and a busy machine


class Load:
    """Batches for all vehicles, one after the other, while the test needs them."""

    def __init__(self, platform: Platform, drivers: list[Driver]) -> None:
        self._platform, self._vins, self._ended = platform, [d.vin for d in drivers], threading.Event()
        self.seqs: list[int] = []
        self.thread = threading.Thread(target=self._run, name="load", daemon=True)

    def more(self, batches: int) -> None:
        """Wait until that many more batches were queued."""
        wanted = len(self.seqs) + batches
        wait_until(lambda: len(self.seqs) >= wanted, within_s=60)

    def end(self) -> None:
        self._ended.set()
        self.thread.join()

    def _run(self) -> None:
        for n in itertools.count():
            if self._ended.wait(0.02):  # a pace, not a wait
                return
            self.seqs.append(self._platform.enqueue(*self._vins, request_id=f"task_{n}"))


@contextmanager
def under_load(platform: Platform, drivers: list[Driver]) -> Iterator[Load]:
    load = Load(platform, drivers)
    load.thread.start()
    try:
        yield load
    finally:
        load.end()


def test_scaling_from_one_to_four_and_back_survives_kill_9(tmp_path: Path) -> None:
    with a_platform(tmp_path, ack_deadline_seconds=2, ack_deadline_max_seconds=4) as platform:
        platform.start_dispatcher(0)
        with a_fleet(platform, 12) as drivers:
            with under_load(platform, drivers) as load:
                for replica in (1, 2, 3):
                    platform.start_dispatcher(replica)
                load.more(20)
                platform.dispatchers[1].kill()
                platform.dispatchers[3].kill()
                load.more(10)
                platform.start_dispatcher(1)
                platform.dispatchers[0].kill()
                load.more(10)
                platform.dispatchers[2].stop()
                load.more(10)
            all_arrived_in_order(platform, drivers, load.seqs, within_s=BOUND_S)
            assert platform.dispatchers[2].process.returncode == 0


def test_a_vehicle_notices_messages_before_its_puback() -> None:
    place: Any = SimpleNamespace(settings=Settings())
    driver = Driver(place, Acker())
    first, again, second = (Got("agent/V/proxy/request/r", b"", n == 1, seq, n, 1) for n, seq in enumerate((7, 7, 8)))

    driver.look(first)
    driver.look(again)
    assert driver.wrong == []
    driver.look(second)
    assert driver.wrong == [f"{driver.vin}: 8 came before the PUBACK of 7"]
