"""The AMQP door: a service that consumes device signals from RabbitMQ, authenticates, processes and records them.

Guarantees: a signal is on disk before it is acknowledged, it is processed once, and the bytes of a refused message are kept in
quarantine. The door stores no plaintext payload, writes no table, and does not depend on the MQTT door.
"""

from manifold.signals._service import Signals

__all__ = ["Signals"]
