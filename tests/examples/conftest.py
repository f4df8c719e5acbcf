"""The RabbitMQ and the signals service of the signals tests."""

from tests.manifold.signals.conftest import door, gateway, rabbitmq, running_door

__all__ = ["door", "gateway", "rabbitmq", "running_door"]
