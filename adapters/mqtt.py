"""An MQTT client for services: paho on an asyncio loop, reconnecting by itself.

Three things hold that paho alone does not give. A message is acknowledged only when the service says so, and never on a
connection other than the one that brought it. A publish that is reported as lost with its connection is dropped, and not
sent again behind the caller's back. Subscriptions come back whenever the broker has forgotten the session.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import structlog
from paho.mqtt import client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential_jitter

from adapters._paho import Link, Login
from contracts.errors import Permanent, Retryable

NO_SUBSCRIBERS = 16  # PUBACK reason code: the broker took the message and nobody wants it
FIRST_REFUSAL = 0x80  # reason codes from here on mean no

_CONNACK_WAIT_S = 10.0
_GOODBYE_WAIT_S = 2.0
_KEEPALIVE_LOOK_S = 1.0
_RESUBSCRIBE_S = 5.0  # pause after the broker has refused a subscription
# Two clients with one client id throw each other out; a pause before coming back keeps that from becoming a storm.
_AFTER_LOSS_S = 0.1

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
    is the caller's decision. `on_message` is called on the loop, in the order in which the broker sent.
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
        login = Login(client_id, username, password, clean_start, session_expiry_s, receive_maximum, keepalive_s, protocol)
        self._link = Link(url, login)
        client = self._link.client
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_message, client.on_publish, client.on_subscribe = self._on_message, self._on_publish, self._on_subscribe
        self._filters: dict[str, int] = {}
        self._confirmed = False  # the session at the broker holds every filter of `_filters`
        self._subscribe_mid: int | None = None  # of the SUBSCRIBE whose SUBACK counts
        self._subscribers: list[asyncio.Future[None]] = []
        self._unanswered: dict[int, asyncio.Future[int]] = {}
        self._lost = asyncio.Event()
        self._refusal = ""
        self._connection = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """Connected, and every subscription confirmed."""
        return self.connected.is_set() and (self._confirmed or not self._filters)

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._keep_connected(), name=f"mqtt.connection.{self.client_id}"),
            asyncio.create_task(self._keep_alive(), name=f"mqtt.keepalive.{self.client_id}"),
        ]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link.is_open:
            self._lost.clear()
            self._link.client.disconnect()
            try:
                async with asyncio.timeout(_GOODBYE_WAIT_S):
                    await self._lost.wait()
            except TimeoutError:
                self._link.hang_up()
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
        return self._link.client.ack(message.mid, message.qos) == MQTTErrorCode.MQTT_ERR_SUCCESS

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
        return await self.send(topic, payload, qos, user_properties, correlation_data, response_topic, expiry_s, retain)

    def send(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        user_properties: Sequence[tuple[str, str]] = (),
        correlation_data: bytes | None = None,
        response_topic: str | None = None,
        expiry_s: int | None = None,
        retain: bool = False,
    ) -> "asyncio.Future[int]":
        """Publish ahead of whatever is sent next, acknowledgements included. The answer is that of `publish`.

        Raises:
            Retryable: there is no connection.
        """
        if not self.connected.is_set():
            raise Retryable(f"{self.client_id} is not connected to {self._link.host}:{self._link.port}; publish again when it is")
        properties = self._link.publish_properties(user_properties, correlation_data, response_topic, expiry_s)
        info = self._link.client.publish(topic, payload, qos, retain, properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise Retryable(f"{self.client_id} cannot publish now ({paho.error_string(info.rc)}); publish again")
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if qos == 0:
            answer.set_result(0)
        else:
            self._unanswered[info.mid] = answer
        return answer

    async def _keep_connected(self) -> None:
        while True:
            pauses = wait_exponential_jitter(multiplier=0.1, max=10, jitter=0.3)
            async for attempt in AsyncRetrying(wait=pauses, retry=retry_if_exception_type(Retryable), before_sleep=self._say_why):
                with attempt:
                    await self._connect()
            await self._lost.wait()
            await asyncio.sleep(_AFTER_LOSS_S)

    async def _connect(self) -> None:
        self._lost.clear()
        self._refusal = ""
        await self._link.open()
        waits = [asyncio.create_task(self.connected.wait()), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(waits, timeout=_CONNACK_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if not self.connected.is_set():
            self._link.hang_up()
            place = f"{self._link.host}:{self._link.port}"
            raise Retryable(f"{place} did not accept {self.client_id}: {self._refusal or 'no answer'}")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(_KEEPALIVE_LOOK_S)
            self._link.look_alive()

    def _say_why(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome else None
        log.warning("mqtt not connected", client=self.client_id, attempt=state.attempt_number, reason=str(reason))

    def _after_loss(self) -> None:
        self.connected.clear()
        # paho would send these again on the next connection, after the caller has been told that they are lost.
        self._link.client.drop_out_messages()
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            if not answer.done():
                answer.set_exception(Retryable(f"{self.client_id} lost its connection before the PUBACK; publish again"))
        self._lost.set()

    def _send_subscriptions(self) -> None:
        if self._filters and self.connected.is_set():
            _, self._subscribe_mid = self._link.client.subscribe(list(self._filters.items()))

    # What paho tells, on the loop ---------------------------------------------------------------------------------------

    def _on_connect(self, _client: paho.Client, _userdata: Any, flags: Any, reason: ReasonCode, _properties: Any) -> None:
        self._link.packets += 1
        if reason.is_failure:
            self._refusal = str(reason)
            return
        self._connection += 1
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
        self._link.packets += 1
        try:
            self.on_message(_message(message, self._connection))
        except Exception:  # paho would stay in the middle of this packet for ever; the message stays unacknowledged
            log.exception("mqtt message handler failed", client=self.client_id, mid=message.mid)

    def _on_publish(self, _client: paho.Client, _userdata: Any, mid: int, reason: ReasonCode, *_: Any) -> None:
        self._link.packets += 1
        answer = self._unanswered.pop(mid, None)
        if answer is not None and not answer.done():
            answer.set_result(int(reason.value))

    def _on_subscribe(self, _client: paho.Client, _userdata: Any, mid: int, reasons: list[ReasonCode], *_: Any) -> None:
        self._link.packets += 1
        if mid != self._subscribe_mid:
            return  # a newer SUBSCRIBE with more filters is on its way
        names = zip(self._filters, reasons, strict=False)
        refused = [f"{name} ({reason})" for name, reason in names if reason.value >= FIRST_REFUSAL]
        self._confirmed = not refused
        if refused:
            log.error("mqtt subscription refused", client=self.client_id, refused=refused)
            asyncio.get_running_loop().call_later(_RESUBSCRIBE_S, self._send_subscriptions)
        waiting, self._subscribers = self._subscribers, []
        for answer in waiting:
            if answer.done():
                continue
            if refused:
                answer.set_exception(Permanent(f"the broker refuses {self.client_id} {', '.join(refused)}; allow it there"))
                answer.exception()  # whoever does not await it has the log line
            else:
                answer.set_result(None)


def _message(message: paho.MQTTMessage, connection: int) -> Message:
    properties = message.properties
    return Message(
        message.topic,
        bytes(message.payload),
        message.qos,
        message.dup,
        message.retain,
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        list(getattr(properties, "UserProperty", ())),
        message.mid,
        connection,
    )
