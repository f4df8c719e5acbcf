"""Judges a group of messages: checks each, claims its idempotency key and nonce, and processes it."""

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

MAX_BYTES_IN_LOOP = 128 << 10  # larger messages are checked and processed in a thread, to keep the event loop responsive

log = structlog.get_logger(__name__)


class Judge:
    """Judges groups of messages; an unexpected failure of one message does not affect the others."""

    def __init__(self, checks: Checks, store: IdempotencyStore, bounds: Bounds, retry: Retry, *, max_retries: int) -> None:
        self._checks, self._store, self._bounds, self._retry = checks, store, bounds, retry
        self._max_retries = max_retries

    async def disposition_of(self, group: Sequence[Received], keys_in_progress: Collection[Key]) -> Disposition:
        """Decide about each message of the group, without recording or publishing anything.

        `keys_in_progress` are the keys of earlier groups that are not acknowledged yet. A message with one of these keys is a
        duplicate.
        """
        disposition = Disposition()
        accepted = await self._check_all(group, disposition)
        claims = list[Claim]()
        if accepted:
            claims = await self._retry.until_done("Redis", lambda: self._store.claim(accepted))
        claimed_keys = set(keys_in_progress)
        for message, claim in zip(accepted, claims, strict=True):
            disposition.add_accepted(message, claim, claimed_keys)
        await self._process(disposition)
        disposition.refuse_exhausted(self._max_retries)
        return disposition

    async def _check_all(self, group: Sequence[Received], disposition: Disposition) -> list[Accepted]:
        """Check the messages of a group; return those that passed, and add all others to the disposition."""
        now = datetime.now(UTC)
        accepted = list[Accepted]()
        for received in group:
            if received.is_copy:
                disposition.add_copy(received)
                continue
            try:
                judged = await self._check(received, now)
            except Exception as exc:  # isolate unexpected failures to one message
                correlation_id = received.correlation_id
                log.exception("check raised an unexpected error", queue=received.queue, correlation_id=correlation_id)
                disposition.to_retry.append((received, f"check raised an unexpected error: {type(exc).__name__}"))
                continue
            if isinstance(judged, Refusal):
                disposition.refuse(received, judged)
            else:
                accepted.append(judged)
        return accepted

    async def _check(self, received: Received, now: datetime) -> Judged:
        """Check one message; in a thread if its body is large, or may be large once inflated."""
        if len(received.body) > MAX_BYTES_IN_LOOP or received.content_encoding:
            return await asyncio.to_thread(self._checks.judge, received, now)
        return self._checks.judge(received, now)

    async def _process(self, disposition: Disposition) -> None:
        """Derive the readings and anomalies of the group's signals.

        They go to the processed queue only; ingest derives the rows of the tables from the archive. If a signal cannot be
        processed, its idempotency claim is released and the signal is retried later.
        """
        failed: list[Accepted] = []
        for message in disposition.claimed:
            if not isinstance(message.parsed, RawSignal):  # a device status needs no processing
                continue
            try:
                if len(message.payload) > MAX_BYTES_IN_LOOP:
                    data = await asyncio.to_thread(process, message.payload, self._bounds)
                else:
                    data = process(message.payload, self._bounds)
            except Exception as exc:  # isolate unexpected failures to one message
                ids = {"device_id": message.parsed.device_id, "correlation_id": message.correlation_id}
                log.exception("signal processing raised an unexpected error", **ids)
                disposition.to_retry.append((message.received, f"processing failed: {type(exc).__name__}"))
                failed.append(message)
            else:
                disposition.processed_data[message.received.tag] = data
        if failed:
            disposition.claimed = [message for message in disposition.claimed if message not in failed]
            await self._retry.until_done("Redis", lambda: self._store.release(failed))
