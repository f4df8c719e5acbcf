"""The event tap: a transparent MQTT proxy in front of a plain broker that tells of vehicles what EMQX would tell.

It promises that every event is with the broker before the packet that caused it goes on, and that it changes no byte of what
passes. It knows MQTT's packets and what sessions keep, and nothing of queues: whoever has a Mosquitto can use it
alone.
"""
