"""One simulated vehicle, driven by timers and callbacks on the fleet's event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Protocol

from paho.mqtt.client import MQTTMessage

from manifold.contracts.messages import sha1_hex
from manifold.contracts.names import Owner, RequestId
from manifold.contracts.topics import Sign, ecq_filter, ecq_of, request_filter, request_of, sign_topic
from manifold.sandbox.fleet._behaviour_model import Behaviour, BehaviourModel
from manifold.sandbox.fleet._connection import ConnectFields, Connection, FleetEndpoint


@dataclass(frozen=True, slots=True)
class Received:
    """One PUBLISH that a vehicle has received, possibly a repeated one."""

    vin: Owner
    topic: str
    request_id: RequestId | None  # None: the message was not on a request topic
    key: str | None  # key in the vehicle's compacted queue; None: the message was not of that queue
    seq: int | None  # None with MQTT 3.1.1, which has no user properties
    payload_sha1: str
    size_bytes: int
    at: datetime  # UTC
    dup: bool  # the broker's dup flag: the broker may have sent this message before
    qos: int


class ConnectionState(Enum):
    """The state of a vehicle's connection."""

    OFFLINE = auto()
    CONNECTING = auto()  # until the broker confirms the subscription
    ONLINE = auto()


class FleetListener(Protocol):
    """Receives the vehicles' events."""

    def received(self, message: Received) -> None:
        """A message has arrived."""

    def acknowledged(self, message: Received) -> None:
        """The PUBACK of a message was sent."""

    def changed(self, vin: Owner, what: str) -> None:
        """A vehicle came `online`, `left`, `crashed`, or was `cut off`."""


