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
from manifold.recorder._ecq_enqueuer import EcqChange
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

    last_seq: int  # greatest seq that the recorder has processed
    first_seq: int | None  # first seq that was not handed over; None if every seq was
    is_same_redis: bool  # whether Redis got everything before the gap and has not restarted since


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

    async def drop_watermark(self) -> None:
        """Delete the watermark of this recorder, which has the direct enqueue turned off."""
        await self._queues.drop_watermark(self._node)

    async def close_gap(self, gap: Gap, processed_seq: Callable[[], int]) -> None:
        """Replay the messages that the queues lack, and advance the watermark to the seq that `processed_seq` returns at the end.

        Raises:
            Retryable: the queues are not loaded, or Redis lost so much that they are now marked as not loaded.
        """
        known_seq = None if self._watermarks is None else self._watermarks.enqueued_seq
        self._watermarks = marks = await self._queues.marks(self._node)
        self._direct_enqueuer.load_id = marks.load_id
        if marks.load_id is None:
            raise Retryable(NOT_LOADED)
        # A Redis that went back to an older state has a smaller watermark than the one this object knows, or none.
        has_kept_watermark = marks.enqueued_seq is not None and (known_seq is None or marks.enqueued_seq >= known_seq)
        has_lost_nothing = gap.is_same_redis and has_kept_watermark
        first_trigger_seq = await self._first_missing_seq(marks.complete_seq, marks, gap, Stream.TRIGGER)
        first_ecq_seq = await self._first_missing_seq(marks.complete_ecq_seq, marks, gap, Stream.ECQ)
        changes_of_rewound: list[EcqChange] | None = None
        if not has_lost_nothing:
            changes_of_rewound = await self._replay_changes(marks, gap, first_trigger_seq, first_ecq_seq)
        # From now on, the queues remember which entries with later seqs have ended.
        await self.advance(max(0, min(first_trigger_seq, first_ecq_seq) - 1))
        if min(first_trigger_seq, first_ecq_seq) <= gap.last_seq:
            # A Redis that lost nothing remembers the ended entries that the replay may offer again. For any other Redis, the lake
            # lists them.
            ended = NO_OUTCOMES if has_lost_nothing else await self._lake.ended_since(datetime_of(first_trigger_seq))
            await self._replay_data(first_trigger_seq, gap.last_seq)
            await self._replay_ecq(first_ecq_seq, gap.last_seq, changes_of_rewound)
            await self._replay_triggers(first_trigger_seq, gap.last_seq, ended)
        await self.advance(processed_seq())

    async def _first_missing_seq(self, complete_seq: int | None, marks: Watermarks, gap: Gap, stream: Stream) -> int:
        """The first seq of a stream that the queues may lack; `complete_seq` is the stream's watermark, None if it has none."""
        if complete_seq is None and marks.is_rebuilt:
            # The rebuild found nothing of this stream in the lake, so everything that is recorded is replayed.
            smallest_seq = await asyncio.to_thread(self._recorded.smallest_seq, 0, gap.last_seq, (stream,))
            return gap.last_seq + 1 if smallest_seq is None else smallest_seq  # None: so nothing is missing
        return _seq_after(complete_seq, gap, self._journal.last_seq)

    async def _replay_changes(self, marks: Watermarks, gap: Gap, first_trigger_seq: int, first_ecq_seq: int) -> list[EcqChange]:
        """Replay outcomes, acknowledgements and rewinds: this Redis may have rolled back, or was loaded from the lake.

        `first_trigger_seq` and `first_ecq_seq` are the first seqs of their streams that the queues may lack. Returns the
        acknowledgements and rewinds of the compacted queues that were rewound. They must be repeated after the messages of these
        queues are replayed.

        Raises:
            Retryable: Redis lost too much for a replay; the queues are now marked as not loaded.
        """
        first_missing_seq = await asyncio.to_thread(
            self._recorded.smallest_seq, min(first_trigger_seq, first_ecq_seq), gap.last_seq
        )
        needs_rebuild = _needs_rebuild(marks, gap, first_missing_seq)
        # Without a watermark, replay the changes since the first missing message; but none of them if a rebuild follows.
        default_seq = None if needs_rebuild else first_missing_seq
        first_outcome_seq = first_trigger_seq if marks.complete_seq is not None else default_seq
        first_change_seq = first_ecq_seq if marks.complete_ecq_seq is not None else default_seq
        changes_of_rewound: list[EcqChange] = []
        if first_outcome_seq is not None:
            await self._replay_outcomes(first_outcome_seq)
        if first_change_seq is not None:
            changes_of_rewound = await self._replay_ecq_changes(first_change_seq)
        if first_outcome_seq is not None or first_change_seq is not None:
            await self._queues.require_full_populate()  # this Redis may also lack entries that came from the lake
        if needs_rebuild:
            await self._queues.mark_incomplete(marks)
            raise Retryable(f"Redis went back to an older state, and {NOT_LOADED}")
        return changes_of_rewound

    async def _replay_outcomes(self, first_seq: int) -> None:
        """End again the entries whose outcomes were recorded from `first_seq` on."""
        source, count = self._recorded.outcomes(first_seq), 0
        while group := await _next_batch(source):
            records = [record for envelope in group if (record := _record_of(envelope)) is not None]
            await self._direct_enqueuer.end(records, wall_clock_ms())
            count += len(records)
        if count:
            log.info("outcomes replayed into redis", outcomes=count, since_seq=first_seq)

    async def _replay_ecq_changes(self, first_seq: int) -> list[EcqChange]:
        """Repeat the acknowledgements and rewinds recorded from `first_seq` on, and return those of the rewound queues.

        Their order matters only in queues that were rewound. So the changes of these queues are repeated last, all together and
        in the order of epochs; the first pass over the source only finds the rewinds.
        """
        rewinds: list[tuple[int, Rewind]] = []
        source = self._recorded.ecq_changes(first_seq)
        while group := await _next_batch(source):
            for envelope in group:
                change = self._parser.read_back(envelope).ecq
                if isinstance(change, Rewind):
                    rewinds.append((envelope.seq, change))
        rewound_clients = {rewind.client_id for _, rewind in rewinds}
        changes_of_rewound = list[EcqChange](rewinds)
        ack_count = 0
        source = self._recorded.ecq_changes(first_seq)
        while group := await _next_batch(source):
            acks = [ack for envelope in group if (ack := _ack_of(envelope)) is not None]
            changes_of_rewound += [ack for ack in acks if ack.client_id in rewound_clients]
            await self._direct_enqueuer.ecq.replay([ack for ack in acks if ack.client_id not in rewound_clients])
            ack_count += len(acks)
        await self._direct_enqueuer.ecq.replay(changes_of_rewound)
        if ack_count or rewinds:
            counts = {"acknowledgements": ack_count, "rewinds": len(rewinds)}
            log.info("acknowledgements and rewinds of compacted queues replayed into redis", **counts, since_seq=first_seq)
        return changes_of_rewound

    async def _replay_data(self, first_trigger_seq: int, last_seq: int) -> None:
        """Replay data, from `DATA_BEFORE_S` before the first trigger on."""
        async for group in self._groups(Stream.DATA, seq_ago(first_trigger_seq, DATA_BEFORE_S), last_seq):
            await self._direct_enqueuer.offer(group)
            self._annotate(group)

    async def _replay_ecq(self, first_seq: int, last_seq: int, changes_of_rewound: list[EcqChange] | None) -> None:
        """Replay writes and rewinds; both seqs are inclusive.

        `changes_of_rewound` are all rewinds, and the acknowledgements of the same queues: they are repeated after all writes.
        None: Redis lost nothing, so each rewind is replayed in its place between the writes.
        """
        async for group in self._groups(Stream.ECQ, first_seq, last_seq):
            offered = group
            if changes_of_rewound is not None:
                offered = [incoming for incoming in group if not isinstance(incoming.ecq, Rewind)]
            await self._direct_enqueuer.offer(offered)
            for incoming in group:
                incoming.applied = incoming.offerable
            self._annotate(group)
        await self._direct_enqueuer.ecq.replay(changes_of_rewound or ())

    async def _replay_triggers(self, first_seq: int, last_seq: int, ended: Ended) -> None:
        """Replay triggers, without the entries in `ended`; both seqs are inclusive."""
        async for group in self._groups(Stream.TRIGGER, first_seq, last_seq):
            await self._direct_enqueuer.offer(group, skip=ended)
            self._annotate(group)
            # If the next group fails, the next attempt may continue after this one: all data and all messages of compacted queues
            # were replayed before the triggers.
            await self.advance(group[-1].seq)

    async def _groups(self, stream: Stream, first_seq: int, last_seq: int) -> AsyncIterator[list[Incoming]]:
        """Yield the recorded messages of a stream in batches, and count them; both seqs are inclusive."""
        source, count = self._recorded.messages(stream, first_seq, last_seq), 0
        while group := await asyncio.to_thread(self._next_group, source):
            yield group
            count += len(group)
        _metrics.OFFERED_AGAIN.inc(count)
        if count:
            log.info("messages replayed into redis", stream=stream, messages=count, since_seq=first_seq)

    def _next_group(self, source: Iterator[Envelope]) -> list[Incoming]:
        """Read and parse the next batch of messages; empty at the end. Blocks."""
        return [self._parser.read_back(envelope) for envelope in islice(source, MESSAGE_BATCH_SIZE)]

    def _annotate(self, group: Sequence[Incoming]) -> None:
        """Write the results of the enqueue into the journal files that contain these messages."""
        for file in self._journal.files:
            messages_in_file = [incoming for incoming in group if file.first_seq <= incoming.seq <= file.last_seq]
            annotations = [incoming.annotation for incoming in messages_in_file if was_offerable(incoming)]
            if annotations:
                self._journal.annotate(file, annotations)


