"""An MQTT 5 client for services, on an asyncio loop, reconnecting by itself.

Three things hold. A message is acknowledged only when the service says so, and never on a connection other than the one that
brought it. A publish that is reported as lost with its connection is dropped, and not sent again behind the caller's back.
Subscriptions come back whenever the broker has forgotten the session.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Self

import mqtt5
import structlog
from msgspec import Struct

from adapters._keeper import Keeper, Login
from adapters._link import Place
from contracts.errors import Permanent, Retryable

NO_SUBSCRIBERS = 16  # PUBACK reason code: the broker took the message and nobody wants it
FIRST_REFUSAL = 0x80  # reason codes from here on mean no
MAX_MID = 65535

_RESUBSCRIBE_S = 5.0  # pause after the broker has refused a subscription
_QOS = (mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE)
log = structlog.get_logger(__name__)


class Message(Struct, frozen=True, gc=False):
    """One message as it came; give it to `Mqtt.ack` once it is safe."""

    topic: str
    payload: bytes
    qos: int = 1
    dup: bool = False
    retain: bool = False
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: Sequence[tuple[str, str]] = ()
    mid: int = 0
    connection: int = 0  # the connection that brought it; packet ids mean nothing on another one


class Mqtt:
    """A connection that keeps itself: `async with Mqtt(url, client_id) as mqtt`. Entering does not wait for the broker.

    With `clean_start` the first connection forgets an older session; later ones resume it as long as `session_expiry_s`
    allows. How many publishes are on their way at once is the caller's decision. `on_message` is called on the loop, in the
    order in which the broker sent.
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
    ) -> None:
        self.client_id = client_id
        self.on_message: Callable[[Message], None] = lambda _: None
        login = Login(client_id, username, password, clean_start, session_expiry_s, receive_maximum, keepalive_s)
        self._keeper = Keeper(Place.of(url), login, take=self._take, up=self._on_up, down=self._on_down)
        self.connected = self._keeper.connected
        self._filters: dict[str, int] = {}
        self._confirmed = False  # the session at the broker holds every filter of `_filters`
        self._subscribe_mid: int | None = None  # of the SUBSCRIBE whose SUBACK counts
        self._subscribers: list[asyncio.Future[None]] = []
        self._last_mid = 0
        self._unanswered: dict[int, asyncio.Future[int]] = {}

    @property
    def ready(self) -> bool:
        """Connected, and every subscription confirmed."""
        return self.connected.is_set() and (self._confirmed or not self._filters)

    async def __aenter__(self) -> Self:
        self._keeper.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._keeper.stop()

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
        link = self._keeper.link
        if link is None or message.connection != self._keeper.number:
            return False
        link.send(mqtt5.PubAckPacket(message.mid).write())
        return True

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
            Retryable: there is no connection, or no packet id is free.
        """
        link = self._keeper.link
        if link is None:
            raise Retryable(f"{self.client_id} is not connected to {self._keeper.place}; publish again when it is")
        mid = self._next_mid() if qos else None
        packet = mqtt5.PublishPacket(
            topic,
            payload,
            qos=_QOS[qos],
            retain=retain,
            packet_id=mid,
            message_expiry_interval=expiry_s,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=list(user_properties),
        )
        link.send(packet.write())
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if mid is None:
            answer.set_result(0)
        else:
            self._unanswered[mid] = answer
        return answer

    def _next_mid(self) -> int:
        if len(self._unanswered) >= MAX_MID:
            raise Retryable(f"{self.client_id} has {MAX_MID} publishes under way; publish again when some are confirmed")
        while True:
            self._last_mid = self._last_mid % MAX_MID + 1
            if self._last_mid not in self._unanswered:
                return self._last_mid

    def _send_subscriptions(self) -> None:
        link = self._keeper.link
        if self._filters and link is not None:
            self._subscribe_mid = self._next_mid()
            filters = [
                mqtt5.TopicFilter(name, max_qos=_QOS[qos], retain_as_published=False) for name, qos in self._filters.items()
            ]
            link.send(mqtt5.SubscribePacket(self._subscribe_mid, filters).write())

    # What the connection tells --------------------------------------------------------------------------------------------

    def _on_up(self, session_present: bool) -> None:
        if not session_present:
            self._confirmed = False
        if not self._confirmed:
            self._send_subscriptions()

    def _on_down(self) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        for answer in unanswered.values():
            if not answer.done():
                answer.set_exception(Retryable(f"{self.client_id} lost its connection before the PUBACK; publish again"))

    def _take(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.PublishPacket():
                self._on_publish(packet)
            case mqtt5.PubAckPacket():
                answer = self._unanswered.pop(packet.packet_id, None)
                if answer is not None and not answer.done():
                    answer.set_result(int(packet.reason_code))
            case mqtt5.SubAckPacket() if (
                packet.packet_id == self._subscribe_mid
            ):  # else a newer one with more filters is under way
                self._on_subscribed(packet.reason_codes)

    def _on_publish(self, packet: mqtt5.PublishPacket) -> None:
        message = Message(
            packet.topic,
            packet.payload,
            int(packet.qos),
            packet.duplicate,
            packet.retain,
            packet.response_topic,
            packet.correlation_data,
            packet.user_properties,
            packet.packet_id or 0,
            self._keeper.number,
        )
        try:
            self.on_message(message)
        except Exception:  # whatever it was, the next packet is not to blame; the message stays unacknowledged
            log.exception("mqtt message handler failed", client=self.client_id, mid=message.mid)

    def _on_subscribed(self, reasons: Sequence[mqtt5.SubAckReasonCode]) -> None:
        names = zip(self._filters, reasons, strict=False)
        refused = [f"{name} ({reason.name.lower()})" for name, reason in names if int(reason) >= FIRST_REFUSAL]
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
