"""MQTT client, and what the services share about AMQP. May import settings and contracts."""
