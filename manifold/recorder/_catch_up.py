"""Replays the messages that the queues lack, starting at the watermarks.

Outcomes are replayed first, then data, then compacted queues, and at last triggers; each of them in seq order.
"""

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

# If Redis lost more than this many seconds of messages, a rebuild is faster than a replay. Redis saves at least every hour.
MAX_LOST_S = 7200.0
# Data is replayed from this many seconds before the first trigger: a rebuild may read a segment with triggers before the segment
# with their data.
DATA_BEFORE_S = 300.0
MESSAGE_BATCH_SIZE, OUTCOME_BATCH_SIZE = 200, 1000

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap in the queues, as far as the recorder itself knows it."""

    upto: int  # greatest seq that the recorder has processed
    since: int | None  # first seq that was not handed over; None if every seq was
    same_redis: bool  # whether Redis got everything before the gap and has not restarted since


class CatchUp:
    """Keeps this recorder's watermarks in the queues. Messages up to a watermark are in the queues; later messages are replayed.

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
        self._watermarks: Watermarks | None = None  # as this object has last read or written them; None: never

    async def advance(self, seq: int) -> None:
        """Advance the watermark, because everything up to and including `seq` is in the queues. Call `close_gap` once before.

        Raises:
            Retryable: another process changed or reloaded the queues after this one last read or wrote the watermark; call
                `close_gap`.
        """
        assert self._watermarks is not None
        self._watermarks = await self._queues.advance_watermark(self._node, self._watermarks, seq)

    async def leave(self) -> None:
        """Delete the watermark of this recorder, which has the direct enqueue turned off."""
        await self._queues.drop_watermark(self._node)

    async def close_gap(self, gap: Gap, processed_seq: Callable[[], int]) -> None:
        """Replay the messages that the queues lack, and advance the watermark to the seq that `processed_seq` returns at the end.

        Raises:
            Retryable: the queues are not loaded. This is also so if Redis lost so much that the queues are now marked as not
                loaded.
        """
        last_enqueued_seq = self._watermarks.enqueued_seq if self._watermarks is not None else None
        self._watermarks = marks = await self._queues.marks(self._node)
        self._direct_enqueuer.load_id = marks.load_id
        if marks.load_id is None:
            raise Retryable(NOT_LOADED)
        has_kept_watermark = marks.enqueued_seq is not None and marks.enqueued_seq >= (last_enqueued_seq or 0)
        has_lost_nothing = gap.same_redis and has_kept_watermark
        since = await self._first_missing(marks.complete_seq, marks, gap, Stream.TRIGGER)
        since_ecq = await self._first_missing(marks.complete_ecq_seq, marks, gap, Stream.ECQ)
        rewound = None if has_lost_nothing else await self._repeat_changes(marks, gap, since, since_ecq)
        await self.advance(max(0, min(since, since_ecq) - 1))  # from now on, the queues remember later entries that end
        if min(since, since_ecq) <= gap.upto:
            # A Redis that lost nothing remembers the ended entries that the replay may offer again. For any other Redis, the lake
            # lists them.
            ended = NO_OUTCOMES if has_lost_nothing else await self._lake.ended_since(datetime_of(since))
            await self._offer_data(since, gap.upto)
            await self._offer_ecq(since_ecq, gap.upto, rewound)
            await self._offer_triggers(since, gap.upto, ended)
        await self.advance(processed_seq())

    async def _first_missing(self, complete_seq: int | None, marks: Watermarks, gap: Gap, stream: Stream) -> int:
        """The first seq of a stream that the queues may lack; `complete_seq` is the stream's watermark, None if it has none."""
        if complete_seq is None and marks.is_rebuilt:
            # The rebuild found nothing of this stream in the lake, so everything that is recorded is replayed.
            first = await asyncio.to_thread(self._recorded.first, 0, gap.upto, (stream,))
            return gap.upto + 1 if first is None else first
        return _seq_after(complete_seq, gap, self._journal.last_seq)

    async def _repeat_changes(self, marks: Watermarks, gap: Gap, since: int, since_ecq: int) -> list[Known]:
        """Repeat outcomes, acknowledgements and rewinds: this Redis may have rolled back, or was loaded from the lake.

        Returns the acknowledgements and rewinds of the compacted queues that were rewound. They must be repeated after the
        messages of these queues are replayed.
        """
        first_missing = await asyncio.to_thread(self._recorded.first, min(since, since_ecq), gap.upto)
        needs_rebuild = _needs_rebuild(marks, gap, first_missing)
        # Without a watermark, repeat all recorded changes; but none of them if a rebuild follows.
        default_since = None if needs_rebuild else first_missing
        outcomes_since = since if marks.complete_seq is not None else default_since
        changes_since = since_ecq if marks.complete_ecq_seq is not None else default_since
        if outcomes_since is not None:
            await self._replay_outcomes(outcomes_since)
        rewound = [] if changes_since is None else await self._replay_ecq_changes(changes_since)
        if outcomes_since is not None or changes_since is not None:
            await self._queues.require_full_populate()
        if needs_rebuild:
            await self._queues.mark_incomplete(marks)
            raise Retryable(f"Redis went back to an older state, and {NOT_LOADED}")
        return rewound

    async def _replay_outcomes(self, since: int) -> None:
        """End again the entries whose outcomes were recorded from the seq `since` on."""
        source, count = self._recorded.outcomes(since), 0
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            records = [record for envelope in group if (record := _record_of(envelope)) is not None]
            await self._direct_enqueuer.end(records, wall_clock_ms())
            count += len(records)
        if count:
            log.info("outcomes replayed", outcomes=count, since_seq=since)

    async def _replay_ecq_changes(self, since: int) -> list[Known]:
        """Repeat the acknowledgements and rewinds recorded from the seq `since` on, and return those of the rewound queues.

        Their order matters only in queues that were rewound. So the changes of these queues are repeated last, all together and
        in the order of epochs; the first pass over the source only finds the rewinds.
        """
        rewinds: list[tuple[int, Rewind]] = []
        source = self._recorded.ecq_changes(since)
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            for envelope in group:
                change = self._parser.read_back(envelope).ecq
                if isinstance(change, Rewind):
                    rewinds.append((envelope.seq, change))
        rewound_clients = {rewind.client_id for _, rewind in rewinds}
        changes_of_rewound = list[Known](rewinds)
        ack_count = 0
        source = self._recorded.ecq_changes(since)
        while group := await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE))):
            acks = [ack for envelope in group if (ack := _ack_of(envelope)) is not None]
            changes_of_rewound += [ack for ack in acks if ack.client_id in rewound_clients]
            await self._direct_enqueuer.ecq.replay([ack for ack in acks if ack.client_id not in rewound_clients])
            ack_count += len(acks)
        await self._direct_enqueuer.ecq.replay(changes_of_rewound)
        if ack_count or changes_of_rewound:
            log.info("acknowledgements and rewinds replayed", acknowledgements=ack_count, since_seq=since)
        return changes_of_rewound

    async def _offer_data(self, since: int, upto: int) -> None:
        async for group in self._groups(Stream.DATA, seq_ago(since, DATA_BEFORE_S), upto):
            await self._direct_enqueuer.offer(group)
            self._annotate(group)

    async def _offer_ecq(self, since: int, upto: int, rewound: list[Known] | None) -> None:
        """Replay writes and rewinds; both seqs are inclusive.

        If `rewound` is given, it already contains the rewinds, together with the acknowledgements of the same queues. They are
        then repeated after the writes.
        """
        async for group in self._groups(Stream.ECQ, since, upto):
            offered = group if rewound is None else [incoming for incoming in group if not isinstance(incoming.ecq, Rewind)]
            await self._direct_enqueuer.offer(offered)
            for incoming in group:
                incoming.applied = incoming.offerable
            self._annotate(group)
        await self._direct_enqueuer.ecq.replay(rewound or ())

    async def _offer_triggers(self, since: int, upto: int, ended: Ended) -> None:
        async for group in self._groups(Stream.TRIGGER, since, upto):
            await self._direct_enqueuer.offer(group, skip=ended)
            self._annotate(group)
            # If the next group fails, the next attempt may continue after this one: all data and all messages of compacted queues
            # were replayed before the triggers.
            await self.advance(group[-1].seq)

    async def _groups(self, stream: Stream, since: int, upto: int) -> AsyncIterator[list[Incoming]]:
        """Yield the recorded messages of a stream in batches, and count them; both seqs are inclusive."""
        source, offered = self._recorded.messages(stream, since, upto), 0
        while group := await asyncio.to_thread(self._next_group, source):
            yield group
            offered += len(group)
        _metrics.OFFERED_AGAIN.inc(offered)
        if offered:
            log.info("messages replayed", stream=stream, messages=offered, since_seq=since)

    def _next_group(self, source: Iterator[Envelope]) -> list[Incoming]:
        return [self._parser.read_back(envelope) for envelope in islice(source, MESSAGE_BATCH_SIZE)]

    def _annotate(self, group: Sequence[Incoming]) -> None:
        """Write the results of the enqueue into the journal files that contain these messages."""
        for file in self._journal.files:
            in_file = (incoming for incoming in group if file.first_seq <= incoming.seq <= file.last_seq)
            annotations = [incoming.annotation for incoming in in_file if was_offerable(incoming)]
            if annotations:
                self._journal.annotate(file, annotations)


