"""The platform: publishes data and a trigger that sends it to vehicles, and waits for the receipt of each.

usage: publisher.py FILE VIN...     (MQTT_HOST, MQTT_PORT)
"""

import json
import os
import queue
import secrets
import sys
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

USER = "sdv-pub-example"  # user names of publishers begin with sdv-pub-
unique = secrets.token_hex(4)
receipts: queue.Queue[mqtt.MQTTMessage] = queue.Queue()
subscribed = threading.Event()


def publish(topic: str, payload: bytes) -> None:
    """Publish, wait until the message is on disk, and print the status in the receipt."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic, properties.CorrelationData = f"sdv/receipt/{USER}/{unique}", secrets.token_bytes(16)
    client.publish(topic, payload, qos=1, properties=properties)
    while (receipt := receipts.get(timeout=30)).properties.CorrelationData != properties.CorrelationData:
        pass  # the receipt of another message
    result = json.loads(receipt.payload)
    print(topic, result["status"], result.get("reason") or result["seq"])
    if result["status"] == "refused":
        sys.exit(1)


client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"{USER}-{unique}", protocol=mqtt.MQTTv5)
client.username_pw_set(USER)
client.on_connect = lambda *_: client.subscribe(f"sdv/receipt/{USER}/{unique}", qos=1)
client.on_subscribe = lambda *_: subscribed.set()
client.on_message = lambda _client, _userdata, message: receipts.put(message)
client.connect(os.environ.get("MQTT_HOST", "127.0.0.1"), int(os.environ.get("MQTT_PORT", "1883")))
client.loop_start()
if not subscribed.wait(30):  # without the subscription, receipts would be lost
    sys.exit("the broker does not answer")
with open(sys.argv[1], "rb") as file:
    publish(f"$SDV-FANOUT/data/data-{unique}", file.read())
trigger = {"ids": sys.argv[2:], "request_id": f"task-{unique}", "data_id": f"data-{unique}"}
publish("$SDV-FANOUT/trigger", json.dumps(trigger).encode())
client.disconnect()
