"""Proves what docs/guides/compacted-queues.md promises of compacted queues on a history, client by client. Pure.

Their lines stand under the name of the queue (`ecq/<client id>`), and `request` is the key. The words, exactly:

- lost: the newest message of a key that a receipt names, where neither it nor a newer one of the key was delivered.
- resurrected: messages that were put in flight, or delivered without the broker's DUP more than `LATE_S` later, after their
  acknowledgement was in Redis and without a rewind since; except where Redis was wiped within `DRAIN_S` of it, or went back.
- position gone back: positions in Redis below the one before, without a rewind or a loss of Redis in between.
"""

from collections.abc import Sequence

from tests.faults.history import Line, What
from tests.faults.verdict import Breach, Verdict

NEAR_S = 5.0  # seconds after a fault in which reconnecting clients are still affected
LATE_S = 45.0  # the longest time a copy may stay in the sockets of a paused process (30 s), plus a margin
DRAIN_S = 2.0  # outcomes move from Redis to the journal within a second, plus a margin


def check_queue(queue: str, lines: Sequence[Line], faults: Sequence[Line], verdict: Verdict) -> None:
    """Add one queue's part to the verdict; its lines are in the order of time."""
    verdict.ecq.update(line.what for line in lines)
    harmed = [(fault.at, (fault.until or fault.at) + NEAR_S) for fault in faults if fault.note.startswith("Redis")]
    seq_of = {line.sha1: line.seq for line in lines if line.what is What.ACCEPTED}
    newest: dict[str, int] = {}
    reached: dict[str, int] = {}
    ended: dict[int, float] = {}
    rewound = position_at = 0.0
    position = 0
    for line in lines:
        seq = line.seq if line.seq is not None else seq_of.get(line.sha1)
        match line.what:
            case What.ACCEPTED:
                newest[line.request] = max(newest.get(line.request, 0), line.seq or 0)
            case What.REWOUND:
                rewound = line.at
            case What.POSITION:
                if (line.seq or 0) < position and rewound < position_at and not _harmed(harmed, position_at, line.at):
                    verdict.breach(Breach.ECQ_POSITION_GONE_BACK, [(queue, position)])
                position, position_at = line.seq or 0, line.at
            case What.ENDED if seq is not None:
                ended[seq] = line.at
            case What.PUBLISHED if seq in ended and ended[seq] > rewound and not _harmed(harmed, ended[seq] - DRAIN_S, line.at):
                verdict.breach(Breach.ECQ_RESURRECTED, [(queue, seq)])
            case What.DELIVERED if seq is not None:
                reached[line.request] = max(reached.get(line.request, 0), seq)
                at = ended.get(seq)
                late = at is not None and at > rewound and line.at > at + LATE_S and not line.dup
                if late and not _harmed(harmed, (at or 0.0) - DRAIN_S, line.at):
                    verdict.breach(Breach.ECQ_RESURRECTED, [(queue, seq)])
    verdict.breach(Breach.ECQ_LOST, [(queue, seq) for key, seq in newest.items() if reached.get(key, 0) < seq])


def _harmed(harmed: Sequence[tuple[float, float]], since: float, until: float) -> bool:
    return any(began <= until and ended >= since for began, ended in harmed)
