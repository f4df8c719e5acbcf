"""Limits the rewinds of a queue and the answers of a vehicle: the only recorded messages that vehicles themselves publish.

The recorder cannot see the publisher, so there is one limit per client id in the topic, on which only that client may publish.
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
CLIENTS_KEPT = 100_000  # client ids with a counter; beyond that, the least recently active are forgotten
KEPT_BYTES = 1024  # bytes kept of an invalid rewind or answer, and of user properties: a valid one has fewer
_KEY = len(topics.ECQ_REWIND_PREFIX) + MAX_VIN + 1


class Admission(Enum):
    """The decision about a limited message."""

    ADMITTED = 1  # validated and recorded like any other message
    REFUSED = 2  # too soon; the refusal is recorded
    DROPPED = 3  # too soon after a recorded refusal; not recorded


class _Seen(NamedTuple):
    """The bucket of one key, and its last recorded refusal. Times are those of the clock, in seconds."""

    full_at: float  # when the full burst is available again
    told_at: float  # when the last refusal was recorded
    told_seq: int = 0  # seq of that refusal


def rewound_queue(message: Message) -> str | None:
    """The key of a rewind: its queue. None for any other message."""
    return message.topic[:_KEY] if message.topic.startswith(topics.ECQ_REWIND_PREFIX) else None


def answering_vehicle(message: Message) -> str:
    """The key of an answer: its vehicle. Topics that name none share a key."""
    names = topics.response_of(message.topic)
    return "" if names is None else names[0][: MAX_VIN + 1]


class RateLimit:
    """A token bucket per key; `per_hour` 0: no limit. At most `per_hour` refusals are recorded in an hour, too.

    `key_of` returns the key of a message, or None if it is not limited.
    """

    def __init__(
        self, per_hour: int, key_of: Callable[[Message], str | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._each_s, self._key_of, self._clock = (3600 / per_hour if per_hour else 0.0), key_of, clock
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def judge(self, message: Message) -> Admission:
        """Decide on a message, and count it if it is limited. Call `note_refusal` if it is refused."""
        key = self._key_of(message) if self._each_s else None
        if key is None:
            return Admission.ADMITTED
        now = self._clock()
        seen = self._seen.pop(key, _Seen(now, now - self._each_s))
        full_at = max(seen.full_at, now) + self._each_s
        if full_at - now <= BURST * self._each_s:
            admission, seen = Admission.ADMITTED, seen._replace(full_at=full_at)
        elif now - seen.told_at >= self._each_s:
            admission, seen = Admission.REFUSED, seen._replace(told_at=now)
        else:
            admission = Admission.DROPPED
        self._seen[key] = seen
        if len(self._seen) > CLIENTS_KEPT:
            self._seen.popitem(last=False)
        return admission

    def note_refusal(self, message: Message, seq: int) -> None:
        """Note that the refusal of `message` is recorded under `seq`."""
        key = self._key_of(message) or ""
        self._seen[key] = self._seen[key]._replace(told_seq=seq)

    def refusal_seq(self, message: Message) -> int:
        """The seq of the recorded refusal that stands for this dropped message."""
        return self._seen[self._key_of(message) or ""].told_seq


def bounded(message: Message) -> tuple[bytes, dict[str, str]]:
    """The payload and user properties to keep: on a rewind topic, no more than a rewind needs."""
    if message.topic.startswith(topics.ECQ_REWIND_PREFIX):
        return cut(message)
    return message.payload, dict(message.user_properties)


def cut(message: Message) -> tuple[bytes, dict[str, str]]:
    """The first bytes of a payload, and the user properties if they are few."""
    properties = dict(message.user_properties)
    if sum(len(name) + len(value) for name, value in properties.items()) > KEPT_BYTES:
        properties = {}
    return message.payload[:KEPT_BYTES], properties
