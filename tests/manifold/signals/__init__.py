"""The signals service: its checks one by one, and a real RabbitMQ with an independent client."""
