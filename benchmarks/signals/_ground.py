"""What is measured: RabbitMQ and Redis of a run's own, and doors, which are started for each figure."""

import os
import secrets
import subprocess
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

from manifold.contracts.signals import topology
from manifold.lake.key_ring import new_key_line
from manifold.messaging.amqp import connection_url, hmac_secrets
from manifold.runtime import secret_files
from manifold.sandbox.platform import rabbitmq as embedded
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings, load_settings
from tests.support.rabbitmq import DEFINITIONS, start_rabbitmq
from tests.support.servers import Server, answers, free_port, start_python, start_redis

WITHIN_S = 600.0
LOOK_S = 0.2  # a look takes the door 2 ms


@dataclass(slots=True)
class Door:
    """A door that runs."""

    settings: Settings
    process: psutil.Process
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=30))

    def processed(self) -> int:
        """Signals that it has processed, as it counts."""
        page = self._client.get(f"{self.settings.signals}/metrics").text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return sum(int(s.value) for s in samples if s.name == "signals_messages_total" and s.labels["outcome"] == "processed")

    def cpu_s(self) -> float:
        """CPU seconds of user and system since it began."""
        return sum(self.process.cpu_times()[:2])

    def memory_mb(self) -> float:
        """What it has in memory now, in MiB."""
        return float(self.process.memory_info().rss) / (1 << 20)


@dataclass(slots=True)
class Ground:
    """The servers. `settings` are those of a first door."""

    settings: Settings
    rabbitmq: psutil.Process

    @property
    def url(self) -> str:
        """Where RabbitMQ is."""
        return connection_url(self.settings)

    @property
    def secret(self) -> str:
        """What gateways sign with."""
        return hmac_secrets(self.settings)[0]

    @contextmanager
    def doors(self, count: int, **more: object) -> Iterator[list[Door]]:
        """So many doors that consume from empty queues; they end with the block."""
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
        server = start_python("manifold.signals", port=settings.signals_port, log=log, env=env, ready=lambda: answers(health))
        try:
            yield Door(settings, psutil.Process(server.pid))
        finally:
            server.stop()

    def purge(self) -> None:
        """Empty every queue."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            for queue in topology.QUEUES:
                channel.queue_purge(queue.name)

    @contextmanager
    def second_version(self) -> Iterator[None]:
        """Queues keep messages in RabbitMQ's second way while the block runs; by a policy, for their arguments are fixed."""
        self._ctl("set_policy", "second-version", ".*", '{"queue-version": 2}', "--apply-to", "queues")
        try:
            yield
        finally:
            self._ctl("clear_policy", "second-version")

    def _ctl(self, *words: str) -> None:
        script = embedded.server_script()
        assert script is not None
        env = os.environ | embedded.environment(self.settings)
        subprocess.run([str(script.with_name("rabbitmqctl")), *words], env=env, check=True, capture_output=True)

    def cpu_s(self) -> float:
        """CPU seconds of RabbitMQ since it began."""
        return sum(self.rabbitmq.cpu_times()[:2])


def wait_for(doors: list[Door], count: int) -> float:
    """When the doors had processed so many together, on the monotonic clock.

    Raises:
        TimeoutError: they have not within `WITHIN_S`.
    """
    deadline = time.monotonic() + WITHIN_S
    while (done := sum(door.processed() for door in doors)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done} of {count} signals after {WITHIN_S} s")
        time.sleep(LOOK_S)
    return time.monotonic()


@contextmanager
def ground() -> Iterator[Ground]:
    """RabbitMQ and Redis in a folder that is gone afterwards; the topology is there."""
    with TemporaryDirectory(prefix="manifold-bench-") as folder, ExitStack() as running:
        home = Path(folder) / "home"
        secret_files.get_or_create(home, secret_files.HMAC, lambda: secrets.token_hex(32))
        secret_files.get_or_create(home, secret_files.KEYS, lambda: new_key_line("bench"))
        redis = start_redis(Path(folder) / "redis")
        running.callback(redis.stop)
        settings = load_settings(home=home, amqp_port=free_port(), redis_port=redis.port, signals_port=free_port())
        servers: list[Server] = start_rabbitmq(settings, definitions=DEFINITIONS)
        for server in servers:
            running.callback(server.stop)
        yield Ground(settings, psutil.Process(servers[-1].pid))  # the script that starts the node becomes it
