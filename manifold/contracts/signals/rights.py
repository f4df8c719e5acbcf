"""RabbitMQ permissions, least privilege: one user each for the door, gateways, operators, and readers.

Permissions are regular expressions over exchange and queue names, as in RabbitMQ; for the topic exchange also over routing keys,
so that only the door can publish processed signals. Queues that users declare for replies are named `amq.gen-…`.
"""

import re
from dataclasses import dataclass
from typing import Any

from manifold.contracts.signals import topology

DOOR, GATEWAY, OPERATOR, READER = "door", "gateway", "operator", "reader"
_REPLY_QUEUES = r"amq\.gen.*"  # names that RabbitMQ generates for queues declared by clients
_DEFAULT_EXCHANGE = r"amq\.default"
_PARTITIONS = re.escape(f"{topology.RAW}.p") + "[0-9]+"


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of one user: `configure`, `write`, `read`, and `keys` for routing keys at the topic exchange."""

    configure: str
    write: str
    read: str
    keys: str


def _any_of(*names: str, patterns: tuple[str, ...] = ()) -> str:
    """Return a regular expression for these names and for all names that match one of `patterns`."""
    return f"^({'|'.join([*map(re.escape, names), *patterns])})$"


_QUEUES = tuple(queue.name for queue in topology.QUEUES)
_EXCHANGES = (*topology.EXCHANGES, topology.PARTITIONS)
_INGRESS = (topology.RAW, topology.STATUS)

RIGHTS = {
    # The door declares everything. To bind a queue, it needs write on the queue and read on the exchange. To declare a queue with
    # a dead-letter exchange, it needs read on the queue and write on that exchange.
    DOOR: Rights(
        configure=_any_of(*_EXCHANGES, *_QUEUES, patterns=(_PARTITIONS,)),
        write=_any_of(*_EXCHANGES, *_QUEUES, patterns=(_PARTITIONS, _DEFAULT_EXCHANGE)),
        read=_any_of(*_EXCHANGES, *_INGRESS, topology.RETRY, topology.DEAD_COPY, patterns=(_PARTITIONS,)),
        keys=_any_of(topology.RETRY, topology.PROCESSED, *_INGRESS),
    ),
    GATEWAY: Rights(
        configure=_any_of(patterns=(_REPLY_QUEUES,)),
        write=_any_of(topology.EXCHANGE, patterns=(_REPLY_QUEUES,)),
        read=_any_of(patterns=(_REPLY_QUEUES,)),
        keys=_any_of(*_INGRESS),
    ),
    OPERATOR: Rights(
        configure="^$",
        write=_any_of(topology.EXCHANGE),
        read=_any_of(topology.DEAD),
        keys=_any_of(*_INGRESS),
    ),
    READER: Rights(configure="^$", write="^$", read=_any_of(topology.PROCESSED), keys="^$"),
}


def permissions(vhost: str = "/") -> dict[str, list[dict[str, Any]]]:
    """Return the permissions in RabbitMQ's import format; the users must exist."""
    return {
        "permissions": [
            {"user": user, "vhost": vhost, "configure": rights.configure, "write": rights.write, "read": rights.read}
            for user, rights in RIGHTS.items()
        ],
        "topic_permissions": [
            {"user": user, "vhost": vhost, "exchange": topology.EXCHANGE, "write": rights.keys, "read": rights.keys}
            for user, rights in RIGHTS.items()
        ],
    }
