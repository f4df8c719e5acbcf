"""The state of a compacted queue, folded from all its records, in any order and with duplicates."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class QueueState(NamedTuple):
    """The state of a queue; docs/guides/compacted-queues.md describes it."""

    live: dict[str, int]  # key → seq of its newest message
    acknowledged: frozenset[int]  # acknowledged live messages; those neither acknowledged nor expired are pending
    epoch: int  # seq of the last rewind; 0: none
    position: int | None  # greatest acknowledged or expired seq; None: none
    expired: frozenset[int]  # live messages whose retention passed while pending; no rewind brings them back


def epoch_of(seq: int, epoch: int, rewinds: Sequence[int]) -> int:
    """Return the epoch in which an acknowledgement of `seq` counts, if it was recorded with `epoch`; `rewinds` are sorted.

    A message written after a rewind cannot have been acknowledged before it, so a queue in Redis need not remember the epoch of a
    client without live messages.
    """
    before = bisect_left(rewinds, seq)
    return max(epoch, rewinds[before - 1]) if before else epoch


def fold(
    appends: Iterable[tuple[int, str]],
    acks: Iterable[tuple[int, int]],
    rewinds: Iterable[tuple[int, int]],
    expiries: Iterable[tuple[int, int]] = (),
) -> QueueState:
    """Fold the records into the state of the queue.

    Appends are (seq, key), acknowledgements and expiries (seq, epoch), rewinds (seq, first seq to redeliver).
    """
    live: dict[str, int] = {}
    for seq, key in appends:
        live[key] = max(seq, live.get(key, 0))
    moved = sorted(set(rewinds))
    ended, seqs = set(expiries), [rewind for rewind, _ in moved]
    expired = {seq for seq, _ in ended}
    settled = {(seq, epoch_of(seq, epoch, seqs)) for seq, epoch in {*acks, *ended}}
    acknowledged = {seq for seq, epoch in settled if not any(rewind > epoch and first <= seq for rewind, first in moved)}
    position: int | None = None
    for _, is_ack, seq in sorted(
        [(rewind, 0, first - 1) for rewind, first in moved] + [(epoch, 1, seq) for seq, epoch in settled]
    ):
        if is_ack:
            position = seq if position is None else max(position, seq)
        elif position is not None:
            position = max(0, min(position, seq))
    newest = frozenset(live.values())
    return QueueState(live, newest & (acknowledged - expired), max(seqs, default=0), position, newest & expired)
