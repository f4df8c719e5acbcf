"""Folds one client's `ecq_state` rows, in any order, into a state, and finds the rows that compaction may remove. Pure.

The rule is that of `manifold.contracts.ecq_state.fold`; a test compares the two. Pipelines group the rows of tables by client
and call this.
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


_REWOUND, _POSITION, _ACKNOWLEDGED = range(3)  # their order within an epoch
_IN_EPOCH = {
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
        self._acked_after: dict[int, int] = {}  # seq → number of rewinds before its last acknowledgement
        self._expired: dict[int, datetime] = {}  # seq → time of expiry
        known = set(rows)
        firsts: dict[int, int] = {}  # rewind → first seq that it redelivers
        for row in known:
            if row.kind == StateKind.REWOUND:
                firsts[row.epoch] = min(row.acked_seq + 1, firsts.get(row.epoch, row.acked_seq + 1))
            elif row.kind == StateKind.EXPIRED:
                self._expired[row.acked_seq] = min(row.acked_at, self._expired.get(row.acked_seq, row.acked_at))
        self._rewinds = sorted(firsts)
        for rewinds, kind, seq, at in sorted(map(self._in_order, known)):
            if kind == _REWOUND:
                if self.acked_seq is not None:
                    self.acked_seq = min(self.acked_seq, max(0, seq))
                continue
            if kind == _ACKNOWLEDGED:
                self._acked_after[seq] = rewinds
            if self.acked_seq is None or seq > self.acked_seq or (kind == _POSITION and seq == self.acked_seq):
                self.acked_seq, self.acked_at = seq, at
        self._undone_from = [firsts[rewind] for rewind in self._rewinds]  # smallest seq undone by this or any later rewind
        for place in range(len(self._undone_from) - 2, -1, -1):
            self._undone_from[place] = min(self._undone_from[place], self._undone_from[place + 1])

    def _in_order(self, row: StateRow) -> tuple[int, int, int, datetime]:
        """Return the sort key: number of preceding rewinds; after each rewind, the rewind itself, then positions, then the rest.

        Not the epoch: of two rows with an unknown rewind, compaction would keep another one than of two rows in one epoch.
        """
        kind, epoch = _IN_EPOCH[row.kind], row.epoch
        # For positions too: the rows they replace were acknowledged, or rewound to by a rewind with a greater seq.
        if kind != _REWOUND:
            epoch = epoch_of(row.acked_seq, epoch, self._rewinds)
        return bisect_right(self._rewinds, epoch), kind, row.acked_seq, row.acked_at

    @property
    def epoch(self) -> int:
        """Seq of the last rewind; 0: none."""
        return self._rewinds[-1] if self._rewinds else 0

    def expired_at(self, seq: int) -> datetime | None:
        """Return when the message expired, UTC; None: it did not. An expired message is never pending again."""
        return self._expired.get(seq)

    def is_acknowledged(self, seq: int) -> bool:
        """Whether the message counts as acknowledged. One that expired before its acknowledgement arrived does not."""
        later = self._acked_after.get(seq)
        if later is None or seq in self._expired:
            return False
        return later == len(self._rewinds) or seq < self._undone_from[later]


class Compaction(NamedTuple):
    """Rows of one client that compaction removes and adds."""

    removed: list[StateRow]
    added: list[StateRow]


def compact(rows: Collection[StateRow], live: Collection[int], *, settled_before: datetime) -> Compaction:
    """Compact the rows to fewer ones with the same result, now and after any later record.

    `live` are the seqs of the client's live messages. Rows younger than `settled_before` are kept: rewinds, so that a late
    acknowledgement of an earlier epoch does not count; acknowledgements, because their message may arrive late. Of older rows it
    keeps effective acknowledgements of live messages, the first expiry of each live message, the position, and the last rewind,
    which sets the epoch; without live messages there is nothing to rewind, and it is dropped. The last rewind also stands for
    earlier ones that moved the position back before an expired message.
    """
    old = {row for row in rows if row.acked_at < settled_before}
    came_to = RecordedState(old)
    acked: dict[int, StateRow] = {}
    kept: set[StateRow] = set()
    for row in sorted(old, key=lambda row: (row.epoch, row.acked_seq, row.acked_at)):
        if row.kind == StateKind.REWOUND:
            if live and row.epoch == came_to.epoch and not kept:
                kept.add(row)
        elif row.acked_seq not in live:
            continue
        elif row.kind == StateKind.EXPIRED and row.acked_at == came_to.expired_at(row.acked_seq):
            acked.setdefault(row.acked_seq, row)
        elif row.kind == StateKind.ACKNOWLEDGED and came_to.is_acknowledged(row.acked_seq):
            known = acked.get(row.acked_seq)
            if known is None or known.epoch < row.epoch:
                acked[row.acked_seq] = row
    kept.update(acked.values())
    if came_to.acked_seq is not None and came_to.acked_at is not None:
        if (RecordedState(kept).acked_seq or 0) > came_to.acked_seq:
            # An expiry stays, the rewind that moved the position back before it does not: the last one moves it back that far.
            kept = {row._replace(acked_seq=came_to.acked_seq) if row.kind == StateKind.REWOUND else row for row in kept}
        now = RecordedState(kept)
        if (now.acked_seq, now.acked_at) != (came_to.acked_seq, came_to.acked_at):
            last = max(row.epoch for row in old)
            kept.add(StateRow(came_to.acked_seq, came_to.acked_at, last, StateKind.POSITION.value))
    return Compaction(sorted(old - kept), sorted(kept - old))
