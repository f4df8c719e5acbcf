"""A vehicle's MQTT client with manual acknowledgements, which can lose its connection without a DISCONNECT."""

import itertools
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from manifold.contracts.topics import Sign, request_filter, sign_topic
from manifold.sandbox.tap.packets import packet, string, variable
from manifold.settings import Settings
from tests.support.servers import wait_until

BOUND_S = 60
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Got:
    """One request as a vehicle received it."""

    topic: str
    payload: bytes
    dup: bool
    seq: int | None  # only on MQTT 5
    mid: int
    connection: int
    expiry_s: int | None = None  # Message Expiry Interval

    @property
    def request_id(self) -> str:
        return self.topic.rpartition("/")[2]


class Endpoint(Protocol):
    """The address that vehicles connect to."""

    @property
    def settings(self) -> Settings:
        """With the ports of its broker."""


class Vehicle:
    """A vehicle that connects, subscribes and acknowledges on request, with a new VIN unless one is given.

    On MQTT 3.1.1, `expiry_s` only decides whether there is a session to resume. `largest_packet` is its Maximum Packet Size.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        protocol: int = 5,
        vin: str | None = None,
        expiry_s: int = 300,
        largest_packet: int | None = None,
    ) -> None:
        self.vin = vin or f"VIN{next(_names):05d}P{protocol}"
        self.settings, self.protocol, self.expiry_s = endpoint.settings, protocol, expiry_s
        self.largest_packet = largest_packet
        self.acks = True  # acknowledge at once
        self.look: Callable[[Got], Any] = lambda _: None  # called for each request before its acknowledgement
        self.got: list[Got] = []
        self.connections = 0
        self.session_present = False
        self._client: paho.Client | None = None
        self._confirmed = threading.Event()

    def connect(self, *, clean: bool = False, subscribe: bool = True, port: int | None = None) -> "Vehicle":
        """Connect and wait for the CONNACK. With an `expiry_s` it resumes its session unless `clean`."""
        v5, forgets = self.protocol == 5, clean or not self.expiry_s
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.vin,
            clean_session=None if v5 else forgets,
            protocol=paho.MQTTv5 if v5 else paho.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        connected = threading.Event()

        def on_connect(_c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
            assert not reason.is_failure, reason
            self.session_present = flags.session_present
            connected.set()

        client.on_connect, client.on_message = on_connect, self._on_message
        client.on_subscribe = client.on_unsubscribe = lambda *_: self._confirmed.set()
        self._client, self.connections = client, self.connections + 1
        start: Any = forgets if v5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        properties = _expiry(PacketTypes.CONNECT, self.expiry_s) if v5 else None
        if properties and self.largest_packet:
            properties.MaximumPacketSize = self.largest_packet
        client.connect("127.0.0.1", port or self.settings.mqtt_port, 60, clean_start=start, properties=properties)
        client.loop_start()
        assert connected.wait(BOUND_S), f"{self.vin} did not connect"
        if subscribe:
            self.subscribe()
        return self

    def subscribe(self, topic_filter: str | None = None, *, qos: int = 1) -> None:
        """Subscribe to its requests, or to `topic_filter`, and wait for the SUBACK."""
        self._confirmed.clear()
        self.client.subscribe(topic_filter or request_filter(self.settings.topic_prefix, self.vin), qos=qos)
        assert self._confirmed.wait(BOUND_S), f"{self.vin} did not subscribe"

    def unsubscribe(self, topic_filter: str | None = None) -> None:
        """Unsubscribe from its requests, or from `topic_filter`, and wait for the UNSUBACK."""
        self._confirmed.clear()
        self.client.unsubscribe(topic_filter or request_filter(self.settings.topic_prefix, self.vin))
        assert self._confirmed.wait(BOUND_S), f"{self.vin} did not unsubscribe"

    def say(self, sign: Sign) -> None:
        """Publish `online` or a heartbeat."""
        self.client.publish(sign_topic(self.vin, sign), b"", qos=1).wait_for_publish(BOUND_S)

    def ack(self, got: Got) -> None:
        """Send the PUBACK of one request."""
        assert got.connection == self.connections
        self.client.ack(got.mid, 1)

    def refuse(self, got: Got, code: int, reason: str) -> None:
        """Send a negative PUBACK with a reason string, which paho cannot."""
        properties = b"\x1f" + string(reason.encode())
        body = got.mid.to_bytes(2) + bytes((code,)) + variable(len(properties)) + properties
        self._socket().sendall(packet(0x40, body))

    def crash(self) -> None:
        """Close the connection without a DISCONNECT."""
        client, sock = self.client, self._socket()
        client.on_message = None
        self._client = None
        sock.shutdown(socket.SHUT_RDWR)
        client.loop_stop()

    def forget(self) -> None:
        """Forget the connection after a takeover by another one."""
        client, self._client = self.client, None
        client.disconnect()
        client.loop_stop()

    def leave(self, *, expiry_s: int | None = None) -> None:
        """Send a DISCONNECT; with `expiry_s`, it changes the session expiry."""
        if self._client is not None:
            client, self._client = self._client, None
            client.disconnect(properties=None if expiry_s is None else _expiry(PacketTypes.DISCONNECT, expiry_s))
            client.loop_stop()

    def waits_for(self, count: int, *, within_s: float = BOUND_S) -> list[Got]:
        """Wait for `count` requests; return all received so far."""
        wait_until(lambda: len(self.got) >= count, within_s=within_s, what=f"{self.vin} has {self.got}, wants {count}")
        return list(self.got)

    @property
    def requests(self) -> list[str]:
        """The request ids received, in order."""
        return [got.request_id for got in self.got]

    @property
    def client(self) -> paho.Client:
        """The MQTT client."""
        assert self._client is not None, f"{self.vin} is not connected"
        return self._client

    def _socket(self) -> socket.socket:
        sock = self.client.socket()
        assert isinstance(sock, socket.socket)
        return sock

    def _on_message(self, client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        pairs = dict(getattr(message.properties, "UserProperty", ())) if message.properties else {}
        seq = int(pairs["seq"]) if "seq" in pairs else None
        expiry_s = getattr(message.properties, "MessageExpiryInterval", None)
        got = Got(message.topic, bytes(message.payload), message.dup, seq, message.mid, self.connections, expiry_s)
        self.look(got)
        self.got.append(got)
        if self.acks and message.qos:
            client.ack(message.mid, 1)


def _expiry(packet_type: int, seconds: int) -> Properties:
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]  # paho has no types here
    properties.SessionExpiryInterval = seconds
    return properties
