"""One connection of one vehicle: a paho client on the fleet's shared event loop, without a thread or task of its own."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

_FIRST_REFUSAL = 0x80  # SUBACK reason codes from this on are refusals
_HANDSHAKES = ThreadPoolExecutor(8, "handshake")  # for TLS handshakes, which block: 5 s if the server has stopped


@dataclass(frozen=True, slots=True)
class FleetEndpoint:
    """The broker's address, the topic prefix of vehicles, and with TLS, a function that returns the context of a vehicle."""

    host: str
    port: int
    prefix: str
    context_of: Callable[[str], ssl.SSLContext] | None = None  # by VIN; None: without TLS


@dataclass(frozen=True, slots=True)
class ConnectFields:
    """The fields of a CONNECT packet."""

    client_id: str
    protocol: int  # 5, or 4 for MQTT 3.1.1
    clean_start: bool
    session_expiry_s: int
    keepalive_s: int


class Listener(Protocol):
    """Receives a connection's events. After `close` there are no more events."""

    def on_connected(self, session_present: bool) -> None:
        """The broker has accepted the connection."""

    def on_subscribed(self) -> None:
        """The broker has confirmed the subscription."""

    def on_message(self, connection: "Connection", message: paho.MQTTMessage) -> None:
        """A message has arrived; acknowledge it with `ack`."""

    def on_lost(self, reason: str) -> None:
        """The connection is unusable; close it."""


class Connection:
    """A single-use connection: each reconnect of a vehicle creates a new one without shared state."""

    def __init__(self, endpoint: FleetEndpoint, fields: ConnectFields, listener: Listener) -> None:
        self._listener: Listener | None = listener
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._problem = ""  # why the broker refused the connection; empty if it did not
        self._client = self._new_client(endpoint, fields)
        self._uses_tls = endpoint.context_of is not None

    def open(self) -> None:
        """Connect to the broker, and send CONNECT.

        Without TLS, this blocks until the TCP connection is made. With TLS, a thread connects, and failures are reported to
        `on_lost`.

        Raises:
            OSError: the broker is unreachable; without TLS only.
        """
        if self._uses_tls:
            handshake = self._loop.run_in_executor(_HANDSHAKES, self._client.reconnect)
            handshake.add_done_callback(self._on_handshake_done)
        else:
            self._client.reconnect()
            self._register_socket()

    def _on_handshake_done(self, handshake: "asyncio.Future[Any]") -> None:
        error = handshake.exception()
        if error is not None:
            self._report_loss(str(error))
        elif self._listener is not None:
            self._register_socket()
        else:  # `close` was called during the handshake, and left it to this callback to close the socket
            sock = self._client.socket()
            if sock is not None:
                sock.close()

    def _register_socket(self) -> None:
        """Read from the connected socket by the event loop, and send what paho has buffered."""
        sock = self._client.socket()
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._loop.add_reader(sock, self._read)
        self._flush()

    def close(self, *, send_disconnect: bool) -> None:
        """Close the connection, after a DISCONNECT if `send_disconnect`."""
        self._listener = None
        if self._socket is not None:  # None: it is closed, or in a handshake, after which `_on_handshake_done` closes it
            if send_disconnect:
                self._client.disconnect()
                self._client.loop_write()
            self._close_socket()

    def subscribe(self, *filters: str) -> None:
        """Subscribe with QoS 1."""
        self._client.subscribe([(topic_filter, 1) for topic_filter in filters])

    def publish(self, topic: str) -> None:
        """Publish an empty message with QoS 1."""
        self._client.publish(topic, b"", qos=1)

    def ack(self, message: paho.MQTTMessage) -> bool:
        """Send the PUBACK. Return False if the connection is gone; the broker then redelivers the message."""
        if self._listener is None:
            return False
        return self._client.ack(message.mid, message.qos) == MQTTErrorCode.MQTT_ERR_SUCCESS

    def check_keepalive(self) -> None:
        """Send a ping if it is due, and detect a broker that does not answer. Call it several times per keep-alive interval."""
        if self._socket is not None:
            self._client.loop_misc()

    def _new_client(self, endpoint: FleetEndpoint, fields: ConnectFields) -> paho.Client:
        """Return a client that will connect to the endpoint with these fields, and then call this connection's callbacks."""
        is_v5 = fields.protocol == MQTTProtocolVersion.MQTTv5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            fields.client_id,
            protocol=MQTTProtocolVersion(fields.protocol),
            clean_session=None if is_v5 else fields.clean_start,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        if endpoint.context_of is not None:
            client.tls_set_context(endpoint.context_of(fields.client_id))
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_subscribe = self._on_message, self._on_subscribe
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_write_wanted
        client.on_socket_unregister_write = self._on_write_done
        if is_v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # untyped in paho
            properties.SessionExpiryInterval = fields.session_expiry_s
            client.connect_async(
                endpoint.host, endpoint.port, fields.keepalive_s, clean_start=fields.clean_start, properties=properties
            )
        else:
            client.connect_async(endpoint.host, endpoint.port, fields.keepalive_s)
        return client

    # Reading and writing
    # ------------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read from the socket, with TLS until no decrypted data is buffered: the event loop does not see that data."""
        self._client.loop_read()
        while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            self._client.loop_read()

    def _on_write_wanted(self, *_: Any) -> None:
        if self._socket is not None:
            self._loop.call_soon(self._flush)  # later, so that all packets of this turn of the event loop are sent in one write

    def _flush(self) -> None:
        """Send what paho has buffered. What the socket does not accept now, the event loop sends later."""
        if self._socket is None:
            return
        self._client.loop_write()  # closes the socket if sending fails
        if self._socket is not None and self._client.want_write():
            self._loop.add_writer(self._socket, self._client.loop_write)

    def _on_write_done(self, *_: Any) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _on_socket_close(self, *_: Any) -> None:
        """Unregister the socket, which paho is about to close."""
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)

    def _close_socket(self) -> None:
        sock = self._socket
        self._on_socket_close()
        if sock is not None:
            with suppress(OSError):  # raised if the broker has closed the connection
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    # Callbacks of paho ------------------------------------------------------------------------------------------------

    def _on_connect(self, _client: paho.Client, _userdata: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._problem = f"refused: {reason}"  # the broker closes the connection
        elif self._listener is not None:
            self._listener.on_connected(bool(flags.session_present))

    def _on_subscribe(self, _client: paho.Client, _userdata: Any, _mid: int, reasons: list[ReasonCode], *_: Any) -> None:
        """Handle the SUBACK. A refused filter makes the connection unusable."""
        if any(reason.value >= _FIRST_REFUSAL for reason in reasons):
            reason_texts = ", ".join(str(reason) for reason in reasons)
            self._loop.call_soon(self._report_loss, f"subscription refused: {reason_texts}")
        elif self._listener is not None:
            self._listener.on_subscribed()

    def _on_disconnect(self, _client: paho.Client, _userdata: Any, _flags: Any, reason: ReasonCode, *_: Any) -> None:
        self._loop.call_soon(self._report_loss, self._problem or str(reason))  # later, when paho is done with the connection

    def _on_message(self, _client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        if self._listener is not None:
            self._listener.on_message(self, message)

    def _report_loss(self, reason: str) -> None:
        if self._listener is not None:
            self._listener.on_lost(reason)
