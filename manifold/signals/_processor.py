"""Processes a group of messages: judge, claim, seal, journal, publish, mark processed, acknowledge, in that order.

If the door dies before the acknowledgement, RabbitMQ redelivers the message. The journal may then contain the message twice, and
the lake deduplicates it. The processed message may be published twice, both times with the same id.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from manifold.signals._disposition import Disposition, Key
from manifold.signals._idempotency import IdempotencyStore
from manifold.signals._judging import Judge
from manifold.signals._outcome_log import log_outcomes
from manifold.signals._publishing import Publishing
from manifold.signals._received import Received
from manifold.signals._recording import Recording
from manifold.signals._retry import Retry
from manifold.signals._session import Session
from manifold.signals._tracing import Tracing


class Processor:
    """Settles groups of messages. While a group waits for its confirms, the next groups may be judged, recorded and published."""

    log_accepted = 1.0  # share of accepted messages that are logged

    def __init__(self, judge: Judge, recording: Recording, publishing: Publishing, store: IdempotencyStore, retry: Retry) -> None:
        self._judge, self._recording, self._publishing = judge, recording, publishing
        self._store, self._retry = store, retry
        self.tracing: Tracing | None = None  # None: tracing is off

    async def begin(self, group: Sequence[Received], keys_in_progress: Collection[Key]) -> Disposition:
        """Decide about a group and record it on disk.

        `keys_in_progress` are the idempotency keys of earlier groups that are not acknowledged yet. A message with one of them is
        a duplicate.
        """
        disposition = await self._judge.disposition_of(group, keys_in_progress)
        await self._recording.record(disposition)
        return disposition

    async def publish(self, disposition: Disposition, session: Session) -> None:
        """Publish the results of a group; return once each result is confirmed or rejected by a full queue.

        Raises:
            AMQPError, OSError, TimeoutError: the session has ended; its messages will be redelivered.
        """
        await self._publishing.publish(disposition, session)

    async def acknowledge(self, disposition: Disposition, session: Session, *, one_by_one: bool) -> Disposition:
        """Acknowledge a published group, except messages whose results a full queue rejected, and return the rejected messages.

        Groups must be acknowledged in order of arrival. `one_by_one`: acknowledge each message individually, because earlier
        messages must stay unacknowledged.

        Raises:
            AMQPError, OSError, TimeoutError: the session has ended; its messages will be redelivered.
        """
        rejected = Disposition()
        if disposition.rejected_by:
            rejected, disposition = disposition.split(disposition.rejected_by)
        group = disposition.received
        if not group:
            return rejected
        if disposition.claimed:
            await self._retry.until_done("Redis", lambda: self._store.mark_processed(disposition.claimed))
        if one_by_one or rejected.rejected_by:
            await session.ack_each(group)
        else:
            await session.ack_up_to(max(group, key=lambda received: received.tag))
        self._recording.forget(disposition)
        log_outcomes(disposition, group, log_accepted=self.log_accepted)
        if self.tracing is not None:
            self.tracing.emit_spans(disposition, datetime.now(UTC))
        return rejected
