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

from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.messaging import _message, _raw
from manifold.messaging._connection import Endpoint
from manifold.messaging._message import Message as Message
from manifold.messaging._reconnector import LARGEST, ConnectOptions, Reconnector
from manifold.messaging._subscriptions import FIRST_REFUSAL as FIRST_REFUSAL
from manifold.messaging._subscriptions import QOS, Subscriptions
from manifold.messaging._unconfirmed import Unconfirmed

NO_SUBSCRIBERS = 16  # PUBACK reason code: the broker took the message and nobody wants it
_LONGEST_PAYLOAD = LARGEST - (1 << 20)  # leaves more than enough for topic and properties
log = structlog.get_logger(__name__)


class Mqtt:
    """A connection that keeps itself: `async with Mqtt(url, client_id) as mqtt`. Entering does not wait for the broker.

    With `clean_start` the first connection forgets an older session; later ones resume it as long as `session_expiry_s`
    allows. How many publishes are on their way at once is the caller's decision. `on_message` is called on the loop, in the
    order in which the broker sent. What the broker has retained does not come: it is no news, and the broker has told it before.
    `on_unreadable` gets a message whose packet cannot be read; unless it is set, it acknowledges, because one that never is takes
    a place of the receive maximum for good. `on_resumed` is called when the broker has kept the session, before it sends again
    what was not acknowledged; `on_session_began` with the number of the connection when it knows of none. The files of `tls` are
    read anew for each connection of `mqtts://`.
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
        tls: TlsFiles = NO_FILES,
    ) -> None:
        self.client_id = client_id
        self.on_message: Callable[[Message], None] = lambda _: None
        self.on_unreadable: Callable[[Message], object] = self.ack
        self.on_resumed: Callable[[], None] = lambda: None
        self.on_session_began: Callable[[int], None] = lambda _: None
        self._unconfirmed = Unconfirmed(client_id)
        options = ConnectOptions(client_id, username, password, clean_start, session_expiry_s, receive_maximum, keepalive_s)
        self._reconnector = Reconnector(
            Endpoint.of(url, tls), options, take=self._take, take_raw=self._take_raw, up=self._on_up, down=self._unconfirmed.lose
        )
        self.connected = self._reconnector.connected
        self._subscriptions = Subscriptions(client_id)

    @property
    def problem(self) -> str:
        """Why the last try to connect failed; empty where none did."""
        return self._reconnector.problem

    @property
    def ready(self) -> bool:
        """Connected, and every subscription confirmed."""
        return self.connected.is_set() and self._subscriptions.complete

    async def __aenter__(self) -> Self:
        self._reconnector.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, and do not connect again."""
        await self._reconnector.stop()

    async def wait_connected(self) -> None:
        """Return as soon as there is a connection."""
        await self.connected.wait()

    def subscribe(self, *filters: str, qos: int = 1) -> "asyncio.Future[None]":
        """Subscribe now and after every loss of the session. Await the answer to know that the broker has confirmed it.

        The answer raises Permanent if the broker refuses a filter; it is tried again all the same, on a new connection: a broker
        that has just started may deny what it allows a second later, and remember that for as long as the connection lives.
        """
        answer = self._subscriptions.add(filters, qos)
        self._send_subscriptions()
        return answer

    def ack(self, message: Message) -> bool:
        """Send the PUBACK of `message`; False if its connection is gone: then the broker sends it again."""
        if message.qos == 0:
            return True
        connection = self._reconnector.connection
        if connection is None or message.connection != self._reconnector.number:
            return False
        connection.send(mqtt5.PubAckPacket(message.mid).write())
        return True

    def pause(self) -> None:
        """Read nothing more from the broker, whatever happens to the connection, until `resume`."""
        self._reconnector.pause()

    def resume(self) -> None:
        """Read on."""
        self._reconnector.resume()

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 1,
        user_properties: Sequence[tuple[str, str]] = (),
        correlation_data: bytes | None = None,
        response_topic: str | None = None,
        expiry_s: int | None = None,
        retain: bool = False,
        vehicle_takes: int = 0,
    ) -> "asyncio.Future[int]":
        """Publish ahead of whatever is sent next, acknowledgements included.

        `vehicle_takes` is the Maximum Packet Size of the vehicle that it is for; 0: it names none. A broker discards without a
        word what is larger, and sends the rest as it came; a subscription identifier makes it up to 5 bytes longer.

        Returns the PUBACK's reason code (0, 16, …) when it comes; 0 at once for QoS 0.

        Raises:
            Retryable: there is no connection, or no packet id is free; or, from the answer, the connection was lost before the
                PUBACK (the broker may have the message all the same).
            Permanent: from the answer: the packet is larger than the broker, or the vehicle, takes; nothing was sent.
        """
        connection = self._reconnector.connection
        if connection is None:
            raise Retryable(f"{self.client_id} is not connected to {self._reconnector.endpoint}; publish again when it is")
        mid = self._unconfirmed.next_mid() if qos else None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        written = b""
        if len(payload) <= _LONGEST_PAYLOAD:
            written = mqtt5.PublishPacket(
                topic,
                payload,
                qos=QOS[qos],
                retain=retain,
                packet_id=mid,
                message_expiry_interval=expiry_s,
                response_topic=response_topic,
                correlation_data=correlation_data,
                user_properties=list(user_properties),
            ).write()
        if not written or len(written) > self._reconnector.largest:  # it would end the connection and all that is under way
            answer.set_exception(Permanent(self._too_large(len(written) or len(payload))))
            return answer
        if 0 < vehicle_takes < len(written):
            taken = f"the {vehicle_takes} that the vehicle takes (its Maximum Packet Size)"
            answer.set_exception(Permanent(f"a packet of {len(written)} bytes is over {taken}; raise its limit, or send less"))
            return answer
        connection.send(written)
        if mid is None:
            answer.set_result(0)
        else:
            self._unconfirmed.add(mid, answer)
        return answer

    def flush(self) -> None:
        """Write what this turn of the loop has sent so far, instead of at its end."""
        if self._reconnector.connection is not None:
            self._reconnector.connection.flush()

    def _too_large(self, size: int) -> str:
        endpoint, largest = self._reconnector.endpoint, self._reconnector.largest
        taken = f"the {largest} that the broker at {endpoint} takes"
        return f"a packet of {size} bytes is over {taken}; raise its limit, or send less"

    def _send_subscriptions(self) -> None:
        connection = self._reconnector.connection
        if connection is not None and not self._subscriptions.complete:
            connection.send(self._subscriptions.packet(self._unconfirmed.next_mid()))

    # What the connection tells --------------------------------------------------------------------------------------------

    def _on_up(self, session_present: bool) -> None:
        if session_present:
            self.on_resumed()
        else:
            self._subscriptions.lost()
            self.on_session_began(self._reconnector.number)
        self._send_subscriptions()

    def _take(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.PublishPacket():
                self._on_publish(packet)
            case mqtt5.PubAckPacket():
                self._unconfirmed.confirm(packet.packet_id, int(packet.reason_code))
            case mqtt5.SubAckPacket():
                self._on_subscribed(packet.packet_id, [int(reason) for reason in packet.reason_codes])

    def _take_raw(self, packet: bytes, why: str) -> None:
        match packet[0] >> 4:
            case _raw.PUBLISH:
                self.on_unreadable(_message.unread(packet, why, self._reconnector.number))
            case _raw.PUBACK:
                self._unconfirmed.confirm(*_raw.reason_of_puback(packet))
            case _raw.SUBACK:
                self._on_subscribed(*_raw.reasons_of_suback(packet))

    def _on_publish(self, packet: mqtt5.PublishPacket) -> None:
        message = _message.read(packet, self._reconnector.number)
        try:
            self.on_message(message)
        except Exception:  # whatever it was, the next packet is not to blame; the message stays unacknowledged
            log.exception("mqtt message handler failed", client=self.client_id, mid=message.mid)

    def _on_subscribed(self, mid: int, reasons: Sequence[int]) -> None:
        pause_s = self._subscriptions.answered(mid, reasons)
        if pause_s is not None:
            asyncio.get_running_loop().call_later(pause_s, self._reconnect, self._reconnector.number)

    def _reconnect(self, number: int) -> None:
        """End connection `number`, if it is still that one and a subscription is still missing: another one follows by itself."""
        connection = self._reconnector.connection
        if connection is not None and self._reconnector.number == number and not self._subscriptions.complete:
            connection.close()
