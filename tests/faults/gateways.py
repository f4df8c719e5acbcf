"""Gateways that know the contract and pika, and publish each unconfirmed message again unchanged."""

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from manifold.contracts.signals import topology
from tests.manifold.signals.gateway import body_of, now_text, signed

HEARTBEAT_S = 5
AGAIN_S = 0.2  # between two connection attempts
STATUSES, BAD = 0.05, 0.05  # shares of all publishes
MARK = b"the words of a patient "  # part of every payload


@dataclass(slots=True)
class Sent:
    """What RabbitMQ has confirmed: the identities of the messages by kind."""

    signals: list[tuple[str, str]] = field(default_factory=list)  # device, digest of the payload
    statuses: list[str] = field(default_factory=list)  # devices
    refused: list[str] = field(default_factory=list)  # devices named in the headers
    again: int = 0  # publishes whose confirm was lost

    def __len__(self) -> int:
        return len(self.signals) + len(self.statuses) + len(self.refused)


class Gateways:
    """Threads that publish until `stop`, each over its own connection."""

    def __init__(self, url: str, secret: str, *, seed: int, threads: int, every_s: float) -> None:
        self.sent = Sent()
        self.trouble: list[BaseException] = []
        self._url, self._secret, self._every_s = url, secret, every_s
        self._seed, self._enough, self._lock = seed, threading.Event(), threading.Lock()
        self._numbers = count(1)
        self._threads = [threading.Thread(target=self._work, args=(n,), name=f"gateway-{n}") for n in range(threads)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> Sent:
        """Stop; return what was confirmed once all threads have ended."""
        self._enough.set()
        for thread in self._threads:
            thread.join()
        return self.sent

    def _work(self, thread: int) -> None:
        rng, connection = Random(f"gateway/{self._seed}/{thread}"), _Connection(f"{self._url}?heartbeat={HEARTBEAT_S}")
        try:
            while not self._enough.wait(self._every_s):
                self._one(rng, connection)
        except BaseException as exc:  # for the verdict
            self.trouble.append(exc)
            raise
        finally:
            connection.close()

    def _one(self, rng: Random, connection: "_Connection") -> None:
        number, kind = next(self._numbers), rng.random()
        if kind < BAD:
            device, body = f"bad-{number}", rng.randbytes(rng.randrange(1, 500))
            tries = connection.insist(
                topology.RAW, body, signed(body, device=device, secret=self._secret) | {"x-device-id": device}
            )
            with self._lock:
                self.sent.refused.append(device)
        elif kind < BAD + STATUSES:
            device = f"device-{number}"
            body = json.dumps({"deviceId": device, "status": "online", "lastSeen": now_text()}).encode()
            tries = connection.insist(topology.STATUS, body, signed(body, device=device, secret=self._secret))
            with self._lock:
                self.sent.statuses.append(device)
        else:
            device, payload = f"device-{number % 50}", MARK + b"%d " % number + rng.randbytes(rng.randrange(1, 1000))
            body = body_of(device, payload)
            tries = connection.insist(topology.RAW, body, signed(body, device=device, secret=self._secret))
            with self._lock:
                self.sent.signals.append((device, hashlib.sha256(payload).hexdigest()))
        with self._lock:
            self.sent.again += tries - 1


class _Connection:
    def __init__(self, url: str) -> None:
        self._parameters = pika.URLParameters(url)
        self._parameters.blocked_connection_timeout = 30
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None

    def insist(self, queue: str, body: bytes, headers: dict[str, Any]) -> int:
        """Publish until the message is confirmed; return the number of publishes."""
        about = pika.BasicProperties(headers=headers, content_type="application/json", delivery_mode=2)
        for tries in count(1):
            try:
                self._open().basic_publish(topology.EXCHANGE, queue, body, about, mandatory=True)
            except (AMQPError, OSError):
                self.close()
                time.sleep(AGAIN_S)
            else:
                return tries
        raise AssertionError("it was never confirmed")

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None and connection.is_open:
            try:
                connection.close()
            except (AMQPError, OSError):
                return

    def _open(self) -> BlockingChannel:
        if self._channel is None:
            self._connection = pika.BlockingConnection(self._parameters)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel


def twice_or_never(wanted: list[Any], found: list[Any]) -> list[str]:
    """A few messages that are missing, duplicated, or present although never confirmed."""
    had, has = Counter(wanted), Counter(found)
    assert max(had.values(), default=1) == 1
    wrong = [f"{key} is there {has[key]} times" for key in had if has[key] != 1]
    return (wrong + [f"{key} is there {n} times" for key, n in has.items() if key not in had and n > 1])[:20]
