"""paho's protocol engine on an asyncio loop: it connects in a thread, reads and writes when the socket can, and never blocks."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from contracts.errors import Permanent, Retryable

READ_BURST = 64  # packets taken in one turn of the loop

_TLS_SCHEMES = {"mqtt": False, "tcp": False, "mqtts": True, "ssl": True}
_TLS_PORT, _PLAIN_PORT = 8883, 1883


@dataclass(frozen=True, slots=True)
class Login:
    """What a CONNECT says."""

    client_id: str
    username: str | None
    password: str | None
    clean_start: bool
    session_expiry_s: int
    receive_maximum: int
    keepalive_s: int
    protocol: int


class Link:
    """One paho client and the socket under it. Whoever sets paho's callbacks counts `packets` up for each that came."""

    def __init__(self, url: str, login: Login) -> None:
        self.host, self.port, tls = _parse_url(url)
        self.v5 = MQTTProtocolVersion(login.protocol) == MQTTProtocolVersion.MQTTv5
        self.packets = 0
        self.client = _make_client(login, self.v5, tls)
        self.client.on_socket_close = self._on_socket_close
        self.client.on_socket_register_write = self._on_want_write
        self.client.on_socket_unregister_write = self._on_wrote_all
        self._prepare_connect(login)
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop

    @property
    def is_open(self) -> bool:
        """Whether there is a socket, accepted by the broker or not."""
        return self._socket is not None

    async def open(self) -> None:
        """Connect the socket and send CONNECT.

        Raises:
            Retryable: nobody is there, or TLS fails.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self.client.reconnect)  # resolves names and shakes TLS hands: not on the loop
        except (OSError, ValueError) as exc:
            raise Retryable(f"no connection to {self.host}:{self.port}: {exc}") from exc
        sock = self.client.socket()
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._loop.add_reader(sock, self._on_readable)
        self._flush()

    def hang_up(self) -> None:
        """Cut the connection; paho reads the end of the stream and cleans up after itself."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                self._on_readable()

    def look_alive(self) -> None:
        """Send a ping if it is time, and give up a broker that has not answered the last one."""
        if self._socket is not None:
            self.client.loop_misc()

    def publish_properties(
        self,
        user_properties: Sequence[tuple[str, str]],
        correlation_data: bytes | None,
        response_topic: str | None,
        expiry_s: int | None,
    ) -> Properties | None:
        """The properties of a PUBLISH; None where the protocol has none."""
        if not self.v5:
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # paho left it untyped
        if user_properties:
            properties.UserProperty = list(user_properties)
        if correlation_data is not None:
            properties.CorrelationData = correlation_data
        if response_topic is not None:
            properties.ResponseTopic = response_topic
        if expiry_s is not None:
            properties.MessageExpiryInterval = expiry_s
        return properties

    def _prepare_connect(self, login: Login) -> None:
        if not self.v5:
            self.client.connect_async(self.host, self.port, login.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho left it untyped
        properties.SessionExpiryInterval = login.session_expiry_s
        properties.ReceiveMaximum = login.receive_maximum
        start = paho.MQTT_CLEAN_START_FIRST_ONLY if login.clean_start else False
        self.client.connect_async(self.host, self.port, login.keepalive_s, clean_start=start, properties=properties)

    def _on_readable(self) -> None:
        for _ in range(READ_BURST):
            before = self.packets
            if self.client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                return
            if self.packets == before and not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def _on_want_write(self, *_: Any) -> None:
        if self._socket is not None:  # else the connecting thread is calling, and `open` flushes
            self._loop.call_soon(self._flush)  # one turn for all that this turn of the loop publishes

    def _flush(self) -> None:
        if self._socket is None:
            return
        self.client.loop_write()
        if self._socket is not None and self.client.want_write():
            self._loop.add_writer(self._socket, self.client.loop_write)

    def _on_wrote_all(self, *_: Any) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)

    def _on_socket_close(self, *_: Any) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket = None


def _make_client(login: Login, v5: bool, tls: bool) -> paho.Client:
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        login.client_id,
        protocol=MQTTProtocolVersion(login.protocol),
        clean_session=None if v5 else login.clean_start,
        reconnect_on_failure=False,
        manual_ack=True,
    )
    client.max_inflight_messages_set(0)  # no limit
    client.max_queued_messages_set(0)
    if login.username is not None:
        client.username_pw_set(login.username, login.password)
    if tls:
        client.tls_set()
    return client


def _parse_url(url: str) -> tuple[str, int, bool]:
    parts = urlsplit(url)
    if parts.scheme not in _TLS_SCHEMES or not parts.hostname:
        raise Permanent(f"mqtt_url={url!r} must look like mqtt://host:1883 or mqtts://host:8883")
    tls = _TLS_SCHEMES[parts.scheme]
    return parts.hostname, parts.port or (_TLS_PORT if tls else _PLAIN_PORT), tls
