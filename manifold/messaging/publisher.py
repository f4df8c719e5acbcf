"""The platform's client: publishes triggers, data and writes, and waits for the recorder's receipts."""

import asyncio
import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from manifold.contracts import campaigns, topics
from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt, ReceiptStatus
from manifold.messaging.mqtt import Message, Mqtt
from manifold.settings import Settings

CONNECT_WAIT_S, RECEIPT_WAIT_S = 10.0, 30.0


class Publisher:
    """An MQTT client like that of any platform: `async with Publisher(settings) as publisher`.

    `user` is the MQTT user name; the default is that of the console. Publishing orders to campaigns needs
    `settings.mqtt_username_campaigns`, or the user name of the API. A second client with the same `client_id` disconnects the
    first, so that the recorder receives the messages of the two clients in the order of publishing.
    """

    def __init__(self, settings: Settings, user: str = "", client_id: str = "") -> None:
        name = user or settings.mqtt_username_publisher
        self._receipt_topic = f"{settings.receipt_prefix}{name}/{uuid.uuid4().hex}"
        password = settings.mqtt_password.get_secret_value() or None
        mqtt_client_id = client_id or f"{name}-{uuid.uuid4().hex[:8]}"
        self._mqtt = Mqtt(settings.mqtt, mqtt_client_id, username=name, password=password, tls=settings.tls_files(name))
        self._mqtt.on_message = self._on_receipt
        self._waiting: dict[bytes, asyncio.Future[Receipt]] = {}  # futures of receipts, by correlation data

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:  # disconnects if this method fails or is cancelled
            await stack.enter_async_context(self._mqtt)
            try:
                async with asyncio.timeout(CONNECT_WAIT_S):
                    await self._mqtt.wait_connected()
                    await self._mqtt.subscribe(self._receipt_topic)
            except TimeoutError as exc:
                raise Retryable("the broker does not answer; is the platform up? See `manifold status`") from exc
            stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        await self._mqtt.__aexit__(kind, exc, trace)

    @property
    def largest_packet(self) -> int:
        """The maximum packet size in bytes that the broker announced when the client connected."""
        return self._mqtt.largest_packet

    async def data(self, data_id: str, payload: bytes) -> Receipt:
        """Publish a payload."""
        return await self.publish(topics.data_topic(data_id), payload)

    async def trigger(self, vins: Sequence[str], request_id: str, data_id: str) -> Receipt:
        """Publish a trigger."""
        fields = {"ids": list(vins), "request_id": request_id, "data_id": data_id}
        return await self.publish(topics.TRIGGER, json.dumps(fields).encode())

    async def write(self, client_id: str, key: str, payload: bytes) -> Receipt:
        """Publish a message that becomes the newest one of its key in a client's compacted queue."""
        return await self.publish(topics.ecq_write_topic(client_id, key), payload)

    async def rewind(self, client_id: str, position: str) -> Receipt:
        """Publish a request to rewind a compacted queue to `position`: `earliest`, a seq, or an ISO 8601 time with its zone."""
        return await self.publish(topics.ecq_rewind_topic(client_id), position.encode())

    async def order(self, order: campaigns.Command) -> Receipt:
        """Publish an order to a campaign."""
        return await self.publish(topics.CAMPAIGN, campaigns.encode(order))

    async def orders(self, orders: Iterable[campaigns.Command]) -> list[Receipt]:
        """Publish orders to campaigns one after the other until one is refused; return the receipts, including the refusal."""
        receipts: list[Receipt] = []
        for order in orders:
            receipts.append(await self.order(order))
            if receipts[-1].status is ReceiptStatus.REFUSED:
                break
        return receipts

    async def publish(self, topic: str, payload: bytes) -> Receipt:
        """Publish a message and return the recorder's receipt, which says whether the message was recorded or refused.

        Raises:
            Retryable: the connection was lost, or no receipt arrived; sending the message again is safe.
        """
        correlation = uuid.uuid4().bytes
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = receipt
        try:
            await self._mqtt.publish(topic, payload, correlation_data=correlation, response_topic=self._receipt_topic)
            async with asyncio.timeout(RECEIPT_WAIT_S):
                return await receipt
        except TimeoutError as exc:
            raise Retryable(f"no receipt within {RECEIPT_WAIT_S:.0f} s; is the recorder up? Resending is safe") from exc
        finally:
            del self._waiting[correlation]

    def _on_receipt(self, message: Message) -> None:
        """Acknowledge a receipt, and pass it to the call of `publish` that waits for it. A late receipt is dropped."""
        self._mqtt.ack(message)
        future = self._waiting.get(message.correlation_data or b"")
        if future is not None and not future.done():
            fields = json.loads(message.payload)
            status = ReceiptStatus(fields["status"])
            future.set_result(Receipt(fields["seq"], status, fields["duplicate_of"], fields["reason"]))
