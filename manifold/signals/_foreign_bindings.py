"""Detects foreign bindings: routes (exchange and routing key) outside the topology by which messages reach a queue.

AMQP cannot list the bindings of a queue, so a foreign binding is only visible in the messages that it delivers. Such a message is
judged like any other, because its signature authenticates the sender, not the route. The door counts these messages and logs each
route once.
"""

import structlog

from manifold.contracts.signals import topology
from manifold.signals import _metrics

MAX_LOGGED_ROUTES = 50  # routes logged; a wildcard binding can yield one per routing key

log = structlog.get_logger(__name__)

_OWN_ROUTES = {queue.name: (queue.exchange, queue.key) for queue in topology.QUEUES}
_PARTITION_ROUTE = (topology.EXCHANGE, topology.RAW)


class ForeignBindings:
    """Foreign bindings of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self._own_route = _OWN_ROUTES.get(queue, _PARTITION_ROUTE)  # a queue without a route of its own is a partition
        self._logged: set[tuple[str, str]] = set()

    def is_own(self, exchange: str, key: str) -> bool:
        """Whether the topology has this route.

        The default exchange (an empty name) needs no binding: its key is the queue's name.
        """
        return (exchange, key) == self._own_route or not exchange

    def count_message(self, exchange: str, key: str) -> None:
        """Count a message that arrived by a foreign binding, and log its route if it is a new one."""
        _metrics.FOREIGN.labels(self.queue).inc()
        if (exchange, key) not in self._logged and len(self._logged) < MAX_LOGGED_ROUTES:
            self._logged.add((exchange, key))
            log.warning(
                "foreign binding delivers messages; remove it unless intended",
                queue=self.queue,
                exchange=exchange,
                routing_key=key,
            )


def is_dead_letter_route(exchange: str, key: str) -> bool:
    """Whether this is the route of dead letters.

    If a foreign binding leads dead letters back to the door, it must not judge them: they are already in the dead-letter queue,
    and the same binding would return them after each refusal.
    """
    return (exchange, key) == (topology.DEAD_EXCHANGE, topology.DEAD)
