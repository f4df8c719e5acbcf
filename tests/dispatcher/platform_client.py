"""The vehicle platform: an MQTT client that publishes and waits for receipts."""

import itertools
import json
import threading
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from manifold.settings import Settings

BOUND_S = 60
_names = itertools.count()


@dataclass(slots=True)
class _Waiting:
    event: threading.Event
    receipt: dict[str, Any]


class PlatformClient:
    """One connection of the platform; close it after use."""

    def __init__(self, settings: Settings, username: str | None = None) -> None:
        user = username or settings.mqtt_username_publisher
        self._name = f"{user}-{next(_names)}"
        self._topic = f"{settings.receipt_prefix}{user}/{self._name}"
        self._waiting: dict[bytes, _Waiting] = {}
        self._client = paho.Client(CallbackAPIVersion.VERSION2, self._name, protocol=paho.MQTTv5)
        self._client.username_pw_set(user)
        self._client.on_message = self._on_receipt
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_connect = lambda *_: self._listen()
        self._client.connect("127.0.0.1", settings.mqtt_port)
        self._client.loop_start()
        assert subscribed.wait(BOUND_S), "the broker does not respond"

    def _listen(self) -> None:
        self._client.subscribe(self._topic, qos=1)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def send(self, topic: str, payload: bytes) -> dict[str, Any]:
        """Publish and wait for the receipt."""
        return self.send_all([(topic, payload)])[0]

    def send_all(self, messages: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """Publish back to back and wait for all receipts."""
        waiting = []
        for topic, payload in messages:
            name = f"{self._name}-{next(_names)}".encode()
            self._waiting[name] = _Waiting(threading.Event(), {})
            waiting.append(self._waiting[name])
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho has no types here
            properties.ResponseTopic, properties.CorrelationData = self._topic, name
            self._client.publish(topic, payload, qos=1, properties=properties)
        for each in waiting:
            assert each.event.wait(BOUND_S), "no receipt"
        return [each.receipt for each in waiting]

    def say(self, topic: str, payload: bytes) -> int:
        """Publish without waiting for a receipt; return the reason code of the broker's PUBACK."""
        done, codes = threading.Event(), []

        def on_publish(_c: Any, _u: Any, _mid: int, reason: Any, _p: Any) -> None:
            codes.append(int(reason.value))
            done.set()

        self._client.on_publish = on_publish
        self._client.publish(topic, payload, qos=1)
        assert done.wait(BOUND_S), "no PUBACK"
        self._client.on_publish = None
        return codes[0]

    def _on_receipt(self, _client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        waiting = self._waiting.pop(message.properties.CorrelationData, None)  # type: ignore[union-attr]  # always present
        if waiting is not None:
            waiting.receipt.update(json.loads(message.payload))
            waiting.event.set()
