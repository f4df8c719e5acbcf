"""A consumer of a compacted queue: keeps the newest value of each key. This queue is independent of the vehicle's other messages.

usage: ecq_consumer.py CLIENT_ID [--rewind]     (MQTT_HOST, MQTT_PORT; --rewind: have all live messages sent again)
"""

import os
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

client_id = sys.argv[1]
state: dict[str, tuple[int, bytes]] = {}  # key → seq and value


def on_connect(client, userdata, flags, reason, properties):
    client.subscribe(f"$ECQ/{client_id}/#", qos=1)  # the platform now sends the pending messages, oldest first


def on_message(client, userdata, message):
    key = message.topic.removeprefix(f"$ECQ/{client_id}/")
    seq = int(dict(message.properties.UserProperty)["seq"])
    if seq >= state.get(key, (0, b""))[0]:  # after a crash, an older message may arrive after a newer one
        state[key] = seq, message.payload
        print(f"{key} = {message.payload.decode()}", flush=True)
    client.ack(message.mid, message.qos)


session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = 3600  # seconds for which the broker keeps unacknowledged messages while the client is away
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, manual_ack=True)
client.on_connect, client.on_message = on_connect, on_message
host, port = os.environ.get("MQTT_HOST", "127.0.0.1"), int(os.environ.get("MQTT_PORT", "1883"))
client.connect(host, port, clean_start=False, properties=session)
if "--rewind" in sys.argv:
    client.publish(f"$ECQ/r/{client_id}", b"earliest", qos=1)
client.loop_forever()
