"""An operator: publishes data, proposes a campaign for it, approves it, and watches it to its end.

usage: campaign.py PLAN FILE     (MQTT_HOST, MQTT_PORT, API_URL)
"""

import json
import os
import queue
import secrets
import sys
import threading
import time

import paho.mqtt.client as mqtt
import requests
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

HOST, PORT = os.environ.get("MQTT_HOST", "127.0.0.1"), int(os.environ.get("MQTT_PORT", "1883"))
API = os.environ.get("API_URL", "http://127.0.0.1:9104")


class Connection:
    """A connection to the broker that waits for the receipt of each message."""

    def __init__(self, user: str) -> None:
        self.topic, self.receipts, subscribed = f"sdv/receipt/{user}/{secrets.token_hex(4)}", queue.Queue(), threading.Event()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"{user}-{secrets.token_hex(4)}", protocol=mqtt.MQTTv5)
        self.client.username_pw_set(user)
        self.client.on_connect = lambda *_: self.client.subscribe(self.topic, qos=1)
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.on_message = lambda _client, _userdata, message: self.receipts.put(message)
        self.client.connect(HOST, PORT)
        self.client.loop_start()
        if not subscribed.wait(30):  # a receipt that came before would be lost
            sys.exit("the broker does not answer")

    def publish(self, topic: str, payload: bytes, what: str) -> None:
        """Publish, and return when the message is on disk."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic, properties.CorrelationData = self.topic, secrets.token_bytes(16)
        self.client.publish(topic, payload, qos=1, properties=properties)
        while (receipt := self.receipts.get(timeout=30)).properties.CorrelationData != properties.CorrelationData:
            pass  # not an answer to this message
        answer = json.loads(receipt.payload)
        print(what, answer["status"], answer.get("reason") or answer["seq"], flush=True)
        if answer["status"] == "refused":
            sys.exit(1)


with open(sys.argv[1]) as file:
    plan = json.load(file)
with open(sys.argv[2], "rb") as file:
    data = file.read()
campaign = plan["campaign"]
publisher, operator = Connection("sdv-pub-example"), Connection("sdv-campaigns")  # who may publish orders is one user


def order(do: str, by: str, **fields: object) -> None:
    """Give an order; a token makes it safe to repeat."""
    command = {"do": do, "campaign": campaign, "by": by, "token": secrets.token_hex(16), **fields}
    operator.publish("$SDV-FANOUT/campaign", json.dumps(command).encode(), do)


publisher.publish(f"$SDV-FANOUT/data/{plan['data_id']}", data, "data")
order("propose", "anna", plan=plan)
order("approve", "ben")
shown, passed = "", -1
while True:
    answer = requests.get(f"{API}/api/v1/campaigns/{campaign}", timeout=30)
    if not answer.ok:  # an order that does not fit is on record, and has no effect
        sys.exit(answer.text)
    now = answer.json()
    waves = "; ".join(f"{wave['name']}: {wave['success']} of {wave['targets']}" for wave in now["waves"])
    line = f"{now['state']}: {waves}"
    if line != shown:
        print(line, flush=True)
        shown = line
    if now["state"] == "held" and passed < now["wave"]:  # the first wave went well: here a person looks, and approves the next
        passed = now["wave"]
        order("approve", "ben", wave=passed)
    if now["state"] in ("completed", "cancelled", "refused"):
        break
    time.sleep(0.5)
