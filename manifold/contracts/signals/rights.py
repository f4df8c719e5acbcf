"""The rights in RabbitMQ: one user each for the door, gateways, operators, and readers, with no more rights than it needs.

Rights are regular expressions over names of exchanges and queues, as RabbitMQ has them; of the topic exchange also over routing
keys, so that nobody but the door writes processed signals. What a user declares for itself (a queue for replies) is `amq.gen-…`.
"""

import re
from dataclasses import dataclass
from typing import Any

from manifold.contracts.signals import topology

DOOR, GATEWAY, OPERATOR, READER = "door", "gateway", "operator", "reader"
_OWN = r"amq\.gen.*"  # names that the server makes up
_DEFAULT_EXCHANGE = r"amq\.default"
_PARTITIONS = re.escape(f"{topology.RAW}.p") + "[0-9]+"


@dataclass(frozen=True, slots=True)
class Rights:
    """What one user may declare (`configure`), write to, and read from; `keys`: with which routing keys to the topic exchange."""

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
    # Declares all of it; binding asks for write on the queue, and read on the exchange; dead letters for both.
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
    """The same as RabbitMQ imports it, once there are users of these names."""
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
