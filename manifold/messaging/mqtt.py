"""An asyncio MQTT 5 client for services that reconnects automatically.

Guarantees: a message is only acknowledged when the service calls `ack`, and only on the connection that delivered the message. A
publish whose future reports a lost connection is dropped and never resent implicitly. Subscriptions are restored whenever the
broker has lost the session.
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
from manifold.messaging._reconnector import MAX_PACKET_BYTES, ConnectOptions, Reconnector
from manifold.messaging._subscriptions import FIRST_REFUSAL as FIRST_REFUSAL
from manifold.messaging._subscriptions import QOS, Subscriptions
from manifold.messaging._unconfirmed import Unconfirmed

NO_SUBSCRIBERS = 16  # PUBACK reason code: accepted, but no subscriber matched
_LONGEST_PAYLOAD = MAX_PACKET_BYTES - (1 << 20)  # leaves room for topic and properties
log = structlog.get_logger(__name__)


class Mqtt:
    """A self-healing client: `async with Mqtt(url, client_id) as mqtt`. Entering does not wait for the broker.

    With `clean_start` the first connection discards an older session; later connections resume the session within
    `session_expiry_s`. The caller limits the number of concurrent publishes. The files of `tls` are read again for each
    `mqtts://` connection.

    `on_message` is called on the event loop, in the broker's order. Retained messages are not requested, because they may be
    outdated. `on_unreadable` receives undecodable messages; by default it acknowledges them, because an unacknowledged message
    would occupy a slot of the receive maximum forever. `on_resumed` is called after each connect for which the broker has kept
    the session, even the first one of a process, before the broker redelivers unacknowledged messages. `on_session_began` is
    called with the connection number when the broker has no session.
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
            Endpoint.of(url, tls),
            options,
            on_packet=self._on_packet,
            on_undecodable=self._on_undecodable,
            on_up=self._on_up,
            on_down=self._unconfirmed.fail_all,
        )
        self.connected = self._reconnector.connected
        self._subscriptions = Subscriptions(client_id)

    @property
    def problem(self) -> str:
        """Error of the last failed connection attempt; empty if no attempt has failed."""
        return self._reconnector.problem

    @property
    def ready(self) -> bool:
        """Whether the client is connected and every subscription is confirmed."""
        return self.connected.is_set() and self._subscriptions.complete

    @property
    def largest_packet(self) -> int:
        """The maximum packet size in bytes that the broker accepted on the last connection."""
        return self._reconnector.max_packet_bytes

    async def __aenter__(self) -> Self:
        self._reconnector.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect and stop reconnecting."""
        await self._reconnector.stop()

    async def wait_connected(self) -> None:
        """Wait until the client is connected."""
        await self.connected.wait()

    def subscribe(self, *filters: str, qos: int = 1) -> "asyncio.Future[None]":
        """Subscribe now and after every loss of the session. Await the future for the broker's confirmation.

        The future raises Permanent if the broker refuses a filter. The client then reconnects and retries: a starting broker may
        deny a subscription that it allows a second later, and caches the denial for the connection's lifetime.
        """
        future = self._subscriptions.add(filters, qos)
        self._send_subscriptions()
        return future

    def ack(self, message: Message) -> bool:
        """Send the PUBACK of `message`.

        Returns False if its connection is lost, so that the broker will redeliver the message.
        """
        if message.qos == 0:  # such a message has no PUBACK
            return True
        connection = self._reconnector.connection
        if connection is None or message.connection != self._reconnector.number:
            return False
        connection.send(mqtt5.PubAckPacket(message.mid).write())
        return True

    def pause(self) -> None:
        """Stop reading from the broker, across reconnects, until `resume`."""
        self._reconnector.pause()

    def resume(self) -> None:
        """Resume reading."""
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
        recipient_max_packet_bytes: int = 0,
    ) -> "asyncio.Future[int]":
        """Queue a PUBLISH; everything sent afterwards, including acknowledgements, follows it.

        `recipient_max_packet_bytes` is the Maximum Packet Size of the receiving vehicle; 0: unknown. A broker silently drops a
        packet that exceeds it. Any other packet is forwarded unchanged, except that a subscription identifier adds up to 5 bytes.

        Returns a future with the PUBACK's reason code (0, 16, …); for QoS 0 it is completed with 0.

        Raises:
            Retryable: the client is not connected, or no packet id is free. From the future: the connection was lost before the
                PUBACK, and the broker may have received the message.
            Permanent: from the future only: the packet exceeds the limit of the broker or the vehicle, and nothing was sent.
        """
        connection = self._reconnector.connection
        if connection is None:
            raise Retryable(f"{self.client_id} is not connected to {self._reconnector.endpoint}; publish again when it is")
        mid = self._unconfirmed.next_mid() if qos else None
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if len(payload) > _LONGEST_PAYLOAD:  # may leave no room for topic and properties
            future.set_exception(self._too_large_for_broker(len(payload)))
            return future
        packet = mqtt5.PublishPacket(
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
        if len(packet) > self._reconnector.max_packet_bytes:  # the broker would close the connection
            future.set_exception(self._too_large_for_broker(len(packet)))
            return future
        if 0 < recipient_max_packet_bytes < len(packet):
            limit = f"the {recipient_max_packet_bytes} that the vehicle takes (its Maximum Packet Size)"
            future.set_exception(Permanent(f"a packet of {len(packet)} bytes is over {limit}; raise its limit, or send less"))
            return future
        connection.send(packet)
        if mid is None:
            future.set_result(0)
        else:
            self._unconfirmed.add(mid, future)
        return future

    def flush(self) -> None:
        """Write the queued packets now instead of at the end of this event loop turn."""
        if self._reconnector.connection is not None:
            self._reconnector.connection.flush()

    def _too_large_for_broker(self, size_bytes: int) -> Permanent:
        """Return the error for a packet of this size."""
        endpoint, max_packet_bytes = self._reconnector.endpoint, self._reconnector.max_packet_bytes
        limit = f"the {max_packet_bytes} that the broker at {endpoint} takes"
        return Permanent(f"a packet of {size_bytes} bytes is over {limit}; raise its limit, or send less")

    def _send_subscriptions(self) -> None:
        """Send a SUBSCRIBE for all filters if the client is connected and not every filter is confirmed."""
        connection = self._reconnector.connection
        if connection is not None and not self._subscriptions.complete:
            connection.send(self._subscriptions.new_subscribe(self._unconfirmed.next_mid()))

    # Callbacks of the connection ------------------------------------------------------------------------------------------

    def _on_up(self, session_present: bool) -> None:
        if session_present:
            self.on_resumed()
        else:
            self._subscriptions.mark_unconfirmed()
            self.on_session_began(self._reconnector.number)
        self._send_subscriptions()

    def _on_packet(self, packet: mqtt5.Packet) -> None:
        match packet:
            case mqtt5.PublishPacket():
                self._on_publish(packet)
            case mqtt5.PubAckPacket():
                self._unconfirmed.confirm(packet.packet_id, int(packet.reason_code))
            case mqtt5.SubAckPacket():
                self._on_suback(packet.packet_id, [int(reason) for reason in packet.reason_codes])
            case _:  # such as PINGRESP, which needs no action
                pass

    def _on_undecodable(self, packet: bytes, reason: str) -> None:
        """Handle an undecodable packet by the fields at its beginning. Packets of other types need no action."""
        match packet[0] >> 4:
            case _raw.PUBLISH:
                self.on_unreadable(_message.undecodable_message(packet, reason, self._reconnector.number))
            case _raw.PUBACK:
                self._unconfirmed.confirm(*_raw.reason_of_puback(packet))
            case _raw.SUBACK:
                self._on_suback(*_raw.reasons_of_suback(packet))

    def _on_publish(self, packet: mqtt5.PublishPacket) -> None:
        message = _message.decoded_message(packet, self._reconnector.number)
        try:
            self.on_message(message)
        except Exception:  # an error of the handler must not affect later packets; this message stays unacknowledged
            log.exception("mqtt message handler failed", client=self.client_id, topic=message.topic, mid=message.mid)

    def _on_suback(self, mid: int, reasons: Sequence[int]) -> None:
        reconnect_in_s = self._subscriptions.handle_suback(mid, reasons)
        if reconnect_in_s is not None:  # a subscription was refused
            asyncio.get_running_loop().call_later(reconnect_in_s, self._reconnect_if_unconfirmed, self._reconnector.number)

    def _reconnect_if_unconfirmed(self, number: int) -> None:
        """Close connection `number` if it is still current and a subscription is missing; the reconnector opens a new one."""
        connection = self._reconnector.connection
        if connection is not None and self._reconnector.number == number and not self._subscriptions.complete:
            connection.close()