def was_offerable(incoming: Incoming) -> bool:
    """Whether the message needed to be enqueued when it arrived."""
    return incoming.envelope.refused_because is None and incoming.envelope.duplicate_of is None


def _seq_after(complete_seq: int | None, gap: Gap, newest_seq: int) -> int:
    """The first seq that the queues may lack, given a stream's watermark (None: unknown) and the journal's newest seq."""
    if complete_seq is None:
        return 0
    # A watermark that is ahead of this recorder belongs to a lost journal, whose seqs may have come from another clock.
    is_of_lost_journal = complete_seq > max(gap.upto, newest_seq)
    if is_of_lost_journal and gap.since is not None:
        return min(complete_seq + 1, gap.since)
    return complete_seq + 1


def _needs_rebuild(marks: Watermarks, gap: Gap, first_missing: int | None) -> bool:
    """Whether replaying the lost messages would take longer than a rebuild.

    `first_missing` is the first recorded seq that Redis may lack; None if there is none.
    """
    lost_upto = gap.since or gap.upto
    if first_missing is None or first_missing >= lost_upto:
        return False  # nothing is lost
    if marks.is_rebuilt:
        return False  # only messages that the rebuild did not find in the lake are missing
    return unix_ms_of(lost_upto) - unix_ms_of(first_missing) > MAX_LOST_S * 1000


def _record_of(envelope: Envelope) -> OutcomeRecord | None:
    """Parse an outcome; None if the message is not one, because another program put it into the archive."""
    try:
        return OutcomeRecord.from_wire(envelope.payload)
    except ValueError:
        return None


def _ack_of(envelope: Envelope) -> EcqAck | None:
    """Parse an acknowledgement; None if the message is not one, or is invalid because another program wrote it."""
    try:
        return EcqAck.from_wire(envelope.payload) if envelope.topic.startswith(ACKNOWLEDGEMENTS) else None
    except ValueError:
        return None
