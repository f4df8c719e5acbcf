"""The MQTT client, the platform's publisher, and shared AMQP helpers. May import settings, runtime and contracts."""
