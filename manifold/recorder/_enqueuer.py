"""The single task that enqueues messages, group after group in seq order, and waits while the queues accept nothing."""

import asyncio
from collections.abc import Callable, Sequence

import pyarrow as pa
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.archive.journal import Journal, JournalFile
from manifold.archive.state_file import StateFile
from manifold.contracts.errors import Retryable
from manifold.contracts.seq import unix_ms_of, wall_clock_ms
from manifold.queues import NOT_LOADED
from manifold.recorder import _metrics
from manifold.recorder._braking import Brakes
from manifold.recorder._catch_up import CatchUp, Gap, was_offerable
from manifold.recorder._direct_enqueuer import DirectEnqueuer
from manifold.recorder._parser import Incoming
from manifold.recorder._redis import RestartGuard, run_id, why
from manifold.recorder._state import RecorderState

WATCH_INTERVAL_S = 1.0
FAILURES = (RedisError, Retryable, OSError, pa.ArrowException)
OFF = "direct enqueue is off"
STARTING = "starting"

log = structlog.get_logger(__name__)
Group = tuple[JournalFile, list[Incoming]]


class Enqueuer:
    """Enqueues messages from the journal. Afterwards, `settle` is called for each, in seq order, and acknowledges it.

    While the queues are unavailable, messages are settled as not applied, and `suspended` says why. When the queues are available
    again, everything that they lack is enqueued first. Redis itself keeps the watermark, which is updated every second after the
    entries that it covers; so a Redis that loses entries loses the watermark too.
    """

    def __init__(
        self,
        *,
        direct_enqueuer: DirectEnqueuer | None,
        catch_up: CatchUp,
        redis: Redis,
        run_id_guard: RestartGuard,
        journal: Journal,
        state: StateFile[RecorderState],
        brakes: Brakes,
        settle: Callable[[JournalFile, Incoming], None],
    ) -> None:
        self.suspended: str | None = STARTING if direct_enqueuer else OFF
        self._direct_enqueuer, self._catch_up = direct_enqueuer, catch_up
        self._redis, self._run_id_guard = redis, run_id_guard
        self.brakes, self._journal, self._state, self._settle = brakes, journal, state, settle
        self._groups: asyncio.Queue[Group | None] = asyncio.Queue()  # None asks for a check of Redis
        self._busy = self._check_pending = False
        self._processed_seq = 0  # greatest seq that `run` has processed

    def put(self, file: JournalFile, group: list[Incoming]) -> None:
        """Add the next group, which is on disk in `file`."""
        self._groups.put_nowait((file, group))

    @property
    def idle(self) -> bool:
        """Whether everything added has been settled."""
        return self._groups.empty() and not self._busy

    async def start(self, last_seq: int, first_unsettled: int | None) -> None:
        """Take over from an earlier process, which assigned seqs up to `last_seq`.

        Its messages from `first_unsettled` on may not be enqueued, so the gap begins there at the latest. None: all are enqueued.
        """
        state = self._state.state
        self._processed_seq = last_seq
        if self._direct_enqueuer is None:
            return
        if first_unsettled is not None:
            if state.gap_since is None or first_unsettled < state.gap_since:
                state.gap_since = first_unsettled
            await asyncio.to_thread(self._state.save)
        await self._try_resume()

    async def run(self) -> None:
        """Enqueue until cancelled."""
        while True:
            file_and_group = await self._groups.get()
            self._busy = True
            if file_and_group is not None:
                await self._hand_over(*file_and_group)
            else:
                self._check_pending = False
                await self._check_redis()
            self._busy = False

    async def watch(self) -> None:
        """Ask `run` regularly to check whether Redis is available, the same as before, and loaded; until cancelled."""
        if self._direct_enqueuer is None:
            await self._drop_obsolete_watermark()
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if not self._check_pending:
                self._check_pending = True
                self._groups.put_nowait(None)

    async def _drop_obsolete_watermark(self) -> None:
        """Delete the watermark that an earlier process of this recorder, with the direct enqueue on, may have left behind.

        A recorder with a watermark would count as one that enqueues. Retries until Redis is available.
        """
        while True:
            try:
                await self._catch_up.drop_watermark()
                return
            except RedisError:
                await asyncio.sleep(WATCH_INTERVAL_S)

    async def _hand_over(self, file: JournalFile, group: list[Incoming]) -> None:
        """Enqueue a recorded group, or suspend the direct enqueue if that fails; either way, settle its messages."""
        await self.brakes.hand_over(group)  # before any entry, and even while the direct enqueue is suspended
        if self._direct_enqueuer is not None and self.suspended is None:
            try:
                with _metrics.HANDOFF_SECONDS.time():
                    await self._direct_enqueuer.offer(group)
                lag_ms = max(0, wall_clock_ms() - unix_ms_of(group[0].seq))
                _metrics.HANDOFF_LAG_SECONDS.observe(lag_ms / 1000)
            except FAILURES as exc:
                await self._suspend(why(exc), group)
        elif self._direct_enqueuer is not None and self._state.state.gap_since is None:
            await self._suspend(str(self.suspended), group)  # suspended before, but this is the first group that is missed
        # Otherwise the direct enqueue is off, or this group lies within the gap: it is only settled.
        annotations = [incoming.annotation for incoming in group if was_offerable(incoming)]
        if annotations:
            self._journal.annotate(file, annotations)
        for incoming in group:
            self._settle(file, incoming)
        self._processed_seq = max(self._processed_seq, group[-1].seq)

    async def _suspend(self, reason: str, group: Sequence[Incoming] = ()) -> None:
        """Suspend the direct enqueue. If a `group` was not enqueued, the gap begins with it, unless one has begun already."""
        for incoming in group:
            incoming.applied = False
        if self.suspended is None:
            since_seq = group[0].seq if group else self._processed_seq + 1
            log.warning("direct enqueue suspended", reason=reason, since_seq=since_seq)
        self.suspended = reason
        self._run_id_guard.expected = None  # until `_try_resume` knows which Redis it is to be
        _metrics.DIRECT_ENQUEUE.set(0)
        if group and self._state.state.gap_since is None:
            self._state.state.gap_since = group[0].seq
            await asyncio.to_thread(self._state.save)

    async def _check_redis(self) -> None:
        """Check the brakes in Redis and, unless the direct enqueue is off, advance the watermark or try to resume."""
        if self._direct_enqueuer is None:
            try:
                await self.brakes.recheck()
            except FAILURES as exc:
                log.warning("campaign brakes in redis not checked", reason=why(exc))
        elif self.suspended is None:
            await self._advance_watermark()
        else:
            await self._try_resume()

    async def _advance_watermark(self) -> None:
        """Advance the watermark; suspend the direct enqueue if that fails, because the queues may lack messages."""
        assert self._direct_enqueuer is not None
        try:
            await self.brakes.recheck()
            await self._catch_up.advance(self._last_processed_seq())
            await self._direct_enqueuer.corrupt.recheck()
        except FAILURES as exc:
            await self._suspend(why(exc))

    def _last_processed_seq(self) -> int:
        """The seq up to which this recorder has processed everything.

        If no group waits, that is the journal's last seq, because outcomes have seqs although they are not enqueued.
        """
        return max(self._processed_seq, self._journal.last_seq) if self._groups.empty() else self._processed_seq

    async def _try_resume(self) -> None:
        """Close the gap and resume the direct enqueue if Redis is available and loaded; otherwise set `suspended`."""
        state = self._state.state
        try:
            redis_run_id = await run_id(self._redis)
            await self.brakes.recheck()  # before the queues get any entry that a brake forbids
            self._run_id_guard.expected = redis_run_id
            gap = Gap(self._processed_seq, state.gap_since, is_same_redis=state.redis_run_id == redis_run_id)
            await self._catch_up.close_gap(gap, self._last_processed_seq)
        except FAILURES as exc:
            reason = why(exc)
            if reason != self.suspended:
                log.warning("direct enqueue not resumed", reason=reason)
            self.suspended = reason
            self._run_id_guard.expected = None
            _metrics.DIRECT_ENQUEUE.set(0)
            _metrics.REBUILD_NEEDED.set(self.suspended == NOT_LOADED)
            return
        if state.gap_since is not None or state.redis_run_id != redis_run_id:
            state.gap_since, state.redis_run_id = None, redis_run_id
            await asyncio.to_thread(self._state.save)
        if self.suspended is not None:
            log.info("direct enqueue on", was_suspended_because=self.suspended, redis_run_id=redis_run_id)
        self.suspended = None
        _metrics.DIRECT_ENQUEUE.set(1)
        _metrics.REBUILD_NEEDED.set(0)
