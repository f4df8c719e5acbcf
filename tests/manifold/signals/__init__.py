"""The AMQP door: its checks, one by one, and a real RabbitMQ with a strange client."""
