"""What the door sustains, and what its library does that acknowledges only."""

import time
from dataclasses import dataclass

from benchmarks.signals import _raw
from benchmarks.signals._ground import LOOK_S, WITHIN_S, Door, Ground, wait_for
from benchmarks.signals._load import load

LARGE_BYTES = 786_000  # of which base64 makes 1,048,000 characters


@dataclass(frozen=True, slots=True)
class Rate:
    """Signals a second, from the first that is published to the last that is settled; microseconds of CPU for each."""

    rate: float
    door_us: float
    rabbitmq_us: float
    load_us: float


def sustained(ground: Ground, count: int, doors: int, *, seed: int, **more: object) -> Rate:
    """Signals of 1 KB, as fast as they can be published, beside the doors that process them; `more` are settings of these."""
    with ground.doors(doors, **more) as running, load(ground.url, ground.secret, count, seed=seed) as publisher:
        of_doors, of_rabbitmq, began = _cpu(running), ground.cpu_s(), time.monotonic()
        publisher.send(None)
        ended = wait_for(running, count)
        load_s: float = publisher.recv()
        a_signal = 1e6 / count
        door_us, rabbitmq_us = (_cpu(running) - of_doors) * a_signal, (ground.cpu_s() - of_rabbitmq) * a_signal
        return Rate(count / (ended - began), door_us, rabbitmq_us, load_s * a_signal)


@dataclass(frozen=True, slots=True)
class Large:
    """Messages of the largest payload, all in hand at once: seconds until all are processed, and memory of the door."""

    seconds: float
    before_mb: float
    most_mb: float


def large(ground: Ground, count: int, *, seed: int) -> Large:
    """So many messages of 1 MB, beside one door that may have all of them in hand."""
    with (
        ground.doors(1, signals_prefetch=count) as (door,),
        load(ground.url, ground.secret, count, seed=seed, payload_bytes=LARGE_BYTES) as publisher,
    ):
        before, began = door.memory_mb(), time.monotonic()
        most, ending = before, began + WITHIN_S
        publisher.send(None)
        while door.processed() < count:
            most = max(most, door.memory_mb())
            if time.monotonic() > ending:
                raise TimeoutError(f"{door.processed()} of {count} large signals after {WITHIN_S} s")
            time.sleep(LOOK_S)
        return Large(time.monotonic() - began, before, max(most, door.memory_mb()))


def acknowledged(ground: Ground, count: int, *, seed: int) -> Rate:
    """The same load, beside a client that acknowledges only."""
    ground.purge()
    with _raw.consumer(ground.url, count) as consumer, load(ground.url, ground.secret, count, seed=seed) as publisher:
        of_rabbitmq, began = ground.cpu_s(), time.monotonic()
        publisher.send(None)
        consumer_s: float = consumer.recv()
        ended = time.monotonic()
        load_s: float = publisher.recv()
        a_signal = 1e6 / count
        return Rate(count / (ended - began), consumer_s * a_signal, (ground.cpu_s() - of_rabbitmq) * a_signal, load_s * a_signal)


def _cpu(doors: list[Door]) -> float:
    return sum(door.cpu_s() for door in doors)
