"""The AMQP door: signals of devices from RabbitMQ, proved, processed, and on the record before they are acknowledged."""

from signals._door import Signals

__all__ = ["Signals"]
