"""The one task that hands over: group after group in seq order, around gaps in which the queues cannot take anything."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from contracts.envelope import Envelope, Stream
from contracts.errors import Retryable
from contracts.seq import datetime_of, first_seq_at, unix_ms_of, wall_clock_ms
from recorder import _metrics, _records
from recorder._express import Express
from recorder._intake import Incoming, Intake
from recorder._journal import Journal, JournalFile
from recorder._lake import Lake
from recorder._redis import RestartGuard, run_id, why
from recorder._segments import Archive, seq_ago
from recorder._state import StateFile

LAST_MINUTES_S = 120.0  # offered again after a restart of Redis: far more than its file can lack
WATCH_S = 1.0
GROUP_AGAIN = 200  # messages offered together when they are read back
OFF = "express is off"
STARTING = "starting"

log = structlog.get_logger(__name__)
Group = tuple[JournalFile, list[Incoming]]


class Handoff:
    """Offers what the journal holds to the queues. `settle` is called for each message afterwards, in seq order.

    While the queues cannot take anything, messages are settled as not applied, and `suspended` says why. When they can
    again, everything since the gap began is offered first. The gap is on disk before its first message is settled.
    """

    def __init__(
        self,
        *,
        express: Express | None,
        redis: Redis,
        guard: RestartGuard,
        lake: Lake,
        journal: Journal,
        archive: Archive,
        intake: Intake,
        state: StateFile,
        node: int,
        settle: Callable[[JournalFile, Incoming], None],
    ) -> None:
        self.suspended: str | None = STARTING if express else OFF
        self._express, self._redis, self._guard, self._lake = express, redis, guard, lake
        self._journal, self._archive, self._intake, self._state = journal, archive, intake, state
        self._node, self._settle = node, settle
        self._groups: asyncio.Queue[Group | None] = asyncio.Queue()
        self._busy = self._look_pending = False
        self._upto = 0  # greatest seq that has passed here
        self._alive_seq = 0  # about when Redis was last seen alive, as a seq

    def put(self, file: JournalFile, group: list[Incoming]) -> None:
        """The next group; it is on disk in `file`."""
        self._groups.put_nowait((file, group))

    @property
    def idle(self) -> bool:
        """Whether everything that was put has been settled."""
        return self._groups.empty() and not self._busy

    async def start(self, last_seq: int, first_unsettled: int | None) -> None:
        """Take over from an earlier process: what it left unsettled, it may or may not have offered."""
        state = self._state.state
        self._upto = self._alive_seq = last_seq
        if first_unsettled is not None and self._express is not None:
            state.gap_since = min(first_unsettled, state.gap_since or first_unsettled)
            await asyncio.to_thread(self._state.save)
        if self._express is not None:
            await self._try_resume()

    async def run(self) -> None:
        """Hand over until cancelled."""
        while True:
            item = await self._groups.get()
            self._busy = True
            if item is not None:
                await self._hand_over(*item)
            else:
                self._look_pending = False
                await self._try_resume()
            self._busy = False

    async def watch(self) -> None:
        """See again and again whether Redis is there, the same as before, and loaded; open or close a gap accordingly."""
        while self._express is not None:
            await asyncio.sleep(WATCH_S)
            doubt = await self._doubt()
            if doubt is None:
                self._alive_seq = first_seq_at(datetime.now(UTC))
            if (doubt is not None or self.suspended is not None) and not self._look_pending:
                self._look_pending = True
                self._groups.put_nowait(None)

    async def _doubt(self) -> str | None:
        assert self._express is not None
        try:
            found = await run_id(self._redis)
            await self._express.probe()
        except (RedisError, Retryable, OSError) as exc:
            return str(exc)
        return None if found == self._state.state.redis_run_id else "Redis has restarted"

    async def _hand_over(self, file: JournalFile, group: list[Incoming]) -> None:
        if self._express is not None and self.suspended is None:
            try:
                with _metrics.HANDOFF_SECONDS.time():
                    await self._express.offer(group)
                self._alive_seq = group[-1].seq
                _metrics.HANDOFF_LAG_SECONDS.observe(max(0, wall_clock_ms() - unix_ms_of(group[0].seq)) / 1000)
            except (RedisError, Retryable, OSError) as exc:
                await self._suspend(why(exc), group)
        elif self._express is not None and self._state.state.gap_since is None:
            await self._suspend(str(self.suspended), group)
        notes = [incoming.note for incoming in group if _was_offerable(incoming)]
        if notes:
            self._journal.note(file, notes)
        for incoming in group:
            self._settle(file, incoming)
        self._upto = max(self._upto, group[-1].seq)

    async def _suspend(self, why: str, group: Sequence[Incoming]) -> None:
        for incoming in group:
            incoming.applied = False
        if self.suspended is None:
            log.warning("express hand-off suspended", reason=why, since=group[0].seq)
        self.suspended = why
        self._guard.expected = None
        _metrics.EXPRESS.set(0)
        if self._state.state.gap_since is None:
            self._state.state.gap_since = group[0].seq
            await asyncio.to_thread(self._state.save)

    async def _try_resume(self) -> None:
        """Close the gap, if Redis is there and loaded; else say why not."""
        assert self._express is not None
        state = self._state.state
        try:
            found = await run_id(self._redis)
            self._guard.expected = found
            await self._express.probe()
            since = self._since(found)
            if since is not None and since <= self._upto:
                await self._offer_again(since)
        except (RedisError, Retryable, OSError) as exc:
            if why(exc) != self.suspended:
                log.warning("express hand-off suspended", reason=why(exc))
            self.suspended, self._guard.expected = why(exc), None
            _metrics.EXPRESS.set(0)
            return
        if state.gap_since is not None or state.redis_run_id != found:
            state.gap_since, state.redis_run_id = None, found
            await asyncio.to_thread(self._state.save)
        self._alive_seq = max(self._alive_seq, first_seq_at(datetime.now(UTC)))
        if self.suspended is not None:
            log.info("express hand-off on", redis_run_id=found)
        self.suspended = None
        _metrics.EXPRESS.set(1)

    def _since(self, found: str) -> int | None:
        """From which seq on this Redis may lack something."""
        state = self._state.state
        if state.redis_run_id in (None, found):
            return state.gap_since
        lost_from = seq_ago(self._alive_seq, LAST_MINUTES_S)
        return lost_from if state.gap_since is None else min(lost_from, state.gap_since)

    async def _offer_again(self, since: int) -> None:
        """Everything recorded from `since` on that has passed here: data first, then triggers in seq order."""
        assert self._express is not None
        ended = await self._lake.ended_since(datetime_of(since))
        offered = 0
        for stream in (Stream.DATA, Stream.TRIGGER):
            source = self._recorded(stream, since)
            while group := await asyncio.to_thread(self._next_group, source):
                if stream is Stream.TRIGGER:
                    self._state.state.gap_since = group[
                        0
                    ].seq  # what came before is in the queues: where this is refused, go on here
                await self._express.offer(group, skip=ended)
                self._note_again(group)
                offered += len(group)
        _metrics.OFFERED_AGAIN.inc(offered)
        log.info("offered again", messages=offered, since=since)

    def _recorded(self, stream: Stream, since: int) -> Iterator[Envelope]:
        """From the archive, then from the journal. Files that become segments meanwhile come twice, none is left out."""
        files = list(self._journal.files)
        yield from self._archive.recorded_since(stream, since, self._node)
        for file in files:
            try:
                envelopes = _records.read(file.path).envelopes(file.notes)
            except FileNotFoundError:  # it has become segments, perhaps after the archive was listed: look there again
                again = self._archive.recorded_since(stream, max(since, file.first_seq), self._node)
                envelopes = [e for e in again if e.seq <= file.last_seq]
            yield from (e for e in envelopes if e.stream is stream and since <= e.seq <= self._upto)

    def _next_group(self, source: Iterator[Envelope]) -> list[Incoming]:
        return [self._intake.read_back(envelope) for envelope in islice(source, GROUP_AGAIN)]

    def _note_again(self, group: Sequence[Incoming]) -> None:
        for file in self._journal.files:
            mine = [i.note for i in group if file.first_seq <= i.seq <= file.last_seq and _was_offerable(i)]
            if mine:
                self._journal.note(file, mine)


def _was_offerable(incoming: Incoming) -> bool:
    """Whether the message needed a hand-off when it came."""
    return incoming.envelope.refused_because is None and incoming.envelope.duplicate_of is None
