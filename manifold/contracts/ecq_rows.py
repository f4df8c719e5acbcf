"""The state that a client's rows of `ecq_state` give, in any order, and the rows that compaction may remove. Pure.

The rule is that of `manifold.contracts.ecq_state.fold`; a test compares the two. Pipelines group the rows of
tables by client and call this.
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
    kind: str  # of `StateKind`


_REWOUND, _POSITION, _ACKNOWLEDGED = range(3)  # the order in which they count, within an epoch
_IN_EPOCH = {
    StateKind.REWOUND.value: _REWOUND,
    StateKind.POSITION.value: _POSITION,
    StateKind.ACKNOWLEDGED.value: _ACKNOWLEDGED,
    StateKind.EXPIRED.value: _ACKNOWLEDGED,  # it moves the position as an acknowledgement does
}


class RecordedState:
    """The state that the rows of one client give."""

    __slots__ = ("_acked_after", "_expired", "_rewinds", "_undone_from", "acked_at", "acked_seq")

    def __init__(self, rows: Iterable[StateRow]) -> None:
        self.acked_seq: int | None = None  # the position; None: nothing was acknowledged yet
        self.acked_at: datetime | None = None
        self._acked_after: dict[int, int] = {}  # seq → how many rewinds came before it was last acknowledged
        self._expired: dict[int, datetime] = {}  # seq → when
        known = set(rows)
        firsts: dict[int, int] = {}  # rewind → the first seq that it brings back
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
        self._undone_from = [firsts[rewind] for rewind in self._rewinds]  # by this and all later rewinds
        for place in range(len(self._undone_from) - 2, -1, -1):
            self._undone_from[place] = min(self._undone_from[place], self._undone_from[place + 1])

    def _in_order(self, row: StateRow) -> tuple[int, int, int, datetime]:
        """By the rewinds that came before; after each, itself first, then what compaction has put in the place of others.

        Not by the epoch: of two whose rewind is not known yet, compaction would keep another than of two in one epoch.
        """
        kind, epoch = _IN_EPOCH[row.kind], row.epoch
        # Of a position too: what it stands for was acknowledged, or rewound to by a rewind with a greater seq.
        if kind != _REWOUND:
            epoch = epoch_of(row.acked_seq, epoch, self._rewinds)
        return bisect_right(self._rewinds, epoch), kind, row.acked_seq, row.acked_at

    @property
    def epoch(self) -> int:
        """The last rewind, by its seq; 0: none."""
        return self._rewinds[-1] if self._rewinds else 0

    def expired_at(self, seq: int) -> datetime | None:
        """When the message with this seq expired, UTC; None: it did not. An expired message is never pending again."""
        return self._expired.get(seq)

    def is_acknowledged(self, seq: int) -> bool:
        """Whether the message with this seq counts as acknowledged. One that expired before its acknowledgement came does not."""
        later = self._acked_after.get(seq)
        if later is None or seq in self._expired:
            return False
        return later == len(self._rewinds) or seq < self._undone_from[later]


class Compaction(NamedTuple):
    """What compaction does to the rows of one client."""

    removed: list[StateRow]
    added: list[StateRow]


def compact(rows: Collection[StateRow], live: Collection[int], *, settled_before: datetime) -> Compaction:
    """Fewer rows that come to the same, now and with whatever else is recorded later.

    `live` are the seqs of the client's live messages. Rows that are younger than `settled_before` stay: a rewind, so that an
    acknowledgement of an earlier epoch that comes late does not count; an acknowledgement, because its message may come late.
    Of the others stay acknowledgements of live messages that count, the first expiry of each live message, the position, and the
    last rewind, which is the epoch; where nothing is live there is nothing that it could bring back.
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
    added: set[StateRow] = set()
    if came_to.acked_seq is not None and came_to.acked_at is not None:
        position = StateRow(came_to.acked_seq, came_to.acked_at, max(row.epoch for row in old), StateKind.POSITION.value)
        now = RecordedState(kept)
        if (now.acked_seq, now.acked_at) != (came_to.acked_seq, came_to.acked_at):
            (kept if position in old else added).add(position)
    return Compaction(sorted(old - kept), sorted(added))
