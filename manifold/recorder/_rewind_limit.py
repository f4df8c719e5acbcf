"""Limits how often a queue may be rewound: rewinds are the only recorded messages that clients themselves publish.

The recorder cannot see who published, so there is one limit for each topic, and so for each client id.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from manifold.contracts import topics
from manifold.contracts.names import MAX_VIN
from manifold.messaging.mqtt import Message

BURST = 10  # rewinds that one who had not rewound for long may send together
CLIENTS_KEPT = 100_000  # whose rewinds are counted; of more, those who have not sent any for longest are forgotten
KEPT_BYTES = 1024  # of what is no rewind, and of user properties: a rewind has fewer
_KEY = len(topics.ECQ_REWIND_PREFIX) + MAX_VIN + 1


class Admission(Enum):
    """What becomes of a rewind."""

    ADMITTED = 1  # it is judged and recorded as any other message
    REFUSED = 2  # it comes too soon; that is recorded
    DROPPED = 3  # so soon after another one that was refused, and it is not recorded


class _Seen(NamedTuple):
    full_at: float  # when the burst is whole again
    told_at: float  # when the last refusal was recorded
    told_seq: int = 0  # and under which seq


class RewindLimit:
    """A token bucket for each client id; `per_hour` 0: no limit. As many refusals may be recorded in an hour as rewinds."""

    def __init__(self, per_hour: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._each_s, self._clock = (3600 / per_hour if per_hour else 0.0), clock
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def judge(self, message: Message) -> Admission:
        """Of a message of any topic; counts it if it is a rewind, or stands where one should. Call `told` if it is refused."""
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
        """That this one was refused is recorded under `seq`."""
        key = message.topic[:_KEY]
        self._seen[key] = self._seen[key]._replace(told_seq=seq)

    def refusal_seq(self, message: Message) -> int:
        """The seq of the refusal that is on record in the place of this one, which is dropped."""
        return self._seen[message.topic[:_KEY]].told_seq


def bounded(message: Message) -> tuple[bytes, dict[str, str]]:
    """The payload and user properties that are kept: on the topic of a rewind, no more than a rewind needs."""
    properties = dict(message.user_properties)
    if not message.topic.startswith(topics.ECQ_REWIND_PREFIX):
        return message.payload, properties
    if sum(len(name) + len(value) for name, value in properties.items()) > KEPT_BYTES:
        properties = {}
    return message.payload[:KEPT_BYTES], properties
