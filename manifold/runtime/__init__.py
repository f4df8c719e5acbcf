"""Shared clients and adapters: MQTT, Redis connections, HTTP faces, logs, alerts, storage, the lake without Spark.

It promises that a server that is away is a `Retryable` with a remedy, and that no adapter decides what a message means. It knows
contracts, and no room above.
"""
