"""The event tap: a transparent MQTT proxy in front of a plain broker that emits EMQX's events about vehicles.

Guarantees: every event is sent to the broker before the packet that caused it is forwarded, and forwarded bytes are unchanged,
except for denied subscriptions. The tap knows MQTT packets and sessions, but nothing of queues, and works with any Mosquitto.
"""
