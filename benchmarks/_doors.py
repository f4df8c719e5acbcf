"""RabbitMQ and Redis for the signals benchmark, and doors that are started for each figure."""

import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pika
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks._servers import PREFIX, answers, free_port, running_rabbitmq, start_python, start_redis
from manifold.contracts.signals import topology
from manifold.lake.key_ring import new_key_line
from manifold.messaging.amqp import connection_url, hmac_secrets
from manifold.runtime import secret_files
from manifold.sandbox.platform.ports import free_ports
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings, load_settings

TIMEOUT_S = 600.0
POLL_S = 0.2  # between two reads of a door's metrics, each of which costs the door 2 ms


@dataclass(slots=True)
class Door:
    """A running door."""

    settings: Settings
    process: psutil.Process
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=30))

    def processed(self) -> int:
        """Return the number of signals that the door has processed, by its own metric."""
        page = self._client.get(f"{self.settings.signals}/metrics").text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        outcomes = (sample for sample in samples if sample.name == "signals_messages_total")
        return sum(int(sample.value) for sample in outcomes if sample.labels["outcome"] == "processed")

    def cpu_s(self) -> float:
        """Return the CPU seconds (user and system) of the door since it started."""
        return sum(self.process.cpu_times()[:2])

    def memory_mb(self) -> float:
        """Return the resident memory of the door in MiB."""
        return float(self.process.memory_info().rss) / (1 << 20)


@dataclass(slots=True)
class Ground:
    """The servers that doors need. `settings` are the settings of the first door."""

    settings: Settings
    rabbitmq: psutil.Process

    @property
    def url(self) -> str:
        """RabbitMQ's URL, with user and password."""
        return connection_url(self.settings)

    @property
    def secret(self) -> str:
        """The secret with which gateways sign."""
        return hmac_secrets(self.settings)[0]

    @contextmanager
    def doors(self, count: int, **overrides: object) -> Iterator[list[Door]]:
        """Run doors on empty queues until the block ends; `overrides` are settings for all of these doors."""
        with ExitStack() as running:
            doors = [running.enter_context(self._door(number, **overrides)) for number in range(count)]
            self.purge()
            yield doors

    @contextmanager
    def _door(self, number: int, **overrides: object) -> Iterator[Door]:
        changes = {"signals_port": free_port(), "signals_node": self.settings.signals_node + number, **overrides}
        settings = self.settings.model_copy(update=changes)
        health = f"{settings.signals}/healthz"
        log = settings.home / f"door-{number}.log"
        env = environment(settings)
        port = settings.signals_port
        with start_python("manifold.signals", port=port, log=log, env=env, ready=lambda: answers(health)) as server:
            yield Door(settings, psutil.Process(server.pid))

    def purge(self) -> None:
        """Empty every queue."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for queue in topology.QUEUES:
                channel.queue_purge(queue.name)

    def cpu_s(self) -> float:
        """Return the CPU seconds of RabbitMQ since it started."""
        return sum(self.rabbitmq.cpu_times()[:2])


def wait_for(doors: list[Door], count: int) -> float:
    """Wait until the doors have processed `count` signals together; return the time on the monotonic clock, in seconds.

    Raises:
        TimeoutError: the doors did not process as many within `TIMEOUT_S`.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while (done := sum(door.processed() for door in doors)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done} of {count} signals after {TIMEOUT_S} s")
        time.sleep(POLL_S)
    return time.monotonic()


@contextmanager
def ground() -> Iterator[Ground]:
    """Run RabbitMQ and Redis in a folder that is deleted at the end of the block."""
    with TemporaryDirectory(prefix=PREFIX) as folder, start_redis(Path(folder) / "redis") as redis:
        home = Path(folder) / "home"
        secret_files.get_or_create(home, secret_files.HMAC, lambda: secrets.token_hex(32))
        secret_files.get_or_create(home, secret_files.KEYS, lambda: new_key_line("bench"))
        ports = free_ports()
        settings = load_settings(
            home=home, amqp_port=ports["amqp_port"], redis_port=redis.port, signals_port=ports["signals_port"]
        )
        with running_rabbitmq(settings) as server:
            yield Ground(
                settings, psutil.Process(server.pid)
            )  # the start script replaces itself by the node, with the same process id
