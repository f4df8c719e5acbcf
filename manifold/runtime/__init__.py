"""What every process shares: logging, HTTP, TLS, the Redis client, alerts, secret files.

It promises that a server that is away is a `Retryable` with a remedy. It knows contracts and settings, and no room above.
"""
