"""Judges a group: checks, claims and processes every message."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import structlog

from manifold.contracts.signals.bounds import Bounds
from manifold.contracts.signals.codes import Refusal
from manifold.contracts.signals.messages import RawSignal
from manifold.contracts.signals.processing import process
from manifold.signals._checks import Checks
from manifold.signals._disposition import Disposition, Key
from manifold.signals._idempotency import Claim, IdempotencyStore
from manifold.signals._received import Accepted, Judged, Received
from manifold.signals._retry import Retry

LARGE = 128 << 10  # message bytes above which work runs in a thread, to keep the event loop responsive

log = structlog.get_logger(__name__)


class Judge:
    """Judges groups of messages; an unexpected failure of one message does not affect the others."""

    def __init__(self, checks: Checks, store: IdempotencyStore, bounds: Bounds, retry: Retry, *, max_retries: int) -> None:
        self._checks, self._store, self._bounds, self._retry = checks, store, bounds, retry
        self._max_retries = max_retries

    async def disposition_of(self, group: Sequence[Received], held_before: Collection[Key]) -> Disposition:
        """Decide about each message of the group; nothing is recorded or published yet.

        `held_before` contains the keys of the groups being published; messages with one of them are duplicates.
        """
        disposition, good, now = Disposition(), list[Accepted](), datetime.now(UTC)
        for received in group:
            if received.is_copy:
                disposition.note_copy(received)
                continue
            try:
                judged = await self._judge(received, now)
            except Exception as exc:  # isolate unexpected failures to one message
                log.exception("check raised an unexpected error", correlation_id=received.correlation_id)
                disposition.later.append((received, f"check raised an unexpected error: {type(exc).__name__}"))
                continue
            if isinstance(judged, Refusal):
                disposition.refuse(received, judged)
            else:
                good.append(judged)
        claims = await self._retry.until_done("Redis", lambda: self._store.claim(good)) if good else list[Claim]()
        held = set(held_before)
        for message, claim in zip(good, claims, strict=True):
            disposition.note(message, claim, held)
        await self._process(disposition)
        disposition.give_up(self._max_retries)
        return disposition

    async def _judge(self, received: Received, now: datetime) -> Judged:
        large = len(received.body) > LARGE or received.content_encoding
        judge = self._checks.judge
        return await asyncio.to_thread(judge, received, now) if large else judge(received, now)

    async def _process(self, disposition: Disposition) -> None:
        """Derive the readings and anomalies of the signals, which go to the processed queue only.

        Ingest derives its own from the archive. A signal for which that fails is retried later, and its idempotency claim is
        released.
        """
        failed: list[Accepted] = []
        for message in disposition.taken:
            if isinstance(message.parsed, RawSignal):
                try:
                    args = message.plain, self._bounds
                    data = await asyncio.to_thread(process, *args) if len(message.plain) > LARGE else process(*args)
                except Exception as exc:  # isolate unexpected failures to one message
                    log.exception("signal processing failed", correlation_id=message.correlation_id)
                    disposition.later.append((message.received, f"processing failed: {type(exc).__name__}"))
                    failed.append(message)
                else:
                    disposition.data[message.received.tag] = data
        if failed:
            disposition.taken = [message for message in disposition.taken if message not in failed]
            await self._retry.until_done("Redis", lambda: self._store.release(failed))
