"""By which exchange and key a message has come to a queue. Others than the topology's are somebody else's bindings.

AMQP tells nobody which bindings a queue has: they are seen by what they bring. That is judged as everything else is, because who
has sent a message is proved by its signature, and not by its way; it is counted, and said once of each way.
"""

import structlog

from contracts.signals import topology
from signals import _metrics

MOST = 50  # ways that are said; a binding by a pattern brings as many as there are keys

log = structlog.get_logger(__name__)

_OWN = {queue.name: (queue.exchange, queue.key) for queue in topology.QUEUES}
_TO_PARTITIONS = (topology.EXCHANGE, topology.RAW)


class Ways:
    """Those by which messages have come to one queue."""

    def __init__(self, queue: str) -> None:
        self.queue, self._own = queue, _OWN.get(queue, _TO_PARTITIONS)
        self._said: set[tuple[str, str]] = set()

    def is_own(self, exchange: str, key: str) -> bool:
        """Whether the topology brings messages so, or their sender has named the queue, which needs no binding."""
        return (exchange, key) == self._own or not exchange

    def came(self, exchange: str, key: str) -> bool:
        """Count a message that has come by another's binding; whether it is to be judged.

        A dead letter is not: it lies among the dead letters already, and refused again it would come again, and so on for ever.
        """
        _metrics.FOREIGN.labels(self.queue).inc()
        if (exchange, key) not in self._said and len(self._said) < MOST:
            self._said.add((exchange, key))
            log.warning(
                "messages come by a binding that is not the door's; remove it unless it is meant",
                queue=self.queue,
                exchange=exchange,
                routing_key=key,
            )
        return (exchange, key) != (topology.DEAD_EXCHANGE, topology.DEAD)
