"""The settings that drive the dispatcher's decisions, as plain numbers, and the calculations over them."""

import zlib
from dataclasses import dataclass

from manifold.contracts.queue_names import QueueName, is_ecq, owner_of_queue
from manifold.contracts.topics import ECQ, request_topic, without_group
from manifold.queues import Policy
from manifold.settings import Settings

MAX_JITTER = 0.1  # as a fraction of the attempt's ack deadline; spreads the retries of entries whose deadlines pass together
ANY_REQUEST = "\x00"  # placeholder for a request id when filters are compared; no name contains it


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """The settings that `step` uses; durations are in milliseconds."""

    topic_prefix: str
    waits_ms: tuple[int, ...]  # ack deadline of the first, second, … attempt; the last value applies to all further attempts
    max_attempts: int  # 0: no limit
    dispatch_on_connect: bool
    dispatch_on_subscribe: bool

    @classmethod
    def of(cls, settings: Settings) -> "DispatchPolicy":
        """Build the policy from the settings."""
        return cls(
            topic_prefix=settings.topic_prefix,
            waits_ms=Policy.of(settings).waits_ms,
            max_attempts=settings.max_attempts,
            dispatch_on_connect=settings.dispatch_on_connect,
            dispatch_on_subscribe=settings.dispatch_on_subscribe,
        )

    def wait_ms(self, attempt: int) -> int:
        """The ack deadline of this attempt in ms; attempts are counted from 1."""
        return self.waits_ms[min(attempt, len(self.waits_ms)) - 1]

    def recheck_at_ms(self, owner: str, seq: int, attempt: int, deadline_ms: int) -> int:
        """When to check whether an entry is overdue, in Unix ms: after its deadline and a jitter that all replicas agree on."""
        hash_fraction = zlib.crc32(f"{owner}:{seq}:{attempt}".encode()) / 0xFFFFFFFF  # from 0 to 1
        jitter_ms = int(hash_fraction * MAX_JITTER * self.wait_ms(attempt))
        return deadline_ms + 1 + jitter_ms

    def are_used_up(self, attempts: int) -> bool:
        """Whether an entry that was published `attempts` times must not be published again."""
        return self.max_attempts > 0 and attempts >= self.max_attempts

    def reaches(self, topic_filter: str, queue: QueueName) -> bool:
        """Whether a subscription to `topic_filter` matches any topic of the queue."""
        filter_levels = without_group(topic_filter).split("/")
        if is_ecq(queue):
            return _reaches_compacted_queue(filter_levels, owner_of_queue(queue))
        topic = request_topic(self.topic_prefix, owner_of_queue(queue), ANY_REQUEST)
        return _matches(filter_levels, topic.split("/"))


def _reaches_compacted_queue(filter_levels: list[str], owner: str) -> bool:
    """Whether a filter matches any topic `<ECQ>/<owner>/<key>`. A key may have several levels, so anything may follow the owner.

    A wildcard in place of `<ECQ>` matches none of these topics, because that level begins with `$`.
    """
    match filter_levels:
        case [root, "#"]:
            return root == ECQ
        case [root, filter_owner, _, *_]:
            return root == ECQ and filter_owner in ("+", owner)
    return False


def _matches(filter_levels: list[str], topic_levels: list[str]) -> bool:
    """Whether a filter matches a topic. The level `ANY_REQUEST` of the topic stands for any request id."""
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index >= len(topic_levels):
            return False
        topic_level = topic_levels[index]
        if level not in ("+", topic_level) and topic_level != ANY_REQUEST:
            return False
    return len(filter_levels) == len(topic_levels)
