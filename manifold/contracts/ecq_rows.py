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

    __slots__ = ("_acked_after", "_expired", "_lowest_redelivered", "_rewinds", "acked_at", "acked_seq")

    def __init__(self, rows: Iterable[StateRow]) -> None:
        distinct = set(rows)
        first_redelivered = _first_redelivered(distinct)
        self.acked_seq: int | None = None  # the position; None: nothing acknowledged yet
        self.acked_at: datetime | None = None  # when the position last moved forward
        self._acked_after: dict[int, int] = {}  # seq → number of rewinds that preceded its last acknowledgement
        self._expired = _first_expiries(distinct)
        self._rewinds = sorted(first_redelivered)  # seqs of the rewinds
        # By index of the rewind: the smallest seq that this rewind or any later one redelivers.
        self._lowest_redelivered = _minima_onwards([first_redelivered[rewind] for rewind in self._rewinds])
        for rewind_count, rank, seq, at in sorted(map(self._sort_key, distinct)):
            if rank == _REWOUND:
                # A rewind moves the position back, never forward. If nothing has ended yet, there is no position to move.
                if self.acked_seq is not None:
                    self.acked_seq = min(self.acked_seq, max(0, seq))
                continue
            if rank == _ACKNOWLEDGED:
                self._acked_after[seq] = rewind_count
            # Compaction may have removed the row that gave this position its time; the position row gives the time instead.
            is_time_of_position = rank == _POSITION and seq == self.acked_seq
            if self.acked_seq is None or seq > self.acked_seq or is_time_of_position:
                self.acked_seq, self.acked_at = seq, at

    def _sort_key(self, row: StateRow) -> tuple[int, int, int, datetime]:
        """Return the sort key: number of rewinds up to the row's epoch, rank of its kind, seq, and time.

        Within an epoch, the rewind comes first, then positions, then acknowledgements and expiries. The key has the number of
        rewinds instead of the epoch, because rows may have different epochs although no known rewind lies between these epochs.
        """
        rank, epoch = _RANK_OF_KIND[row.kind], row.epoch
        # `epoch_of` moves a row that was recorded with too old an epoch to the epoch in which it counts. A rewind begins an
        # epoch, and keeps it. For a position to which a rewind moved back, the call changes nothing: its epoch is not older
        # than that rewind.
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
        rewind_count = self._acked_after.get(seq)
        if rewind_count is None or seq in self._expired:
            return False
        if rewind_count == len(self._rewinds):  # no rewind is later than the acknowledgement
            return True
        return seq < self._lowest_redelivered[rewind_count]  # the count is also the index of the first later rewind


def _first_redelivered(rows: Iterable[StateRow]) -> dict[int, int]:
    """Map the seq of each rewind to the first seq that it redelivers: the smallest one, if a rewind has several rows."""
    first_redelivered: dict[int, int] = {}
    for row in rows:
        if row.kind == StateKind.REWOUND:
            first = row.acked_seq + 1  # see `StateKind.REWOUND`
            first_redelivered[row.epoch] = min(first, first_redelivered.get(row.epoch, first))
    return first_redelivered


def _first_expiries(rows: Iterable[StateRow]) -> dict[int, datetime]:
    """Map the seq of each expired message to the earliest time at which it expired."""
    expiries: dict[int, datetime] = {}
    for row in rows:
        if row.kind == StateKind.EXPIRED:
            expiries[row.acked_seq] = min(row.acked_at, expiries.get(row.acked_seq, row.acked_at))
    return expiries


def _minima_onwards(numbers: list[int]) -> list[int]:
    """Return, for each index, the smallest of the numbers from this index to the end."""
    minima = list(numbers)
    for index in reversed(range(len(minima) - 1)):
        minima[index] = min(minima[index], minima[index + 1])
    return minima


class Compaction(NamedTuple):
    """Rows of one client that compaction removes and adds."""

    removed: list[StateRow]
    added: list[StateRow]


def compact(rows: Collection[StateRow], live: Collection[int], *, older_than: datetime) -> Compaction:
    """Replace rows by fewer rows that fold to the same state, now and after any later record.

    `live` are the seqs of the client's live messages. Only rows with `acked_at` before `older_than` are replaced. Newer rows are
    kept, because records still arrive late: rewinds are needed, so that a late acknowledgement of an earlier epoch does not
    count; and a message may arrive after its acknowledgement.

    Of the older rows, compaction keeps the acknowledgements of live messages that count, the first expiry of each live message,
    and the last rewind, which sets the epoch. Without live messages there is nothing to redeliver, so no rewind is kept. If the
    kept rows do not give the position, a row for the position is added, or the last rewind is changed to move the position as far
    back as the dropped rewinds did.
    """
    old = {row for row in rows if row.acked_at < older_than}
    state = RecordedState(old)
    kept = _needed_rows(old, live, state)
    if state.acked_seq is not None and state.acked_at is not None:
        last_epoch = max(row.epoch for row in old)
        kept = _with_position(kept, state.acked_seq, state.acked_at, last_epoch)
    return Compaction(sorted(old - kept), sorted(kept - old))


def _needed_rows(rows: Iterable[StateRow], live: Collection[int], state: RecordedState) -> set[StateRow]:
    """Return the rows that compaction keeps: the last rewind, and of each live message the ending that counts in `state`.

    An ending is an acknowledgement or an expiry. Without live messages, no row is kept. Position rows never are: `_with_position`
    adds one if it is needed.
    """
    last_rewind: StateRow | None = None
    endings: dict[int, StateRow] = {}  # by the seq of the message
    for row in sorted(rows, key=lambda row: (row.epoch, row.acked_seq, row.acked_at)):
        if row.kind == StateKind.REWOUND:
            # If there are several rows of the last rewind, the first one goes back furthest.
            if live and row.epoch == state.epoch and last_rewind is None:
                last_rewind = row
        elif row.acked_seq not in live:
            continue
        elif row.kind == StateKind.EXPIRED and row.acked_at == state.expired_at(row.acked_seq):
            endings.setdefault(row.acked_seq, row)
        elif row.kind == StateKind.ACKNOWLEDGED and state.is_acknowledged(row.acked_seq):
            earlier = endings.get(row.acked_seq)
            if earlier is None or earlier.epoch < row.epoch:  # the last epoch, and its first row
                endings[row.acked_seq] = row
    needed = set(endings.values())
    if last_rewind is not None:
        needed.add(last_rewind)
    return needed


def _with_position(rows: set[StateRow], acked_seq: int, acked_at: datetime, last_epoch: int) -> set[StateRow]:
    """Return the rows, changed so that they fold to this position (seq and time)."""
    position = RecordedState(rows).acked_seq
    if position is not None and position > acked_seq:
        # An expiry was kept, which puts the position after `acked_seq`, but not the rewind that moved it back behind the expiry.
        # Let the last rewind, the only one in `rows`, move it back to `acked_seq`.
        rows = {row._replace(acked_seq=acked_seq) if row.kind == StateKind.REWOUND else row for row in rows}
    folded = RecordedState(rows)
    if (folded.acked_seq, folded.acked_at) == (acked_seq, acked_at):
        return rows
    return rows | {StateRow(acked_seq, acked_at, last_epoch, StateKind.POSITION.value)}
