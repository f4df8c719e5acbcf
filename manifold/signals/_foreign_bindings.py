"""The routes (exchange and key) by which messages come to a queue. Routes that are not in the topology are foreign bindings.

AMQP does not list the bindings of a queue, so they are seen only by the messages that they bring. Such a message is judged as any
other, because its signature proves its sender, and not its route. It is counted, and each route is logged once.
"""

import structlog

from manifold.contracts.signals import topology
from manifold.signals import _metrics

MAX_LOGGED_ROUTES = 50  # ways that are said; a binding by a pattern brings as many as there are keys

log = structlog.get_logger(__name__)

_OWN = {queue.name: (queue.exchange, queue.key) for queue in topology.QUEUES}
_TO_PARTITIONS = (topology.EXCHANGE, topology.RAW)


class ForeignBindings:
    """Those by which messages have come to one queue."""

    def __init__(self, queue: str) -> None:
        self.queue, self._own = queue, _OWN.get(queue, _TO_PARTITIONS)
        self._said: set[tuple[str, str]] = set()

    def is_own(self, exchange: str, key: str) -> bool:
        """Whether the topology brings messages so, or their sender has named the queue, which needs no binding."""
        return (exchange, key) == self._own or not exchange

    def came(self, exchange: str, key: str) -> bool:
        """Count a message that has come by another's binding; whether it is to be judged.

        A dead letter is not: it lies among the dead letters already, and refused again it would come again, and so on forever.
        """
        _metrics.FOREIGN.labels(self.queue).inc()
        if (exchange, key) not in self._said and len(self._said) < MAX_LOGGED_ROUTES:
            self._said.add((exchange, key))
            log.warning(
                "messages come by a binding that is not the door's; remove it unless it is meant",
                queue=self.queue,
                exchange=exchange,
                routing_key=key,
            )
        return (exchange, key) != (topology.DEAD_EXCHANGE, topology.DEAD)
