"""The RabbitMQ and the door of the AMQP door's tests."""

from tests.manifold.signals.conftest import door, gateway, rabbitmq, running_door

__all__ = ["door", "gateway", "rabbitmq", "running_door"]
