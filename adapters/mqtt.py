"""An MQTT client for services: paho's protocol engine on an asyncio loop, reconnecting by itself.

Three things hold that paho alone does not give. A message is acknowledged only when the service says so, and never on a
connection other than the one that brought it. A publish that is reported as lost with its connection is dropped, and not
sent again behind the caller's back. Subscriptions come back whenever the broker has forgotten the session.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from contracts.errors import Permanent, Retryable

NO_SUBSCRIBERS = 16  # PUBACK reason code: the broker took the message and nobody wants it
FIRST_REFUSAL = 0x80  # reason codes from here on mean no

_TLS_SCHEMES = {"mqtt": False, "tcp": False, "mqtts": True, "ssl": True}
_CONNACK_WAIT_S = 10.0
_GOODBYE_WAIT_S = 2.0
_MISC_S = 1.0  # how often paho looks at its keep-alive
_READ_BURST = 64  # packets taken in one turn of the loop
_RESUBSCRIBE_S = 5.0  # pause after the broker has refused a subscription

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it came; give it to `Mqtt.ack` once it is safe."""

    topic: str
    payload: bytes
    qos: int = 1
    dup: bool = False
    retain: bool = False
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: list[tuple[str, str]] = field(default_factory=list)
    mid: int = 0
    connection: int = 0  # the connection that brought it; packet ids mean nothing on another one


