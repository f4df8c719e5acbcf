"""Receipts: the recorder's word to publishers that asked for it."""

import asyncio

import structlog

from adapters.mqtt import Message, Mqtt
from contracts.errors import Retryable
from contracts.messages import Receipt
from recorder import _metrics

log = structlog.get_logger(__name__)


class Receipts:
    """Sends each receipt once, ahead of the message's PUBACK on the same connection.

    So no message is acknowledged whose receipt is lost: when the connection goes, the broker sends the message again, and the
    publisher hears that it is a duplicate.
    """

    def __init__(self, mqtt: Mqtt, prefix: str) -> None:
        self._mqtt, self._prefix = mqtt, prefix

    def send(self, message: Message, receipt: Receipt) -> None:
        """Answer `message`, if it asks for it and its response topic lies where receipts may go."""
        topic = message.response_topic
        if not topic:
            return
        if not topic.startswith(self._prefix) or set(topic) & set("+#\0"):
            _metrics.RECEIPTS.labels("foreign_topic").inc()
            log.warning("receipt not sent", seq=receipt.seq, response_topic=topic, must_begin_with=self._prefix)
            return
        try:
            answer = self._mqtt.send(topic, receipt.to_wire(), correlation_data=message.correlation_data)
        except Retryable:
            _metrics.RECEIPTS.labels("lost").inc()
        else:
            answer.add_done_callback(_count)


def _count(answer: "asyncio.Future[int]") -> None:
    lost = answer.cancelled() or answer.exception() is not None
    _metrics.RECEIPTS.labels("lost" if lost else "sent").inc()
