"""Infrastructure shared by all processes: logging, HTTP, TLS, the Redis client, alerts, secret files.

An unavailable server raises `Retryable` with a remedy. Imports only contracts and settings.
"""
