"""Folds one client's `ecq_state` rows, in any order, into a state, and finds the rows that compaction may remove. Pure.

The result is the same as that of `manifold.contracts.ecq_state.fold`; a test compares the two. Pipelines group the rows by client
and call these functions for each client.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

from manifold.contracts.ecq_state import epoch_of
from manifold.contracts.tables import StateKind


class StateRow(NamedTuple):
    """A row of `ecq_state` of one client."""

    acked_seq: int
    acked_at: datetime
    epoch: int
    kind: str  # a `StateKind`


_REWOUND, _POSITION, _ACKNOWLEDGED = range(3)  # ranks by which the rows of one epoch are sorted
_RANK_OF_KIND = {
    StateKind.REWOUND.value: _REWOUND,
    StateKind.POSITION.value: _POSITION,
    StateKind.ACKNOWLEDGED.value: _ACKNOWLEDGED,
    StateKind.EXPIRED.value: _ACKNOWLEDGED,  # moves the position like an acknowledgement
}


class RecordedState:
    """The state folded from the rows of one client."""

    __slots__ = ("_acked_after", "_expired", "_rewinds", "_undone_from", "acked_at", "acked_seq")

    def __init__(self, rows: Iterable[StateRow]) -> None:
        self.acked_seq: int | None = None  # the position; None: nothing acknowledged yet
        self.acked_at: datetime | None = None
        self._acked_after: dict[int, int] = {}  # seq → number of rewinds that preceded its last acknowledgement
        self._expired: dict[int, datetime] = {}  # seq → time of expiry
        distinct = set(rows)
        first_redelivered: dict[int, int] = {}  # by the seq of the rewind
        for row in distinct:
            if row.kind == StateKind.REWOUND:
                first = row.acked_seq + 1
                first_redelivered[row.epoch] = min(first, first_redelivered.get(row.epoch, first))
            elif row.kind == StateKind.EXPIRED:
                self._expired[row.acked_seq] = min(row.acked_at, self._expired.get(row.acked_seq, row.acked_at))
        self._rewinds = sorted(first_redelivered)
        for rewinds, rank, seq, at in sorted(map(self._sort_key, distinct)):
            if rank == _REWOUND:
                if self.acked_seq is not None:
                    self.acked_seq = min(self.acked_seq, max(0, seq))
                continue
            if rank == _ACKNOWLEDGED:
                self._acked_after[seq] = rewinds
            if self.acked_seq is None or seq > self.acked_seq or (rank == _POSITION and seq == self.acked_seq):
                self.acked_seq, self.acked_at = seq, at
        # By index of the rewind: the smallest seq that this rewind or any later one redelivers.
        self._undone_from = [first_redelivered[rewind] for rewind in self._rewinds]
        for index in range(len(self._undone_from) - 2, -1, -1):
            self._undone_from[index] = min(self._undone_from[index], self._undone_from[index + 1])

    def _sort_key(self, row: StateRow) -> tuple[int, int, int, datetime]:
        """Return the sort key: number of rewinds up to the row's epoch, rank of its kind, seq, and time.

        Within an epoch, the rewind comes first, then positions, then acknowledgements and expiries. The key has the number of
        rewinds instead of the epoch, because rows may have different epochs although no known rewind lies between these epochs.
        """
        rank, epoch = _RANK_OF_KIND[row.kind], row.epoch
        # This holds for a position, too: it replaces rows whose seq was acknowledged, or was reached by a rewind with a greater
        # seq.
        if rank != _REWOUND:
            epoch = epoch_of(row.acked_seq, epoch, self._rewinds)
        return bisect_right(self._rewinds, epoch), rank, row.acked_seq, row.acked_at

    @property
    def epoch(self) -> int:
        """Seq of the last rewind; 0: none."""
        return self._rewinds[-1] if self._rewinds else 0

    def expired_at(self, seq: int) -> datetime | None:
        """Return when the message expired (UTC); None if it did not expire. An expired message is never pending again."""
        return self._expired.get(seq)

    def is_acknowledged(self, seq: int) -> bool:
        """Whether the message counts as acknowledged: no later rewind redelivers it, and it did not expire."""
        rewinds = self._acked_after.get(seq)  # also the index of the first later rewind
        if rewinds is None or seq in self._expired:
            return False
        return rewinds == len(self._rewinds) or seq < self._undone_from[rewinds]


class Compaction(NamedTuple):
    """Rows of one client that compaction removes and adds."""

    removed: list[StateRow]
    added: list[StateRow]


def compact(rows: Collection[StateRow], live: Collection[int], *, settled_before: datetime) -> Compaction:
    """Replace rows by fewer rows that fold to the same state, now and after any later record.

    `live` are the seqs of the client's live messages. Rows with `acked_at` at or after `settled_before` are kept: a late
    acknowledgement of an earlier epoch must not count, so rewinds are needed; and a message may arrive after its acknowledgement.

    Of the older rows, compaction keeps the acknowledgements of live messages that count, the first expiry of each live message,
    and the last rewind, which sets the epoch. Without live messages there is nothing to redeliver, and the rewind is dropped,
    too. If the kept rows do not give the position, a row for the position is added, or the last rewind is changed to move the
    position as far back as the dropped rewinds did.
    """
    old = {row for row in rows if row.acked_at < settled_before}
    state = RecordedState(old)
    ended: dict[int, StateRow] = {}  # by seq: the acknowledgement or expiry to keep
    kept: set[StateRow] = set()
    for row in sorted(old, key=lambda row: (row.epoch, row.acked_seq, row.acked_at)):
        if row.kind == StateKind.REWOUND:
            if live and row.epoch == state.epoch and not kept:
                kept.add(row)
        elif row.acked_seq not in live:
            continue
        elif row.kind == StateKind.EXPIRED and row.acked_at == state.expired_at(row.acked_seq):
            ended.setdefault(row.acked_seq, row)
        elif row.kind == StateKind.ACKNOWLEDGED and state.is_acknowledged(row.acked_seq):
            earlier = ended.get(row.acked_seq)
            if earlier is None or earlier.epoch < row.epoch:
                ended[row.acked_seq] = row
    kept.update(ended.values())
    if state.acked_seq is not None and state.acked_at is not None:
        if (RecordedState(kept).acked_seq or 0) > state.acked_seq:
            # An expiry was kept, but not the rewind that moved the position back before it. Let the last rewind move it that far.
            kept = {row._replace(acked_seq=state.acked_seq) if row.kind == StateKind.REWOUND else row for row in kept}
        compacted = RecordedState(kept)
        if (compacted.acked_seq, compacted.acked_at) != (state.acked_seq, state.acked_at):
            last_epoch = max(row.epoch for row in old)
            kept.add(StateRow(state.acked_seq, state.acked_at, last_epoch, StateKind.POSITION.value))
    return Compaction(sorted(old - kept), sorted(kept - old))