class Vehicle:
    """A vehicle that connects and leaves on request, or as its behaviour model decides. It reconnects after a lost connection."""

    def __init__(
        self, vin: Owner, endpoint: FleetEndpoint, behaviour: Behaviour, model: BehaviourModel, listener: FleetListener
    ) -> None:
        self.vin, self.protocol = vin, model.protocol
        self.state = ConnectionState.OFFLINE
        self.arrivals = 0  # how often the vehicle came online
        self.problem = ""  # why the last connection failed; empty if it is online
        self._endpoint = endpoint
        self._behaviour = behaviour
        self._model = model
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures = 0
        self._clean_start = False  # of the current attempt to connect
        self._is_subscribed = False  # in the session at the broker, if the broker still has it

    def connect(self, *, clean_start: bool = False) -> None:
        """Connect, subscribe and send `online`; retry until it works. Does nothing unless the vehicle is offline."""
        if self.state is not ConnectionState.OFFLINE:
            return
        self._stop_timers()
        self.state = ConnectionState.CONNECTING
        self._clean_start = clean_start
        fields = ConnectFields(
            client_id=self.vin,
            protocol=self.protocol,
            clean_start=clean_start,
            session_expiry_s=self._behaviour.session_expiry_s,
            keepalive_s=self._behaviour.keepalive_s,
        )
        self._connection = Connection(self._endpoint, fields, self)
        try:
            self._connection.open()
        except OSError as exc:
            self.on_lost(str(exc))

    def leave(self) -> None:
        """Send DISCONNECT, and stay offline until `connect`."""
        self._go_offline(send_disconnect=True, event="left")

    def crash(self) -> None:
        """Close the socket without a DISCONNECT, and stay offline until `connect`."""
        self._go_offline(send_disconnect=False, event="crashed")

    def send_sign(self, sign: Sign) -> None:
        """Send `online` or `heartbeat`, if the vehicle is online."""
        if self._connection is not None and self.state is ConnectionState.ONLINE:
            self._connection.publish(sign_topic(self.vin, sign))

    def check_keepalive(self) -> None:
        """Send a ping if it is due, and detect a broker that does not answer."""
        if self._connection is not None:
            self._connection.check_keepalive()

    # Callbacks of the connection --------------------------------------------------------------------------------------

    def on_connected(self, session_present: bool) -> None:
        """Subscribe, unless the broker has kept the session with its subscriptions."""
        if session_present and self._is_subscribed:
            self.on_subscribed()
        elif self._connection is not None:
            self._is_subscribed = False
            filters = [request_filter(self._endpoint.prefix, self.vin)]
            if self._behaviour.compacted_queues:
                filters.append(ecq_filter(self.vin))
            self._connection.subscribe(*filters)

    def on_subscribed(self) -> None:
        """Send `online`, and start the timers."""
        self.state = ConnectionState.ONLINE
        self.problem = ""
        self._failures = 0
        self._clean_start = False  # if this connection is lost, the next one resumes the session
        self._is_subscribed = True
        self.arrivals += 1
        self.send_sign(Sign.ONLINE)
        self._call_later(self._model.heartbeat_s(), "heartbeat", self._send_heartbeat)
        stay_s = self._model.stay_s()
        if stay_s is not None:
            self._call_later(stay_s, "depart", lambda: self._depart(crash=self._model.crashes()))
        self._listener.changed(self.vin, "online")

    def on_lost(self, reason: str) -> None:
        """Reconnect after a pause that grows with each failure."""
        self.problem = reason
        self._go_offline(send_disconnect=False, event="cut off")
        self._failures += 1
        retry_s = self._model.retry_s(self._failures)
        self._call_later(retry_s, "connect", lambda: self.connect(clean_start=self._clean_start))

    def on_message(self, connection: Connection, message: MQTTMessage) -> None:
        """Report the message to the listener, and acknowledge it after a delay, unless the vehicle crashes first."""
        received = self._to_received(message)
        self._listener.received(received)
        if message.qos == 0:
            return
        if self._model.crashes_before_ack():
            self._loop.call_soon(self._crash_on, connection)  # later, when paho is done with the message
            return
        think_s = self._model.think_s()
        if think_s > 0:
            self._loop.call_later(think_s, self._acknowledge, connection, message, received)
        else:
            self._acknowledge(connection, message, received)

    def _to_received(self, message: MQTTMessage) -> Received:
        """Return an MQTT message as listeners get it."""
        request = request_of(self._endpoint.prefix, message.topic)  # vehicle and request id
        queue_entry = ecq_of(message.topic)  # vehicle and key
        user_properties = dict(getattr(message.properties, "UserProperty", ()))  # paho sets the attribute only if there are any
        seq_text = user_properties.get("seq", "")
        payload = bytes(message.payload)
        return Received(
            vin=self.vin,
            topic=message.topic,
            request_id=request[1] if request else None,
            key=queue_entry[1] if queue_entry else None,
            seq=int(seq_text) if seq_text.isdecimal() else None,
            payload_sha1=sha1_hex(payload),
            size_bytes=len(payload),
            at=datetime.now(UTC),
            dup=message.dup,
            qos=message.qos,
        )

    def _acknowledge(self, connection: Connection, message: MQTTMessage, received: Received) -> None:
        """Acknowledge the message, and report that, unless its connection is gone."""
        if connection.ack(message):
            self._listener.acknowledged(received)

    # Connecting and leaving -------------------------------------------------------------------------------------------

    def _crash_on(self, connection: Connection) -> None:
        """Crash, unless the vehicle has another connection by now."""
        if connection is self._connection:
            self._depart(crash=True)

    def _depart(self, *, crash: bool) -> None:
        """Leave or crash, and schedule the reconnect for the time that the model decides."""
        if crash:
            self.crash()
        else:
            self.leave()
        self._call_later(self._model.away_s(), "connect", lambda: self.connect(clean_start=self._model.starts_clean()))

    def _go_offline(self, *, send_disconnect: bool, event: str) -> None:
        """Close the connection and stop all timers; report the event unless the vehicle was offline."""
        self._stop_timers()
        connection, self._connection = self._connection, None
        was_offline = self.state is ConnectionState.OFFLINE
        self.state = ConnectionState.OFFLINE
        if connection is not None:
            connection.close(send_disconnect=send_disconnect)
        if not was_offline:
            self._listener.changed(self.vin, event)

    def _send_heartbeat(self) -> None:
        self.send_sign(Sign.HEARTBEAT)
        self._call_later(self._model.heartbeat_s(), "heartbeat", self._send_heartbeat)

    def _call_later(self, delay_s: float, name: str, callback: Callable[[], None]) -> None:
        self._timers[name] = self._loop.call_later(delay_s, callback)

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
