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
        self.receipt_topic = f"sdv/receipt/{user}/{secrets.token_hex(4)}"
        self.receipts = queue.Queue()
        subscribed = threading.Event()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, f"{user}-{secrets.token_hex(4)}", protocol=mqtt.MQTTv5)
        self.client.username_pw_set(user)
        self.client.on_connect = lambda *_: self.client.subscribe(self.receipt_topic, qos=1)
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.on_message = lambda _client, _userdata, message: self.receipts.put(message)
        self.client.connect(HOST, PORT)
        self.client.loop_start()
        if not subscribed.wait(30):  # without the subscription, receipts would be lost
            sys.exit("the broker does not answer")

    def publish(self, topic: str, payload: bytes, what: str) -> None:
        """Publish, wait until the message is on disk, and print `what` with the status in the receipt."""
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic, properties.CorrelationData = self.receipt_topic, secrets.token_bytes(16)
        self.client.publish(topic, payload, qos=1, properties=properties)
        while (receipt := self.receipts.get(timeout=30)).properties.CorrelationData != properties.CorrelationData:
            pass  # the receipt of another message
        result = json.loads(receipt.payload)
        print(what, result["status"], result.get("reason") or result["seq"], flush=True)
        if result["status"] == "refused":
            sys.exit(1)


with open(sys.argv[1]) as file:
    plan = json.load(file)
with open(sys.argv[2], "rb") as file:
    data = file.read()
campaign = plan["campaign"]
publisher, operator = Connection("sdv-pub-example"), Connection("sdv-campaigns")  # only this user may publish orders


def order(do: str, by: str, **fields: object) -> None:
    """Publish an order. Its token makes it safe to publish the same order again."""
    command = {"do": do, "campaign": campaign, "by": by, "token": secrets.token_hex(16), **fields}
    operator.publish("$SDV-FANOUT/campaign", json.dumps(command).encode(), do)


publisher.publish(f"$SDV-FANOUT/data/{plan['data_id']}", data, "data")
order("propose", "anna", plan=plan)
order("approve", "ben")
shown, approved_wave = "", -1
while True:
    response = requests.get(f"{API}/api/v1/campaigns/{campaign}", timeout=30)
    if not response.ok:  # the campaign does not exist if its proposal was recorded without effect
        sys.exit(response.text)
    status = response.json()
    waves = "; ".join(f"{wave['name']}: {wave['success']} of {wave['targets']}" for wave in status["waves"])
    line = f"{status['state']}: {waves}"
    if line != shown:
        print(line, flush=True)
        shown = line
    if (
        status["state"] == "held" and approved_wave < status["wave"]
    ):  # the wave has passed its gate: a person approves the next wave
        approved_wave = status["wave"]
        order("approve", "ben", wave=approved_wave)
    if status["state"] in ("completed", "cancelled", "refused"):
        break
    time.sleep(0.5)
