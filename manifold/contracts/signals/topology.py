"""Exchanges, queues and bindings of the AMQP door: one definition, asserted at start and exported to infra/rabbitmq/."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

EXCHANGE, DEAD_EXCHANGE = "iot.xray", "iot.xray.dlx"
RAW, RETRY, DEAD = "xray.raw.v1", "xray.raw.v1.retry", "xray.raw.v1.dlq"
STATUS, PROCESSED = "device.status.v1", "xray.processed.v1"
# Copies of all dead letters, which the door consumes to record messages that expired in their queue.
DEAD_COPY = "xray.raw.v1.dlq.copy"
PARTITIONS = "iot.xray.partitions"  # exchange that distributes signals by device, if partitions are on
PARTITIONS_TYPE, PARTITIONS_BY = "x-consistent-hash", {"hash-header": "x-device-id"}
MAX_PARTITIONS = 64
RAW_TTL_MS, RETRY_TTL_MS, DEAD_TTL_MS = 3_600_000, 60_000, 604_800_000
_TTL, _DEAD_EXCHANGE, _DEAD_KEY = "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key"


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue, bound to `exchange` with its own name or `bound_by` as the routing key."""

    name: str
    exchange: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    bound_by: str = ""

    @property
    def key(self) -> str:
        """The routing key of the queue's binding."""
        return self.bound_by or self.name


EXCHANGES = {EXCHANGE: "topic", DEAD_EXCHANGE: "direct"}  # all durable; name → type
QUEUES = (
    Queue(RAW, EXCHANGE, {_TTL: RAW_TTL_MS, _DEAD_EXCHANGE: DEAD_EXCHANGE, _DEAD_KEY: DEAD}),
    Queue(RETRY, DEAD_EXCHANGE, {_TTL: RETRY_TTL_MS, _DEAD_EXCHANGE: EXCHANGE, _DEAD_KEY: RAW}),
    Queue(DEAD, DEAD_EXCHANGE, {_TTL: DEAD_TTL_MS}),
    Queue(STATUS, EXCHANGE),
    Queue(PROCESSED, EXCHANGE),
    Queue(DEAD_COPY, DEAD_EXCHANGE, {_TTL: DEAD_TTL_MS}, bound_by=DEAD),
)


def partition(number: int) -> str:
    """Return the name of a partition of the raw queue."""
    return f"{RAW}.p{number}"


def partitions(count: int) -> tuple[Queue, ...]:
    """Return the partitions of the raw queue, each with a single active consumer; the binding key is the hash weight."""
    raw = next(queue for queue in QUEUES if queue.name == RAW)
    arguments = {**raw.arguments, "x-single-active-consumer": True}
    return tuple(Queue(partition(number), PARTITIONS, arguments, bound_by="1") for number in range(count))


OWN_QUEUES = frozenset(queue.name for queue in (*QUEUES, *partitions(MAX_PARTITIONS)))


def definitions(vhost: str = "/") -> dict[str, list[dict[str, Any]]]:
    """Return the topology in the format of `rabbitmqctl import_definitions` and of `load_definitions` in rabbitmq.conf.

    It lacks the partitions and their exchange: the door declares them if partitions are on.
    """
    return {
        "exchanges": [
            {
                "name": name,
                "vhost": vhost,
                "type": kind,
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            for name, kind in EXCHANGES.items()
        ],
        "queues": [
            {"name": queue.name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": dict(queue.arguments)}
            for queue in QUEUES
        ],
        "bindings": [dict(binding) | {"vhost": vhost} for binding in _bindings()],
    }


def _bindings() -> Iterator[dict[str, Any]]:
    for queue in QUEUES:
        yield {
            "source": queue.exchange,
            "destination": queue.name,
            "destination_type": "queue",
            "routing_key": queue.key,
            "arguments": {},
        }
