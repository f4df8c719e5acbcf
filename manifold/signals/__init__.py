"""The AMQP door: takes signals of devices from RabbitMQ, checks who sent them, processes and records them.

It promises that a signal is on disk before it is acknowledged, that it is processed once, and that a refused message lies in
quarantine with its bytes. It stores no payload in the clear, writes no table, and does not know the other door.
"""

from manifold.signals._service import Signals

__all__ = ["Signals"]
