"""Accepts the answers of vehicles on their own connection, so that a flood of answers delays no trigger."""

from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import structlog

from manifold.contracts import topics
from manifold.contracts.answers import VehicleAnswer, is_answer, parse_answer
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.messages import SHOWN, Refused
from manifold.contracts.names import SERVICE_PREFIX
from manifold.messaging.mqtt import Message, Mqtt
from manifold.recorder import _metrics
from manifold.recorder._parser import Incoming, encodable
from manifold.recorder._rate_limit import Admission, RateLimit, answering_vehicle, truncated_parts
from manifold.recorder._window import Window
from manifold.settings import Settings

IN_FLIGHT = 200  # maximum number of unacknowledged answers, and of answers that are recorded with one group
MAX_HELD_BYTES = 4 << 20  # bytes of unacknowledged answers above which the client stops reading
log = structlog.get_logger(__name__)


class Answers:
    """Accepts answers while `async with answers` lasts. An answer enters no queue, and its vehicle gets no receipt.

    A response that does not claim to be an answer, or that exceeds the vehicle's rate, is acknowledged without being recorded.
    """

    def __init__(self, settings: Settings, mqtt: Mqtt, next_seq: Callable[[], int]) -> None:
        self._settings, self._mqtt, self._next_seq = settings, mqtt, next_seq
        self._limit = RateLimit(settings.campaign_answers_per_hour, answering_vehicle)
        self._window = Window(MAX_HELD_BYTES, on_full=mqtt.pause, on_free=mqtt.resume)
        self._waiting: deque[tuple[Message, Admission]] = deque()
        self.on_arrived: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        if self._settings.campaign_answers:  # otherwise nothing is subscribed, and no answer ever arrives
            self._mqtt.on_message = self._mqtt.on_unreadable = self._put
            self._mqtt.on_resumed = self._forget_redelivered
            topic_filter = topics.response_filter(self._settings.topic_prefix)
            if self._settings.shares_subscriptions:
                topic_filter = topics.shared(topics.RECORDER_GROUP, topic_filter)
            self._mqtt.subscribe(topic_filter)
            await self._mqtt.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        await self._mqtt.close()

    def stop(self) -> None:
        """Accept no further answers: the broker keeps them for the next start."""
        self._mqtt.on_message = self._mqtt.on_unreadable = lambda _: None

    @property
    def problem(self) -> str | None:
        """Why no answers arrive; None if they can arrive, or if the setting `campaign_answers` turns them off."""
        if self._mqtt.ready or not self._settings.campaign_answers:
            return None
        return f"not subscribed to answers of vehicles at {self._settings.mqtt}"

    @property
    def is_empty(self) -> bool:
        """Whether no answer waits to be recorded."""
        return not self._waiting

    def take(self) -> list[Incoming]:
        """Remove up to `IN_FLIGHT` waiting answers and build their records, in order. Call `settle` once they are on disk."""
        count = min(len(self._waiting), IN_FLIGHT)
        return [self._build(*self._waiting.popleft()) for _ in range(count)]

    def settle(self, group: Iterable[Incoming]) -> None:
        """Acknowledge these answers, which are on disk."""
        for incoming in group:
            assert incoming.message is not None
            self._mqtt.ack(incoming.message)
            self._window.release(incoming.message)

    def _put(self, message: Message) -> None:
        """Queue an answer to be recorded; acknowledge a response that is not to be recorded."""
        if not is_answer(message.payload):
            self._ignore(message, "ignored")
            return
        admission = self._limit.judge(message)
        if admission is Admission.DROPPED:
            self._ignore(message, "dropped")
        elif self._window.admit(message):  # if not, the window has dropped and counted a QoS 0 answer
            self._waiting.append((message, admission))
            self.on_arrived()

    def _ignore(self, message: Message, status: str) -> None:
        _metrics.MESSAGES.labels(Stream.ANSWER.value, status).inc()
        self._mqtt.ack(message)

    def _forget_redelivered(self) -> None:
        """Drop the waiting QoS 1 messages when the session is resumed, because the broker redelivers them."""
        received, self._waiting = self._waiting, deque()
        for message, admission in received:
            if message.qos == 0:
                self._waiting.append((message, admission))
            else:
                self._window.release(message)

    def _build(self, message: Message, admission: Admission) -> Incoming:
        """Build the record of an answer; a refused one keeps only the first bytes of its payload."""
        content = self._parse(message, admission)
        seq = self._next_seq()
        payload, properties = truncated_parts(message)
        headers = {name: value for name, value in properties.items() if not name.startswith(SERVICE_PREFIX)}
        refused_because = encodable(content.reason) if isinstance(content, Refused) else None
        if refused_because is None:
            payload = message.payload
        at, stream, topic = datetime.now(UTC), Stream.ANSWER, message.topic
        envelope = Envelope(seq, at, stream, topic, payload, message.qos, headers, refused_because=refused_because)
        return Incoming(envelope, message, refused_because=refused_because)

    def _parse(self, message: Message, admission: Admission) -> VehicleAnswer | Refused:
        """Parse an answer; return a refusal if its packet is unreadable, it exceeds the rate limit, or it is invalid."""
        if message.unreadable is not None:
            return Refused(f"the packet cannot be read ({message.unreadable}); send it as MQTT 5 says, all texts in UTF-8")
        if admission is Admission.REFUSED:
            limit = f"campaign_answers_per_hour={self._settings.campaign_answers_per_hour}"
            return Refused(f"answers of this vehicle come faster than {limit}; wait, or raise the setting")
        try:
            return parse_answer(message.topic, message.payload)
        except Exception as exc:  # uncaught, it would end the recorder at every redelivery of this answer
            topic, payload_bytes = message.topic[:SHOWN], len(message.payload)
            log.exception("answer of vehicle refused: its validation failed", topic=topic, payload_bytes=payload_bytes)
            return Refused(
                f"parsing it failed ({type(exc).__name__}), which is a fault of the recorder; its first bytes are kept"
            )
