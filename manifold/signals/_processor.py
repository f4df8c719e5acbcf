"""Processes a group of messages: judge, claim, seal, journal, publish, mark done, acknowledge, in that order.

The acknowledgement comes last. If the door dies before it, RabbitMQ redelivers the message. It may then be in the journal twice
(the lake deduplicates), and its processed message may be published twice, with the same id.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from manifold.signals._disposition import Disposition, Key
from manifold.signals._idempotency import IdempotencyStore
from manifold.signals._judging import Judge
from manifold.signals._outcome_log import tell
from manifold.signals._publishing import Publishing
from manifold.signals._received import Received
from manifold.signals._recording import Recording
from manifold.signals._retry import Retry
from manifold.signals._session import Session
from manifold.signals._tracing import Tracing


class Processor:
    """Settles groups of messages. The next group may be judged and recorded while one is published and acknowledged."""

    log_accepted = 1.0  # sampling rate of log lines for accepted messages

    def __init__(
        self, judge: Judge, recording: Recording, publishing: Publishing, once: IdempotencyStore, patience: Retry
    ) -> None:
        self._judge, self._recording, self._publishing = judge, recording, publishing
        self._once, self._patience = once, patience
        self.tracing: Tracing | None = None  # tracing is off

    async def begin(self, group: Sequence[Received], held_before: Collection[Key]) -> Disposition:
        """Decide about a group and record it on disk; `held_before` contains the keys of a group that is not finished."""
        fate = await self._judge.fate_of(group, held_before)
        await self._recording.record(fate)
        return fate

    async def finish(self, fate: Disposition, session: Session, *, one_by_one: bool) -> Disposition:
        """Acknowledge every message of the group except those rejected by a full queue, which are returned.

        Groups must be finished in order of arrival. `one_by_one`: earlier messages are still unacknowledged, so ack individually.

        Raises:
            AMQPError, OSError, TimeoutError: the session has ended; its messages will be redelivered.
        """
        await self._publishing.publish(fate, session)
        rejected, fate = fate.split(fate.rejected_by) if fate.rejected_by else (Disposition(), fate)
        if not (group := fate.received):
            return rejected
        if fate.taken:
            await self._patience.until_done("Redis", lambda: self._once.done(fate.taken))
        if one_by_one or rejected.rejected_by:
            await session.ack_each(group)
        else:
            await session.ack_up_to(max(group, key=lambda received: received.tag))
        self._recording.acknowledged(fate)
        tell(fate, group, log_accepted=self.log_accepted)
        if self.tracing is not None:
            self.tracing.tell(fate, datetime.now(UTC))
        return rejected
