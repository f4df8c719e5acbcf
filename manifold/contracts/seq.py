"""`seq`, the identity that a door gives each message: a 63-bit, time-ordered, unique integer.

Layout (Snowflake): 41 bits of milliseconds since 2020-01-01 UTC, 10 bits of recorder node, 12 bits of counter.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from manifold.contracts.errors import Retryable

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
EPOCH_MS = int(EPOCH.timestamp() * 1000)
NODE_BITS, COUNTER_BITS = 10, 12
TIME_SHIFT = NODE_BITS + COUNTER_BITS
MAX_NODE = (1 << NODE_BITS) - 1
MAX_COUNTER = (1 << COUNTER_BITS) - 1
MAX_SEQ = (1 << 63) - 1
NEVER_MS = (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS  # the last millisecond that a seq can name
# Redis orders a queue by the seq as a double, and entries that round to the same double by their decimal digits. That is
# the order of seq except where the number of digits grows, in July 2027: no seq is given in that one millisecond.
SKIPPED_MS = (10**18 >> TIME_SHIFT) + EPOCH_MS


def wall_clock_ms() -> int:
    """Milliseconds since 1970-01-01 UTC, as the machine believes."""
    return time.time_ns() // 1_000_000


def seq_of(unix_ms: int, node: int, counter: int) -> int:
    """The seq with these three parts; `unix_ms` counts from 1970."""
    return (unix_ms - EPOCH_MS) << TIME_SHIFT | node << COUNTER_BITS | counter


def unix_ms_of(seq: int) -> int:
    """Milliseconds since 1970-01-01 UTC at which `seq` was given."""
    return (seq >> TIME_SHIFT) + EPOCH_MS


def node_of(seq: int) -> int:
    """The recorder node that gave `seq`."""
    return seq >> COUNTER_BITS & MAX_NODE


def datetime_of(seq: int) -> datetime:
    """The instant (UTC, milliseconds) at which `seq` was given."""
    return EPOCH + timedelta(milliseconds=seq >> TIME_SHIFT)


def first_seq_at(instant: datetime) -> int:
    """The smallest seq that can be given at or after `instant` (timezone-aware); 0 before the epoch.

    Raises:
        ValueError: `instant` has no time zone, so it names no instant.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; pass an aware datetime, for example with tzinfo=UTC")
    return max(0, -(-(instant - EPOCH) // timedelta(milliseconds=1))) << TIME_SHIFT


class SeqSource:
    """Gives strictly increasing seqs, also while the clock stands still or steps back.

    When the clock stands still or has stepped back, the counter goes on in the last millisecond; when it is used up, the
    source borrows the next millisecond and waits for nobody: the clock catches up. `after` is the last seq known to have
    been given by this node (from its journal and archive), so that a restart with a clock in the past cannot repeat one.

    `until_ms` is the last millisecond whose seqs are this source's to give: once the clock is past it, the clock counts as
    standing still. Who shares a node's seqs with others in time (a lease) moves it on.
    """

    def __init__(self, node: int, *, after: int = 0, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        if not 0 <= node <= MAX_NODE:
            raise ValueError(f"node={node} is outside 0..{MAX_NODE}; give each recorder its own number in that range")
        self._node = node
        self._clock_ms = clock_ms
        self.until_ms = NEVER_MS
        self._ms = unix_ms_of(after) + 1 if after else EPOCH_MS
        self._counter = -1

    @property
    def node(self) -> int:
        """The recorder node in every seq of this source."""
        return self._node

    @property
    def at_ms(self) -> int:
        """The millisecond of the last seq; of `after`, and one more, where none was given yet."""
        return self._ms

    def next(self) -> int:
        """A seq greater than every one before it.

        Raises:
            Retryable: there is none left up to `until_ms`.
        """
        now = self._clock_ms()
        if self._ms < now <= self.until_ms:
            self._ms, self._counter = now, -1
        self._counter += 1
        if self._counter > MAX_COUNTER:
            self._ms, self._counter = self._ms + 1, 0
        if self._ms == SKIPPED_MS:
            self._ms, self._counter = self._ms + 1, 0
        if self._ms > self.until_ms:
            raise Retryable(f"node={self._node} has no seq left up to {self.until_ms} ms")
        return seq_of(self._ms, self._node, self._counter)
