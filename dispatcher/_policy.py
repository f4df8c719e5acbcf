"""The settings that decide, as plain numbers, and the small calculations over them."""

import zlib
from dataclasses import dataclass

from contracts.names import Owner
from contracts.settings import Settings
from contracts.topics import request_topic
from queues import Policy

JITTER = 0.1  # of the time that the attempt had; a batch whose deadlines pass together is not published again together
ANY_REQUEST = "\x00"  # stands for a request id in a comparison of filters; no name can hold it


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """What `step` needs to know of the settings. Durations in milliseconds."""

    topic_prefix: str
    waits_ms: tuple[int, ...]  # that the first, second, … attempt has; the last one serves for all further attempts
    max_attempts: int  # 0: no limit
    dispatch_on_connect: bool
    dispatch_on_subscribe: bool

    @classmethod
    def of(cls, settings: Settings) -> "DispatchPolicy":
        """The policy that these settings describe."""
        return cls(
            topic_prefix=settings.topic_prefix,
            waits_ms=Policy.of(settings).waits_ms,
            max_attempts=settings.max_attempts,
            dispatch_on_connect=settings.dispatch_on_connect,
            dispatch_on_subscribe=settings.dispatch_on_subscribe,
        )

    def wait_ms(self, attempt: int) -> int:
        """How long the vehicle has to acknowledge this attempt (counted from 1)."""
        return self.waits_ms[min(attempt, len(self.waits_ms)) - 1]

    def recheck_at_ms(self, owner: str, seq: int, attempt: int, deadline_ms: int) -> int:
        """When to look whether it is overdue: after the deadline, by a jitter that every replica computes alike."""
        share = zlib.crc32(f"{owner}:{seq}:{attempt}".encode()) / 0xFFFFFFFF
        return deadline_ms + 1 + int(share * JITTER * self.wait_ms(attempt))

    def used_up(self, attempts: int) -> bool:
        """Whether an entry that was published this often has failed."""
        return 0 < self.max_attempts <= attempts

    def reaches(self, topic_filter: str, owner: Owner) -> bool:
        """Whether a subscription to `topic_filter` gets any of the owner's requests."""
        wanted = request_topic(self.topic_prefix, owner, ANY_REQUEST).split("/")
        levels = topic_filter.split("/")
        if levels[0] == "$share":
            levels = levels[2:]
        for place, level in enumerate(levels):
            if level == "#":
                return True
            if place >= len(wanted):
                return False
            if level not in ("+", wanted[place]) and wanted[place] != ANY_REQUEST:
                return False
        return len(levels) == len(wanted)
