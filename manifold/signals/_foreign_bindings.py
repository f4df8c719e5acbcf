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
        self._own_route = _OWN_ROUTES.get(queue, _PARTITION_ROUTE)
        self._logged: set[tuple[str, str]] = set()

    def is_own(self, exchange: str, key: str) -> bool:
        """Whether the topology has this route.

        The default exchange (an empty name) needs no binding: its key is the queue's name.
        """
        return (exchange, key) == self._own_route or not exchange

    def count_message(self, exchange: str, key: str) -> bool:
        """Count a message that arrived by a foreign binding; return whether to judge it.

        A dead letter that a binding leads back here is not judged: it is already in the dead-letter queue, and the same binding
        would return it after each refusal.
        """
        _metrics.FOREIGN.labels(self.queue).inc()
        if (exchange, key) not in self._logged and len(self._logged) < MAX_LOGGED_ROUTES:
            self._logged.add((exchange, key))
            log.warning(
                "foreign binding delivers messages; remove it unless intended",
                queue=self.queue,
                exchange=exchange,
                routing_key=key,
            )
        return (exchange, key) != (topology.DEAD_EXCHANGE, topology.DEAD)
