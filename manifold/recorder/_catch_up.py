"""Replays what the queues lack, starting at their watermarks: outcomes first, then data, then the rest in seq order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog

from manifold.archive.journal import Journal
from manifold.archive.recorded import seq_ago
from manifold.contracts.ecq import ACKNOWLEDGEMENTS, EcqAck, Rewind
from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.errors import Retryable
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.seq import datetime_of, unix_ms_of, wall_clock_ms
from manifold.queues import NOT_LOADED, Queues, Watermarks
from manifold.recorder import _metrics
from manifold.recorder._direct_enqueuer import NO_OUTCOMES, DirectEnqueuer, Ended
from manifold.recorder._ecq_enqueuer import Known
from manifold.recorder._lake import Lake
from manifold.recorder._parser import Incoming, Parser
from manifold.recorder._replay import ReplaySource

MAX_LOST_S = 7200.0  # Redis saves at least every hour by itself; if it lost more than this, a rebuild is faster
DATA_BEFORE_S = 300.0  # data this much older is replayed too: a rebuild may have seen a trigger's segment before its data's
MESSAGE_BATCH_SIZE, OUTCOME_BATCH_SIZE = 200, 1000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Gap:
    """What the recorder itself knows about a gap in the queues."""

    upto: int  # greatest seq that was processed
    since: int | None  # first seq that was not handed over; None: all were
    same_redis: bool  # whether Redis is the one that got everything before, and has not restarted since


class CatchUp:
    """Keeps this recorder's watermarks in the queues: messages up to a watermark are in the queues, later ones are replayed.

    Raises:
        redis.RedisError, Retryable, OSError, pyarrow.ArrowException: from every method; call `close_gap` again.
    """

    def __init__(
        self,
        direct_enqueuer: DirectEnqueuer,
        queues: Queues,
        lake: Lake,
        recorded: ReplaySource,
        parser: Parser,
        journal: Journal,
        node: int,
    ) -> None:
        self._direct_enqueuer, self._queues, self._lake, self._recorded = direct_enqueuer, queues, lake, recorded
        self._parser, self._journal, self._node = parser, journal, node
        self._watermarks: Watermarks | None = None  # as last read or written here

    async def advance(self, seq: int) -> None:
        """Advance the watermark: everything up to `seq` is in the queues. Call `close_gap` once before.

        Raises:
            Retryable: another process changed or reloaded the queues after this one last read or wrote the watermark; call
                `close_gap`.
        """
        assert self._watermarks is not None
        self._watermarks = await self._queues.advance_watermark(self._node, self._watermarks, seq)

    async def leave(self) -> None:
        """Delete the watermark, because this recorder hands nothing over."""
        await self._queues.drop_watermark(self._node)

    async def close_gap(self, gap: Gap, passed: Callable[[], int]) -> None:
        """Replay what the queues lack, and advance the watermark to the seq that `passed` returns.

        Raises:
            Retryable: the queues are not loaded, or lost so much that they count as not loaded from now on.
        """
        left = self._watermarks.enqueued_seq if self._watermarks is not None else None
        self._watermarks = marks = await self._queues.marks(self._node)
        self._direct_enqueuer.load_id = marks.load_id
        if marks.load_id is None:
            raise Retryable(NOT_LOADED)
        same = gap.same_redis and marks.enqueued_seq is not None and marks.enqueued_seq >= (left or 0)
        since = await self._since(marks.complete_seq, marks, gap, Stream.TRIGGER)
        since_ecq = await self._since(marks.complete_ecq_seq, marks, gap, Stream.ECQ)
        rewound = None if same else await self._make_up(marks, gap, since, since_ecq)
        await self.advance(max(0, min(since, since_ecq) - 1))  # from now on, the queues keep later ended entries
        if min(since, since_ecq) <= gap.upto:
            # A Redis that lost nothing remembers the ended entries that may be offered again; for another one, the lake has them.
            ended = NO_OUTCOMES if same else await self._lake.ended_since(datetime_of(since))
            await self._offer_data(since, gap.upto)
            await self._offer_ecq(since_ecq, gap.upto, rewound)
            await self._offer_triggers(since, gap.upto, ended)
        await self.advance(passed())

    async def _since(self, marked: int | None, marks: Watermarks, gap: Gap, stream: Stream) -> int:
        """The first seq of a stream that the queues may lack."""
        if marked is None and marks.is_rebuilt:  # the lake has none: replay all, but from the first recorded seq
            first = await asyncio.to_thread(self._recorded.first, 0, gap.upto, (stream,))
            return gap.upto + 1 if first is None else first
        return _since(marked, gap, self._journal.last_seq)

    async def _make_up(self, marks: Watermarks, gap: Gap, since: int, since_ecq: int) -> list[Known]:
        """Repeat ended entries, acknowledgements and rewinds: this Redis may have rolled back, or was loaded from the lake.

        Returns the changes to compacted queues that were rewound, which must be repeated once their messages are there.
        """
        first = await asyncio.to_thread(self._recorded.first, min(since, since_ecq), gap.upto)
        far = _is_too_far(marks, gap, first)
        without_mark = None if far else first  # without a watermark, repeat everything recorded, or nothing before a rebuild
        ended_since = since if marks.complete_seq is not None else without_mark
        changed_since = since_ecq if marks.complete_ecq_seq is not None else without_mark
        if ended_since is not None:
            await self._replay_outcomes(ended_since)
        rewound = [] if changed_since is None else await self._replay_ecq_changes(changed_since)
        if ended_since is not None or changed_since is not None:
            await self._queues.require_full_populate()
        if far:
            await self._queues.mark_incomplete(marks)
            raise Retryable(f"Redis went back to an older state, and {NOT_LOADED}")
        return rewound

    async def _replay_outcomes(self, since: int) -> None:
        source, ended = self._recorded.outcomes(since), 0
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            records = [record for envelope in group if (record := _record_of(envelope)) is not None]
            await self._direct_enqueuer.end(records, wall_clock_ms())
            ended += len(records)
        if ended:
            log.info("outcomes replayed", outcomes=ended, since_seq=since)

    async def _replay_ecq_changes(self, since: int) -> list[Known]:
        """Repeat acknowledgements and rewinds. Their order matters only in queues that were rewound: these come last."""
        source, changed = self._recorded.ecq_changes(since), 0
        rewinds: list[tuple[int, Rewind]] = []
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            rewinds += [(e.seq, said) for e in group if isinstance(said := self._parser.read_back(e).ecq, Rewind)]
        owners, rewound = {rewind.client_id for _, rewind in rewinds}, list[Known](rewinds)
        source = self._recorded.ecq_changes(since)
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            acks = [record for envelope in group if (record := _ack_of(envelope)) is not None]
            rewound += [record for record in acks if record.client_id in owners]
            await self._direct_enqueuer.ecq.replay([record for record in acks if record.client_id not in owners])
            changed += len(acks)
        await self._direct_enqueuer.ecq.replay(rewound)
        if changed or rewound:
            log.info("acknowledgements and rewinds replayed", acknowledgements=changed, since_seq=since)
        return rewound

    async def _offer_data(self, since: int, upto: int) -> None:
        async for group in self._groups(Stream.DATA, seq_ago(since, DATA_BEFORE_S), upto):
            await self._direct_enqueuer.offer(group)
            self._note(group)

    async def _offer_ecq(self, since: int, upto: int, rewound: list[Known] | None) -> None:
        """Replay writes and rewinds. If `rewound` is given, it includes the rewinds, in order with the acknowledgements."""
        async for group in self._groups(Stream.ECQ, since, upto):
            await self._direct_enqueuer.offer([i for i in group if rewound is None or not isinstance(i.ecq, Rewind)])
            for incoming in group:
                incoming.applied = incoming.offerable
            self._note(group)
        await self._direct_enqueuer.ecq.replay(rewound or ())

    async def _offer_triggers(self, since: int, upto: int, ended: Ended) -> None:
        async for group in self._groups(Stream.TRIGGER, since, upto):
            await self._direct_enqueuer.offer(group, skip=ended)
            self._note(group)
            await self.advance(group[-1].seq)  # if the next group fails, continue here: data and compacted queues are complete

    async def _groups(self, stream: Stream, since: int, upto: int) -> AsyncIterator[list[Incoming]]:
        source, offered = self._recorded.messages(stream, since, upto), 0
        while group := await asyncio.to_thread(self._next_group, source):
            yield group
            offered += len(group)
        _metrics.OFFERED_AGAIN.inc(offered)
        if offered:
            log.info("messages replayed", stream=stream, messages=offered, since_seq=since)

    def _next_group(self, source: Iterator[Envelope]) -> list[Incoming]:
        return [self._parser.read_back(envelope) for envelope in islice(source, MESSAGE_BATCH_SIZE)]

    def _note(self, group: Sequence[Incoming]) -> None:
        for file in self._journal.files:
            mine = [i.annotation for i in group if file.first_seq <= i.seq <= file.last_seq and was_offerable(i)]
            if mine:
                self._journal.annotate(file, mine)


def was_offerable(incoming: Incoming) -> bool:
    """Whether the message needed to be enqueued when it arrived."""
    return incoming.envelope.refused_because is None and incoming.envelope.duplicate_of is None


def _since(marked: int | None, gap: Gap, newest: int) -> int:
    """The first seq that the queues may lack, given that their watermark is `marked`."""
    if marked is None:
        return 0
    if marked > max(gap.upto, newest) and gap.since is not None:  # the watermark belongs to a lost journal, and to its clock
        return min(marked + 1, gap.since)
    return marked + 1


def _is_too_far(marks: Watermarks, gap: Gap, first: int | None) -> bool:
    """Whether replaying the lost messages would take longer than a rebuild. `first` is the first missing seq."""
    lost_upto = gap.since or gap.upto
    if first is None or first >= lost_upto or marks.is_rebuilt:
        return False  # nothing is lost, or only what a rebuild did not find in the lake
    return unix_ms_of(lost_upto) - unix_ms_of(first) > MAX_LOST_S * 1000


def _record_of(envelope: Envelope) -> OutcomeRecord | None:
    """Parse an outcome; None if the message is not one, because another program put it into the archive."""
    try:
        return OutcomeRecord.from_wire(envelope.payload)
    except ValueError:
        return None


def _ack_of(envelope: Envelope) -> EcqAck | None:
    """Parse an acknowledgement; None if the message is something else, or another program's."""
    try:
        return EcqAck.from_wire(envelope.payload) if envelope.topic.startswith(ACKNOWLEDGEMENTS) else None
    except ValueError:
        return None
