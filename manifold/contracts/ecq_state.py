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
    """Return the epoch in which the acknowledgement of message `seq` counts: `epoch`, with which it was recorded, or a later one.

    A message written after a rewind cannot have been acknowledged before this rewind, so the epoch is at least the last rewind
    before `seq`. That is why a queue in Redis need not remember the epoch of a client without live messages.

    `rewinds` are the seqs of all rewinds, sorted.
    """
    earlier_rewinds = bisect_left(rewinds, seq)  # number of rewinds before the message
    if earlier_rewinds == 0:
        return epoch
    return max(epoch, rewinds[earlier_rewinds - 1])


def fold(
    appends: Iterable[tuple[int, str]],
    acks: Iterable[tuple[int, int]],
    rewinds: Iterable[tuple[int, int]],
    expiries: Iterable[tuple[int, int]] = (),
) -> QueueState:
    """Fold the records into the state of the queue.

    Appends are (seq, key), acknowledgements and expiries (seq, epoch), rewinds (seq, first seq to redeliver). An epoch is the seq
    of the rewind that began it. A later rewind revokes the acknowledgements of all messages that it redelivers.
    """
    live: dict[str, int] = {}
    for seq, key in appends:
        live[key] = max(seq, live.get(key, 0))
    sorted_rewinds = sorted(set(rewinds))
    rewind_seqs = [rewind for rewind, _ in sorted_rewinds]
    distinct_expiries = set(expiries)
    expired = {seq for seq, _ in distinct_expiries}
    # Acknowledgements and expiries, each with the epoch in which it counts.
    endings = {(seq, epoch_of(seq, epoch, rewind_seqs)) for seq, epoch in {*acks, *distinct_expiries}}
    acknowledged = {seq for seq, epoch in endings if not _is_redelivered(seq, epoch, sorted_rewinds)}
    live_seqs = frozenset(live.values())
    return QueueState(
        live=live,
        acknowledged=live_seqs & (acknowledged - expired),
        epoch=max(rewind_seqs, default=0),
        position=_position(sorted_rewinds, endings),
        expired=live_seqs & expired,
    )


def _is_redelivered(seq: int, epoch: int, rewinds: Iterable[tuple[int, int]]) -> bool:
    """Whether a rewind after this epoch redelivers the message, which was acknowledged in this epoch."""
    return any(rewind > epoch and first_redelivered <= seq for rewind, first_redelivered in rewinds)


def _position(rewinds: Iterable[tuple[int, int]], endings: Iterable[tuple[int, int]]) -> int | None:
    """Return the position after all rewinds and all endings (acknowledgements and expiries); None if nothing has ended.

    Within an epoch, the rewind that began it takes effect first.
    """
    # Moves are sorted by (epoch, whether it is forward, seq). False sorts before True, so an epoch's rewind comes first.
    moves = [(rewind, False, first_redelivered - 1) for rewind, first_redelivered in rewinds]
    moves += [(epoch, True, seq) for seq, epoch in endings]
    position: int | None = None
    for _, is_forward, seq in sorted(moves):
        if is_forward:
            position = seq if position is None else max(position, seq)
        elif position is not None:  # a rewind moves the position back, never forward; before the first ending there is none
            position = max(0, min(position, seq))
    return position
