"""The outside edges that several rooms share: MQTT, HTTP, logs, the lake. Import contracts only."""
