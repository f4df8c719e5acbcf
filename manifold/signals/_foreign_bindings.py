"""Routes (exchange and routing key) by which messages reach a queue. Routes outside the topology are foreign bindings.

AMQP cannot list the bindings of a queue, so a foreign binding is only visible in the messages it delivers. Such a message is
judged like any other, because its signature authenticates the sender, not the route. It is counted; each route is logged once.
"""

import structlog

from manifold.contracts.signals import topology
from manifold.signals import _metrics

MAX_LOGGED_ROUTES = 50  # routes logged; a wildcard binding can yield one per routing key

log = structlog.get_logger(__name__)

_OWN = {queue.name: (queue.exchange, queue.key) for queue in topology.QUEUES}
_TO_PARTITIONS = (topology.EXCHANGE, topology.RAW)


class ForeignBindings:
    """Foreign bindings of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue, self._own = queue, _OWN.get(queue, _TO_PARTITIONS)
        self._said: set[tuple[str, str]] = set()

    def is_own(self, exchange: str, key: str) -> bool:
        """Whether the topology has this route, or the sender published to the queue by name, which needs no binding."""
        return (exchange, key) == self._own or not exchange

    def count_message(self, exchange: str, key: str) -> bool:
        """Count a message that arrived by a foreign binding; return whether to judge it.

        A dead letter is not judged: it is already in the dead-letter queue, and refusing it again would loop forever.
        """
        _metrics.FOREIGN.labels(self.queue).inc()
        if (exchange, key) not in self._said and len(self._said) < MAX_LOGGED_ROUTES:
            self._said.add((exchange, key))
            log.warning(
                "foreign binding delivers messages; remove it unless intended",
                queue=self.queue,
                exchange=exchange,
                routing_key=key,
            )
        return (exchange, key) != (topology.DEAD_EXCHANGE, topology.DEAD)
