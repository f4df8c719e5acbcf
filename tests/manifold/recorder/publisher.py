"""A publisher that requests receipts; tests may use its client for anything else."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from manifold.contracts import topics
from manifold.messaging.mqtt import Message, Mqtt
from tests.support.wire import trigger

BOUND_S = 60


class Platform:
    """A publisher that requests receipts."""

    def __init__(self, client: Mqtt) -> None:
        self.client = client
        self._receipts: dict[bytes, asyncio.Future[dict[str, Any]]] = {}
        self._count = 0
        client.on_message = self._take

    @property
    def response_topic(self) -> str:
        return f"{topics.RECEIPT_PREFIX}{self.client.client_id}"

    async def connected(self) -> None:
        """Wait until receipts can arrive."""
        while not self.client.ready:  # noqa: ASYNC110  # no event to wait for; bounded by `platform`
            await asyncio.sleep(0.005)

    async def send(self, topic: str, payload: bytes, **properties: Any) -> dict[str, Any]:
        """Publish and wait for the receipt."""
        return await (await self.publish(topic, payload, **properties))

    async def publish(self, topic: str, payload: bytes, **properties: Any) -> "asyncio.Future[dict[str, Any]]":
        """Publish; the returned future is the receipt."""
        self._count += 1
        name = str(self._count).encode()
        receipt: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._receipts[name] = receipt
        await self.client.publish(topic, payload, correlation_data=name, response_topic=self.response_topic, **properties)
        return receipt

    async def trigger(self, ids: list[str], request_id: str, data_id: str = "d") -> dict[str, Any]:
        """Publish a trigger and wait for its receipt."""
        return await self.send(topics.TRIGGER, trigger(ids, request_id, data_id))

    def _take(self, message: Message) -> None:
        self.client.ack(message)
        receipt = self._receipts.get(message.correlation_data or b"")
        if receipt is not None and not receipt.done():
            receipt.set_result(json.loads(message.payload))


@asynccontextmanager
async def platform(port: int, client_id: str = "sdv-pub-test") -> AsyncIterator[Platform]:
    """A connected publisher."""
    async with asyncio.timeout(BOUND_S), Mqtt(f"mqtt://127.0.0.1:{port}", client_id) as client:
        publisher = Platform(client)
        await client.subscribe(publisher.response_topic)
        yield publisher
