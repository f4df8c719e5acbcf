"""Receipts: the recorder's word to publishers that asked for it."""

import asyncio

import structlog

from adapters.mqtt import Message, Mqtt
from contracts.errors import Retryable
from contracts.messages import Receipt
from recorder import _metrics

GIVE_UP_S = 30.0  # a publisher that waited longer has sent its message again

log = structlog.get_logger(__name__)


class Receipts:
    """Sends receipts in the background; a lost connection delays them."""

    def __init__(self, mqtt: Mqtt, prefix: str) -> None:
        self._mqtt, self._prefix = mqtt, prefix
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, message: Message, receipt: Receipt) -> None:
        """Answer `message`, if it asks for it and its response topic lies where receipts may go."""
        topic = message.response_topic
        if not topic:
            return
        if not topic.startswith(self._prefix) or set(topic) & set("+#\0"):
            _metrics.RECEIPTS.labels("foreign_topic").inc()
            log.warning("receipt not sent", seq=receipt.seq, response_topic=topic, must_begin_with=self._prefix)
            return
        task = asyncio.create_task(self._send(topic, receipt, message.correlation_data), name=f"receipt.{receipt.seq}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def drain(self) -> None:
        """Return when all receipts are sent or given up."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(self, topic: str, receipt: Receipt, correlation_data: bytes | None) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while True:
                    await self._mqtt.wait_connected()
                    try:
                        await self._mqtt.publish(topic, receipt.to_wire(), correlation_data=correlation_data)
                    except Retryable:
                        await asyncio.sleep(0)
                        continue
                    _metrics.RECEIPTS.labels("sent").inc()
                    return
        except TimeoutError:
            _metrics.RECEIPTS.labels("lost").inc()
