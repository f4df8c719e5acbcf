"""Limits how often a queue may be rewound: rewinds are the only recorded messages that clients themselves publish.

The recorder cannot see the publisher, so there is one limit per topic, and so per client id.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from manifold.contracts import topics
from manifold.contracts.names import MAX_VIN
from manifold.messaging.mqtt import Message

BURST = 10  # rewinds that may arrive together after a long pause
CLIENTS_KEPT = 100_000  # client ids with a counter; beyond that, the least recently active are forgotten
KEPT_BYTES = 1024  # bytes kept of an invalid rewind, and of user properties: a rewind has fewer
_KEY = len(topics.ECQ_REWIND_PREFIX) + MAX_VIN + 1


class Admission(Enum):
    """The decision about a rewind."""

    ADMITTED = 1  # validated and recorded like any other message
    REFUSED = 2  # too soon; the refusal is recorded
    DROPPED = 3  # too soon after a recorded refusal; not recorded


class _Seen(NamedTuple):
    full_at: float  # when the full burst is available again
    told_at: float  # when the last refusal was recorded
    told_seq: int = 0  # seq of that refusal


class RewindLimit:
    """A token bucket per client id; `per_hour` 0: no limit. Per hour, as many refusals are recorded as rewinds."""

    def __init__(self, per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s, self._clock = (3600 / per_hour if per_hour else 0.0), clock
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def judge(self, message: Message) -> Admission:
        """Decide on a message of any topic, and count it if its topic is that of a rewind. Call `told` if it is refused."""
        if not self._each_s or not message.topic.startswith(topics.ECQ_REWIND_PREFIX):
            return Admission.ADMITTED
        now, key = self._clock(), message.topic[:_KEY]
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

    def told(self, message: Message, seq: int) -> None:
        """Note that the refusal of `message` is recorded under `seq`."""
        key = message.topic[:_KEY]
        self._seen[key] = self._seen[key]._replace(told_seq=seq)

    def refusal_seq(self, message: Message) -> int:
        """The seq of the recorded refusal that stands for this dropped message."""
        return self._seen[message.topic[:_KEY]].told_seq


def bounded(message: Message) -> tuple[bytes, dict[str, str]]:
    """The payload and user properties to keep: on a rewind topic, no more than a rewind needs."""
    properties = dict(message.user_properties)
    if not message.topic.startswith(topics.ECQ_REWIND_PREFIX):
        return message.payload, properties
    if sum(len(name) + len(value) for name, value in properties.items()) > KEPT_BYTES:
        properties = {}
    return message.payload[:KEPT_BYTES], properties