class Mqtt:
    """A connection that keeps itself: `async with Mqtt(url, client_id) as mqtt`. Entering does not wait for the broker.

    With `clean_start` the first connection forgets an older session; later ones resume it as long as `session_expiry_s`
    allows. `protocol` is 5 or 4 (MQTT 3.1.1: no reason codes, no properties). How many publishes are on their way at once
    is the caller's decision.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        username: str | None = None,
        password: str | None = None,
        clean_start: bool = True,
        session_expiry_s: int = 0,
        receive_maximum: int = 1000,
        keepalive_s: int = 30,
        protocol: int = 5,
    ) -> None:
        self.client_id = client_id
        self.on_message: Callable[[Message], None] = lambda _: None
        self.connected = asyncio.Event()
        self._version = MQTTProtocolVersion(protocol)
        self._host, self._port, tls = _parse_url(url)
        self._keepalive_s, self._clean_start = keepalive_s, clean_start
        self._session_expiry_s, self._receive_maximum = session_expiry_s, receive_maximum
        self._client = self._make_client(username, password, tls)
        self._filters: dict[str, int] = {}
        self._confirmed = False  # the session at the broker holds every filter of `_filters`
        self._subscribe_mid: int | None = None  # of the SUBSCRIBE whose SUBACK counts
        self._subscribers: list[asyncio.Future[None]] = []
        self._unanswered: dict[int, asyncio.Future[int]] = {}
        self._lost = asyncio.Event()
        self._refusal = ""
        self._connection = 0
        self._packets = 0
        self._watched: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """Connected, and every subscription confirmed."""
        return self.connected.is_set() and (self._confirmed or not self._filters)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            asyncio.create_task(self._keep_connected(), name=f"mqtt.connection.{self.client_id}"),
            asyncio.create_task(self._keep_alive(), name=f"mqtt.keepalive.{self.client_id}"),
        ]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._watched is not None:
            self._lost.clear()
            self._client.disconnect()
            try:
                async with asyncio.timeout(_GOODBYE_WAIT_S):
                    await self._lost.wait()
            except TimeoutError:
                self._hang_up()
        self._after_loss()

    async def wait_connected(self) -> None:
        """Return as soon as there is a connection."""
        await self.connected.wait()

    def subscribe(self, *filters: str, qos: int = 1) -> "asyncio.Future[None]":
        """Subscribe now and after every loss of the session. Await the answer to know that the broker has confirmed it.

        The answer raises Permanent if the broker refuses a filter; the subscription is tried again all the same.
        """
        self._filters.update(dict.fromkeys(filters, qos))
        self._confirmed = False
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._subscribers.append(answer)
        self._send_subscriptions()
        return answer

    def ack(self, message: Message) -> bool:
        """Send the PUBACK of `message`; False if its connection is gone: then the broker sends it again."""
        if message.qos == 0:
            return True
        if message.connection != self._connection or not self.connected.is_set():
            return False
        return self._client.ack(message.mid, message.qos) == MQTTErrorCode.MQTT_ERR_SUCCESS

    async def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        user_properties: Sequence[tuple[str, str]] = (),
        correlation_data: bytes | None = None,
        response_topic: str | None = None,
        expiry_s: int | None = None,
        retain: bool = False,
    ) -> int:
        """Publish and wait for the PUBACK; returns its reason code (0, 16, …), 0 at once for QoS 0.

        Raises:
            Retryable: there is no connection, or it was lost before the PUBACK (the broker may have the message all the same).
        """
        if not self.connected.is_set():
            raise Retryable(f"{self.client_id} is not connected to {self._host}:{self._port}; publish again when it is")
        properties = self._publish_properties(user_properties, correlation_data, response_topic, expiry_s)
        info = self._client.publish(topic, payload, qos, retain, properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise Retryable(f"{self.client_id} cannot publish now ({paho.error_string(info.rc)}); publish again")
        if qos == 0:
            return 0
        answer: asyncio.Future[int] = self._loop.create_future()
        self._unanswered[info.mid] = answer
        return await answer

    def _make_client(self, username: str | None, password: str | None, tls: bool) -> paho.Client:
        v5 = self._version == MQTTProtocolVersion.MQTTv5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            protocol=self._version,
            clean_session=None if v5 else self._clean_start,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # no limit
        client.max_queued_messages_set(0)
        if username is not None:
            client.username_pw_set(username, password)
        if tls:
            client.tls_set()
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_publish, client.on_subscribe = self._on_message, self._on_publish, self._on_subscribe
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_want_write
        client.on_socket_unregister_write = self._on_socket_unregister_write
        if v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho left it untyped
            properties.SessionExpiryInterval = self._session_expiry_s
            properties.ReceiveMaximum = self._receive_maximum
            start = paho.MQTT_CLEAN_START_FIRST_ONLY if self._clean_start else False
            client.connect_async(self._host, self._port, self._keepalive_s, clean_start=start, properties=properties)
        else:
            client.connect_async(self._host, self._port, self._keepalive_s)
        return client

    # The connection ---------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        while True:
            pauses = wait_exponential_jitter(multiplier=0.1, max=10, jitter=0.3)
            async for attempt in AsyncRetrying(wait=pauses, retry=retry_if_exception_type(Retryable), before_sleep=self._say_why):
                with attempt:
                    await self._connect()
            await self._lost.wait()
            # Two clients with one client id throw each other out; the pause keeps that from becoming a storm.
            await asyncio.sleep(0.1)

    async def _connect(self) -> None:
        self._lost.clear()
        self._refusal = ""
        try:
            await asyncio.to_thread(self._client.reconnect)  # resolves names and shakes TLS hands: not on the loop
        except (OSError, ValueError) as exc:
            raise Retryable(f"no connection to {self._host}:{self._port}: {exc}") from exc
        sock = self._client.socket()
        assert isinstance(sock, socket.socket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watched = sock
        self._loop.add_reader(sock, self._on_readable)
        self._flush()
        waits = [asyncio.create_task(self.connected.wait()), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(waits, timeout=_CONNACK_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.connected.is_set():
            self._hang_up()
            raise Retryable(f"{self._host}:{self._port} did not accept {self.client_id}: {self._refusal or 'no answer'}")

    def _say_why(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome else None
        log.warning("mqtt not connected", client=self.client_id, attempt=state.attempt_number, reason=str(reason))

    def _hang_up(self) -> None:
        if self._watched is not None:
            try:
                self._watched.shutdown(socket.SHUT_RDWR)  # paho reads the end of the stream and cleans up after itself
            except OSError:
                self._on_readable()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_MISC_S)
            if self._watched is not None:
                self._client.loop_misc()

    def _after_loss(self) -> None:
        self.connected.clear()
        # paho would send these again on the next connection, after the caller has been told that they are lost.
        self._client.drop_out_messages()
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            if not answer.done():
                answer.set_exception(Retryable(f"{self.client_id} lost its connection before the PUBACK; publish again"))
        self._lost.set()

    # Bytes ------------------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        for _ in range(_READ_BURST):
            before = self._packets
            if self._client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS:
                return
            if self._packets == before and not (isinstance(self._watched, ssl.SSLSocket) and self._watched.pending()):
                return

    def _on_want_write(self, *_: Any) -> None:
        if self._watched is not None:  # else the connecting thread is calling: `_connect` flushes
            self._loop.call_soon(self._flush)  # one write for all that this turn of the loop publishes

    def _flush(self) -> None:
        if self._watched is None:
            return
        self._client.loop_write()
        if self._watched is not None and self._client.want_write():
            self._loop.add_writer(self._watched, self._client.loop_write)

    def _on_socket_unregister_write(self, *_: Any) -> None:
        if self._watched is not None:
            self._loop.remove_writer(self._watched)

    def _on_socket_close(self, *_: Any) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._loop.remove_writer(self._watched)
            self._watched = None

    # What paho tells --------------------------------------------------------------------------------------------------

    def _on_connect(self, _client: paho.Client, _userdata: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
            return
        self._connection += 1
        self._packets += 1
        self.connected.set()
        log.info("mqtt connected", client=self.client_id, session_present=flags.session_present)
        if not flags.session_present:
            self._confirmed = False
        if not self._confirmed:
            self._send_subscriptions()

    def _on_disconnect(self, _client: paho.Client, _userdata: Any, _flags: Any, reason: ReasonCode, *_: Any) -> None:
        if self.connected.is_set():
            log.info("mqtt disconnected", client=self.client_id, reason=str(reason))
        self._refusal = self._refusal or str(reason)
        self._after_loss()

    def _on_message(self, _client: paho.Client, _userdata: Any, message: paho.MQTTMessage) -> None:
        self._packets += 1
        props = message.properties
        try:
            self.on_message(
                Message(
                    message.topic,
                    bytes(message.payload),
                    message.qos,
                    message.dup,
                    message.retain,
                    getattr(props, "ResponseTopic", None),
                    getattr(props, "CorrelationData", None),
                    list(getattr(props, "UserProperty", ())),
                    message.mid,
                    self._connection,
                )
            )
        except Exception:  # paho would stay in the middle of this packet for ever; the message stays unacknowledged
            log.exception("mqtt message handler failed", client=self.client_id, mid=message.mid)

    def _on_publish(self, _client: paho.Client, _userdata: Any, mid: int, reason: ReasonCode, *_: Any) -> None:
        self._packets += 1
        answer = self._unanswered.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(int(reason.value))

    def _send_subscriptions(self) -> None:
        if not self._filters or not self.connected.is_set():
            return
        _, self._subscribe_mid = self._client.subscribe(list(self._filters.items()))

    def _on_subscribe(self, _client: paho.Client, _userdata: Any, mid: int, reasons: list[ReasonCode], *_: Any) -> None:
        self._packets += 1
        if mid != self._subscribe_mid:
            return  # a newer SUBSCRIBE with more filters is on its way
        names = zip(self._filters, reasons, strict=False)
        refused = [f"{name} ({reason})" for name, reason in names if reason.value >= FIRST_REFUSAL]
        self._confirmed = not refused
        if refused:
            log.error("mqtt subscription refused", client=self.client_id, refused=refused)
            self._loop.call_later(_RESUBSCRIBE_S, self._send_subscriptions)
        waiting, self._subscribers = self._subscribers, []
        for answer in waiting:
            if answer.done():
                continue
            if refused:
                answer.set_exception(Permanent(f"the broker refuses {self.client_id} {', '.join(refused)}; allow it there"))
                answer.exception()  # whoever does not await it has the log line
            else:
                answer.set_result(None)

    def _publish_properties(
        self,
        user_properties: Sequence[tuple[str, str]],
        correlation_data: bytes | None,
        response_topic: str | None,
        expiry_s: int | None,
    ) -> Properties | None:
        if self._version != MQTTProtocolVersion.MQTTv5:
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


def _parse_url(url: str) -> tuple[str, int, bool]:
    parts = urlsplit(url)
    if parts.scheme not in _TLS_SCHEMES or not parts.hostname:
        raise Permanent(f"mqtt_url={url!r} must look like mqtt://host:1883 or mqtts://host:8883")
    tls = _TLS_SCHEMES[parts.scheme]
    return parts.hostname, parts.port or (8883 if tls else 1883), tls
