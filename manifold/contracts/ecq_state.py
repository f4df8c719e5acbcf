"""The state of a compacted queue, from all its records: in any order, and with repeats."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class QueueState(NamedTuple):
    """A queue as docs/ecq.md describes it."""

    live: dict[str, int]  # key → seq of its newest message
    acknowledged: frozenset[int]  # the live messages that were acknowledged; the others are pending
    epoch: int  # seq of the last rewind, 0: there was none
    position: int | None  # the greatest seq that was acknowledged; None: none was


def epoch_of(seq: int, epoch: int, rewinds: Sequence[int]) -> int:
    """The epoch in which an acknowledgement of `seq` counts that was recorded with `epoch`; `rewinds` are in order.

    A message that was written after a rewind cannot have been acknowledged before it: so a queue in Redis need not remember the
    epoch of a client of which nothing is live.
    """
    before = bisect_left(rewinds, seq)
    return max(epoch, rewinds[before - 1]) if before else epoch


def fold(appends: Iterable[tuple[int, str]], acks: Iterable[tuple[int, int]], rewinds: Iterable[tuple[int, int]]) -> QueueState:
    """The state that appends (seq, key), acknowledgements (seq, epoch) and rewinds (seq, first seq to be sent again) come to."""
    live: dict[str, int] = {}
    for seq, key in appends:
        live[key] = max(seq, live.get(key, 0))
    moved = sorted(set(rewinds))
    told = {(seq, epoch_of(seq, epoch, [rewind for rewind, _ in moved])) for seq, epoch in set(acks)}
    acknowledged = {seq for seq, epoch in told if not any(rewind > epoch and first <= seq for rewind, first in moved)}
    position: int | None = None
    for _, is_ack, seq in sorted([(rewind, 0, first - 1) for rewind, first in moved] + [(epoch, 1, seq) for seq, epoch in told]):
        if is_ack:
            position = seq if position is None else max(position, seq)
        elif position is not None:
            position = max(0, min(position, seq))
    return QueueState(live, frozenset(acknowledged & set(live.values())), max((r for r, _ in moved), default=0), position)
