"""Receipts: the recorder's replies to publishers that ask for one."""

import asyncio

import structlog

from manifold.contracts.errors import Retryable
from manifold.contracts.messages import Receipt
from manifold.messaging.mqtt import Message, Mqtt
from manifold.recorder import _metrics

# Limits of a response topic: levels after the prefix, and bytes in total. Brokers disconnect clients that publish to longer
# topics.
MAX_LEVELS, MAX_BYTES = 8, 512
SHOWN = 100  # max characters of an invalid topic in the log

log = structlog.get_logger(__name__)


class Receipts:
    """Sends each receipt once, on the current connection, because the connection of the message may be lost."""

    def __init__(self, mqtt: Mqtt, prefix: str) -> None:
        self._mqtt, self._prefix = mqtt, prefix

    def send(self, message: Message, receipt: Receipt) -> None:
        """Send the receipt if `message` asks for one and its response topic is allowed."""
        topic = message.response_topic
        if not topic:
            return
        problem = problem_of(topic, self._prefix)
        if problem is not None:
            _metrics.RECEIPTS.labels("foreign_topic").inc()
            log.warning("receipt not sent: invalid response topic", seq=receipt.seq, response_topic=topic[:SHOWN], reason=problem)
            return
        try:
            publishing = self._mqtt.publish(topic, receipt.to_wire(), correlation_data=message.correlation_data)
        except Retryable:  # not connected: the receipt is lost, although the message may be recorded
            _metrics.RECEIPTS.labels("lost").inc()
        else:
            publishing.add_done_callback(_count_receipt)


def problem_of(topic: str, prefix: str) -> str | None:
    """Why no receipt may be sent to this response topic; None if one may."""
    if not topic.startswith(prefix) or topic == prefix:
        return f"it must begin with {prefix}"
    if len(topic.encode()) > MAX_BYTES:
        return f"it is longer than {MAX_BYTES} bytes"
    if topic.count("/", len(prefix)) >= MAX_LEVELS:
        return f"it has more than {MAX_LEVELS} levels behind {prefix}"
    if set(topic) & set("+#") or not topic.isprintable():
        return "it contains a wildcard or an unprintable character"
    return None


def _count_receipt(publishing: "asyncio.Future[int]") -> None:
    is_lost = publishing.cancelled() or publishing.exception() is not None
    _metrics.RECEIPTS.labels("lost" if is_lost else "sent").inc()
