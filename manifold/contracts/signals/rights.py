"""RabbitMQ permissions, least privilege: one user each for the door, gateways, operators, and readers.

Permissions are regular expressions over exchange and queue names, as in RabbitMQ; for the topic exchange also over routing keys,
so that only the door can publish processed signals. Queues that users declare for replies are named `amq.gen-…`.
"""

import re
from dataclasses import dataclass
from typing import Any

from manifold.contracts.signals import topology

DOOR, GATEWAY, OPERATOR, READER = "door", "gateway", "operator", "reader"
_OWN = r"amq\.gen.*"  # server-generated queue names
_DEFAULT_EXCHANGE = r"amq\.default"
_PARTITIONS = re.escape(f"{topology.RAW}.p") + "[0-9]+"


@dataclass(frozen=True, slots=True)
class Rights:
    """Permissions of one user: `configure`, `write`, `read`, and `keys` for routing keys at the topic exchange."""

    configure: str
    write: str
    read: str
    keys: str


def _any_of(*names: str, also: tuple[str, ...] = ()) -> str:
    return f"^({'|'.join([*map(re.escape, names), *also])})$"


_QUEUES = tuple(queue.name for queue in topology.QUEUES)
_EXCHANGES = (*topology.EXCHANGES, topology.PARTITIONS)
_TAKEN_IN = (topology.RAW, topology.STATUS)

RIGHTS = {
    # Declares everything. Binding needs write on the queue and read on the exchange; dead-lettering needs both.
    DOOR: Rights(
        configure=_any_of(*_EXCHANGES, *_QUEUES, also=(_PARTITIONS,)),
        write=_any_of(*_EXCHANGES, *_QUEUES, also=(_PARTITIONS, _DEFAULT_EXCHANGE)),
        read=_any_of(*_EXCHANGES, *_TAKEN_IN, topology.RETRY, topology.DEAD_COPY, also=(_PARTITIONS,)),
        keys=_any_of(topology.RETRY, topology.PROCESSED, *_TAKEN_IN),
    ),
    GATEWAY: Rights(
        configure=_any_of(also=(_OWN,)),
        write=_any_of(topology.EXCHANGE, also=(_OWN,)),
        read=_any_of(also=(_OWN,)),
        keys=_any_of(*_TAKEN_IN),
    ),
    OPERATOR: Rights(
        configure="^$",
        write=_any_of(topology.EXCHANGE),
        read=_any_of(topology.DEAD),
        keys=_any_of(*_TAKEN_IN),
    ),
    READER: Rights(configure="^$", write="^$", read=_any_of(topology.PROCESSED), keys="^$"),
}


def permissions(vhost: str = "/") -> dict[str, list[dict[str, Any]]]:
    """Return the permissions in RabbitMQ's import format; the users must exist."""
    return {
        "permissions": [
            {"user": user, "vhost": vhost, "configure": of.configure, "write": of.write, "read": of.read}
            for user, of in RIGHTS.items()
        ],
        "topic_permissions": [
            {"user": user, "vhost": vhost, "exchange": topology.EXCHANGE, "write": of.keys, "read": of.keys}
            for user, of in RIGHTS.items()
        ],
    }
