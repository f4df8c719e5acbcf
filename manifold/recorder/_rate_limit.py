"""Limits the rewinds of a queue and the answers of a vehicle: the only recorded messages that vehicles themselves publish.

The recorder cannot see the publisher of a message. So there is one limit per client id in the topic, because only that client may
publish on the topic.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from manifold.contracts import topics
from manifold.contracts.names import MAX_VIN
from manifold.messaging.mqtt import Message

BURST = 10  # messages that may arrive together after a long pause
MAX_CLIENTS = 100_000  # client ids with a bucket; above that number, the least recently active are forgotten
# Bytes that are kept of an invalid rewind or answer, and of its user properties. Valid ones are smaller.
MAX_KEPT_BYTES = 1024
_REWIND_KEY_LENGTH = len(topics.ECQ_REWIND_PREFIX) + MAX_VIN + 1  # one character more than a valid topic can have


class Admission(Enum):
    """The decision about a limited message."""

    ADMITTED = 1  # validated and recorded like any other message
    REFUSED = 2  # too soon; the refusal is recorded
    DROPPED = 3  # too soon after a recorded refusal; not recorded


class _Bucket(NamedTuple):
    """The token bucket of one key, and its last recorded refusal. Times are in seconds of the clock of `RateLimit`."""

    full_at: float  # when the full burst is available again
    refused_at: float  # when the last refusal was recorded
    refusal_seq: int = 0  # seq of that refusal


def rewound_queue(message: Message) -> str | None:
    """The key of a rewind, which stands for its queue; None for any other message."""
    return message.topic[:_REWIND_KEY_LENGTH] if message.topic.startswith(topics.ECQ_REWIND_PREFIX) else None


def answering_vehicle(message: Message) -> str:
    """The key of an answer, which is its vehicle. All topics that name no vehicle share one key."""
    names = topics.response_of(message.topic)
    return "" if names is None else names[0][: MAX_VIN + 1]


class RateLimit:
    """A token bucket per key, refilled with `per_hour` tokens an hour; 0: no limit.

    At most `per_hour` refusals per key and hour are recorded. `key_of` returns the key of a message, or None if the message is
    not limited.
    """

    def __init__(
        self, per_hour: int, key_of: Callable[[Message], str | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = 3600 / per_hour if per_hour else 0.0  # seconds that refill one token; 0: no limit
        self._key_of, self._clock = key_of, clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # the most recently active key is last

    def judge(self, message: Message) -> Admission:
        """Decide on a message, and count it if it is limited. Call `remember_refusal` if the decision is REFUSED."""
        key = self._key_of(message) if self._interval_s else None
        if key is None:
            return Admission.ADMITTED
        now = self._clock()
        # A new bucket is full, and its next refusal is recorded. Removing the bucket first makes the key the last one below.
        bucket = self._buckets.pop(key, _Bucket(full_at=now, refused_at=now - self._interval_s))
        full_at = max(bucket.full_at, now) + self._interval_s  # when the bucket is full again if this message takes a token
        if full_at - now <= BURST * self._interval_s:
            admission, bucket = Admission.ADMITTED, bucket._replace(full_at=full_at)
        elif now - bucket.refused_at >= self._interval_s:
            admission, bucket = Admission.REFUSED, bucket._replace(refused_at=now)
        else:
            admission = Admission.DROPPED
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return admission

    def remember_refusal(self, message: Message, seq: int) -> None:
        """Remember that the refusal of `message` is recorded under `seq`."""
        key = self._key_of(message)
        assert key is not None  # only limited messages are refused
        self._buckets[key] = self._buckets[key]._replace(refusal_seq=seq)

    def refusal_seq(self, message: Message) -> int:
        """The seq of the recorded refusal that stands for this dropped message."""
        key = self._key_of(message)
        assert key is not None  # only limited messages are dropped
        return self._buckets[key].refusal_seq


def recorded_parts(message: Message) -> tuple[bytes, dict[str, str]]:
    """The payload and user properties to record; on a rewind topic, no more of them than a valid rewind has."""
    if message.topic.startswith(topics.ECQ_REWIND_PREFIX):
        return truncated_parts(message)
    return message.payload, dict(message.user_properties)


def truncated_parts(message: Message) -> tuple[bytes, dict[str, str]]:
    """The first `MAX_KEPT_BYTES` of the payload, and all user properties, or none if they are larger than that."""
    properties = dict(message.user_properties)
    if sum(len(name) + len(value) for name, value in properties.items()) > MAX_KEPT_BYTES:
        properties = {}
    return message.payload[:MAX_KEPT_BYTES], properties
