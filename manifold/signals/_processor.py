"""Processes a group of messages: judge, hold, seal, journal, publish, mark done, acknowledge, in that order.

A message is acknowledged last. If the door dies before that, RabbitMQ delivers the message again. It may then be in the journal
twice (the lake takes one), and its processed message may be published twice, with the same id.
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
    """Settles groups of messages. While one is being published and acknowledged the next may be judged and recorded."""

    log_accepted = 1.0  # share of the accepted messages that have a log line

    def __init__(
        self, judge: Judge, recording: Recording, publishing: Publishing, once: IdempotencyStore, patience: Retry
    ) -> None:
        self._judge, self._recording, self._publishing = judge, recording, publishing
        self._once, self._patience = once, patience
        self.tracing: Tracing | None = None  # nobody wants spans

    async def begin(self, group: Sequence[Received], held_before: Collection[Key]) -> Disposition:
        """What becomes of the group, once all of it is on disk; `held_before` are keys of a group that is not finished."""
        fate = await self._judge.fate_of(group, held_before)
        await self._recording.record(fate)
        return fate

    async def finish(self, fate: Disposition, session: Session, *, one_by_one: bool) -> Disposition:
        """Acknowledge every message of the group but those that a full queue has rejected; return these.

        Groups are finished one after the other, as they came. `one_by_one`: messages before this group are not acknowledged yet.

        Raises:
            AMQPError, OSError, TimeoutError: the session is over; its messages come again.
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