def was_offerable(incoming: Incoming) -> bool:
    """Whether the message was neither refused nor a duplicate before it was enqueued, so that the journal needs the result."""
    return incoming.envelope.refused_because is None and incoming.envelope.duplicate_of is None


def _seq_after(complete_seq: int | None, gap: Gap, newest_seq: int) -> int:
    """The first seq that the queues may lack, given a stream's watermark (None: unknown) and the journal's newest seq."""
    if complete_seq is None:  # they may lack everything
        return 0
    # A watermark that is ahead of this recorder belongs to a lost journal, whose seqs may have come from another clock.
    is_of_lost_journal = complete_seq > max(gap.last_seq, newest_seq)
    if is_of_lost_journal and gap.first_seq is not None:
        return min(complete_seq + 1, gap.first_seq)
    return complete_seq + 1


def _needs_rebuild(marks: Watermarks, gap: Gap, first_missing_seq: int | None) -> bool:
    """Whether Redis has lost so much that replaying it would take longer than a rebuild.

    `first_missing_seq` is the first recorded seq that Redis may lack; None if there is none.
    """
    sent_until_seq = gap.first_seq or gap.last_seq  # Redis once had the messages before this seq
    if first_missing_seq is None or first_missing_seq >= sent_until_seq:
        return False  # nothing is lost
    if marks.is_rebuilt:
        return False  # only messages that the rebuild did not find in the lake are missing
    return unix_ms_of(sent_until_seq) - unix_ms_of(first_missing_seq) > MAX_LOST_S * 1000


async def _next_batch(source: Iterator[Envelope]) -> list[Envelope]:
    """Read the next batch of messages in a thread; empty at the end."""
    return await asyncio.to_thread(lambda: list(islice(source, OUTCOME_BATCH_SIZE)))


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
