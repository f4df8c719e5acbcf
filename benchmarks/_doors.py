"""A RabbitMQ and a Redis with the topology of signals, and doors that are started for each figure."""

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

WITHIN_S = 600.0
LOOK_S = 0.2  # a look at its metrics costs the door 2 ms


@dataclass(slots=True)
class Door:
    """A running door."""

    settings: Settings
    process: psutil.Process
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=30))

    def processed(self) -> int:
        """Signals that it has processed, by its own metric."""
        page = self._client.get(f"{self.settings.signals}/metrics").text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return sum(int(s.value) for s in samples if s.name == "signals_messages_total" and s.labels["outcome"] == "processed")

    def cpu_s(self) -> float:
        """CPU seconds (user and system) since it started."""
        return sum(self.process.cpu_times()[:2])

    def memory_mb(self) -> float:
        """Resident memory in MiB."""
        return float(self.process.memory_info().rss) / (1 << 20)


@dataclass(slots=True)
class Ground:
    """The servers; `settings` are those of the first door."""

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
    def doors(self, count: int, **more: object) -> Iterator[list[Door]]:
        """Run doors on empty queues until the block ends; `more` are settings of theirs."""
        with ExitStack() as running:
            found = [running.enter_context(self._door(number, **more)) for number in range(count)]
            self.purge()
            yield found

    @contextmanager
    def _door(self, number: int, **more: object) -> Iterator[Door]:
        own = {"signals_port": free_port(), "signals_node": self.settings.signals_node + number, **more}
        settings = self.settings.model_copy(update=own)
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
        """CPU seconds of RabbitMQ since it started."""
        return sum(self.rabbitmq.cpu_times()[:2])


def wait_for(doors: list[Door], count: int) -> float:
    """Return when (monotonic) the doors had processed `count` signals together.

    Raises:
        TimeoutError: they did not within `WITHIN_S`.
    """
    deadline = time.monotonic() + WITHIN_S
    while (done := sum(door.processed() for door in doors)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done} of {count} signals after {WITHIN_S} s")
        time.sleep(LOOK_S)
    return time.monotonic()


@contextmanager
def ground() -> Iterator[Ground]:
    """RabbitMQ and Redis in a folder that is deleted afterwards."""
    with TemporaryDirectory(prefix=PREFIX) as folder, start_redis(Path(folder) / "redis") as redis:
        home = Path(folder) / "home"
        secret_files.get_or_create(home, secret_files.HMAC, lambda: secrets.token_hex(32))
        secret_files.get_or_create(home, secret_files.KEYS, lambda: new_key_line("bench"))
        ports = free_ports()
        settings = load_settings(
            home=home, amqp_port=ports["amqp_port"], redis_port=redis.port, signals_port=ports["signals_port"]
        )
        with running_rabbitmq(settings) as server:
            yield Ground(settings, psutil.Process(server.pid))  # the script that starts the node becomes it
