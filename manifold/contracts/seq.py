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
NEVER_MS = (MAX_SEQ >> TIME_SHIFT) + EPOCH_MS  # the last millisecond that a seq can represent
# Redis sorts a queue by the seq as a double; entries that round to the same double are sorted by their decimal digits. This
# matches the order of seqs except when the number of digits grows, in July 2027: no seq is issued in that one millisecond.
SKIPPED_MS = (10**18 >> TIME_SHIFT) + EPOCH_MS


def wall_clock_ms() -> int:
    """Return milliseconds since 1970-01-01 UTC by the machine's clock."""
    return time.time_ns() // 1_000_000


def seq_of(unix_ms: int, node: int, counter: int) -> int:
    """Build a seq from its parts; `unix_ms` counts from 1970."""
    return (unix_ms - EPOCH_MS) << TIME_SHIFT | node << COUNTER_BITS | counter


def unix_ms_of(seq: int) -> int:
    """Return when `seq` was issued, in milliseconds since 1970-01-01 UTC."""
    return (seq >> TIME_SHIFT) + EPOCH_MS


def node_of(seq: int) -> int:
    """Return the recorder node that issued `seq`."""
    return seq >> COUNTER_BITS & MAX_NODE


def datetime_of(seq: int) -> datetime:
    """Return when `seq` was issued (UTC, to the millisecond)."""
    return EPOCH + timedelta(milliseconds=seq >> TIME_SHIFT)


def first_seq_at(instant: datetime) -> int:
    """Return the smallest seq that can be issued at or after `instant` (timezone-aware); 0 before the epoch.

    Raises:
        ValueError: `instant` has no time zone.
    """
    if instant.tzinfo is None:
        raise ValueError(f"{instant!r} has no time zone; pass an aware datetime, for example with tzinfo=UTC")
    rounded_up_ms = -((EPOCH - instant) // timedelta(milliseconds=1))  # `//` rounds down, so the negated quotient is rounded up
    return max(0, rounded_up_ms) << TIME_SHIFT


class SeqSource:
    """Issues strictly increasing seqs, even if the clock stalls or steps back.

    While the clock stalls or has stepped back, the counter continues in the last millisecond. When the counter is exhausted, the
    source uses the next millisecond without waiting for the clock, which catches up. `after` is the last seq known to be issued
    by this node (from its journal and archive), so that a restart with a clock in the past cannot repeat a seq.

    `until_ms` is the last millisecond for which this source may issue seqs; a clock beyond `until_ms` counts as stalled. A
    process that holds the node number by a lease extends `until_ms` whenever it renews the lease.
    """

    def __init__(self, node: int, *, after: int = 0, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        if not 0 <= node <= MAX_NODE:
            raise ValueError(f"node={node} is outside 0..{MAX_NODE}; give each recorder its own number in that range")
        self._node = node
        self._clock_ms = clock_ms
        self.until_ms = NEVER_MS
        self._ms = EPOCH_MS  # the millisecond of the last seq
        if after != 0:
            self._ms = unix_ms_of(after) + 1
        self._counter = -1  # the counter of the last seq; -1: this millisecond has no seq yet

    @property
    def node(self) -> int:
        """The recorder node in every seq of this source."""
        return self._node

    @property
    def at_ms(self) -> int:
        """The millisecond of the last seq; before the first seq, the millisecond of `after` plus one."""
        return self._ms

    def next(self) -> int:
        """Return a seq greater than every previous one.

        Raises:
            Retryable: no seq is left up to `until_ms`.
        """
        now = self._clock_ms()
        if self._ms < now <= self.until_ms:
            self._ms, self._counter = now, -1
        # Otherwise, the clock has not advanced or is beyond `until_ms`, and the counter continues in the last millisecond.
        self._counter += 1
        if self._counter > MAX_COUNTER:  # the millisecond has no seq left
            self._ms, self._counter = self._ms + 1, 0
        if self._ms == SKIPPED_MS:
            self._ms, self._counter = self._ms + 1, 0
        if self._ms > self.until_ms:
            raise Retryable(f"node={self._node} has no seq left up to {self.until_ms} ms")
        return seq_of(self._ms, self._node, self._counter)
