"""A vehicle: processes its messages in order, and acknowledges each one when it is done.

usage: vehicle.py VIN     (MQTT_HOST, MQTT_PORT)
"""

import os
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

vin = sys.argv[1]
processed: set[int] = set()  # seqs; a real vehicle stores them on disk, together with the effects of the messages


def on_connect(client, userdata, flags, reason, properties):
    client.subscribe(f"agent/{vin}/proxy/request/+", qos=1)


def on_subscribe(client, userdata, mid, reasons, properties):
    client.publish(f"ecp/{vin}/online", qos=1)  # ready: the platform now sends the pending messages


def on_message(client, userdata, message):
    seq = int(dict(message.properties.UserProperty)["seq"])
    if seq not in processed:  # after a crash, a message may arrive twice, with the same seq
        print(f"{message.topic.rpartition('/')[2]}: {len(message.payload)} bytes, seq {seq}", flush=True)
        processed.add(seq)
    client.ack(message.mid, message.qos)  # only after the message is processed, because the platform then sends the next one


session = Properties(PacketTypes.CONNECT)
session.SessionExpiryInterval = 3600  # seconds for which the broker keeps unacknowledged messages while the vehicle is away
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, vin, protocol=mqtt.MQTTv5, manual_ack=True)
client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, on_message
host, port = os.environ.get("MQTT_HOST", "127.0.0.1"), int(os.environ.get("MQTT_PORT", "1883"))
client.connect(host, port, clean_start=False, properties=session)
client.loop_forever()
