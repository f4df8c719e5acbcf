"""Publishes the results of a group: processed signals, retries, dead letters, and errors to those who asked for them."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from aio_pika.exceptions import AMQPError

from manifold.contracts.signals.codes import ErrorReport
from manifold.contracts.signals.messages import RawSignal
from manifold.signals import _metrics, _outgoing
from manifold.signals._back_off import back_off_ms
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._outgoing import Outgoing
from manifold.signals._received import Received
from manifold.signals._retry import Retry
from manifold.signals._session import AWAY, PublishRejectedError, Session

RABBITMQ = "RabbitMQ"
BLOCKED = "RabbitMQ takes nothing, by its alarm of memory or disk: nothing is acknowledged; it goes on by itself"

log = structlog.get_logger(__name__)


class Publishing:
    """Publishes what becomes of a group, and waits until RabbitMQ has it."""

    def __init__(self, patience: Retry, *, confirm_s: float) -> None:
        self._patience, self._confirm_s = patience, confirm_s

    async def publish(self, fate: Disposition, session: Session) -> None:
        """Return when RabbitMQ has all of it but what a full queue has rejected, which `fate.rejected_by` has then.

        Raises:
            AMQPError, OSError, TimeoutError: the session is over.
        """
        now = datetime.now(UTC)
        out: list[tuple[Received, Outgoing]] = [
            (message.received, _outgoing.processed(message, message.said, fate.data[message.received.tag], now))
            for message in fate.taken
            if isinstance(message.said, RawSignal)
        ]
        out += [(received, _outgoing.retry(received, back_off_ms(received.retry_count))) for received, _ in fate.later]
        reports = [(one, _report(one, now)) for one in fate.refused]
        out += [(one.received, _outgoing.dead_letter(one.received, report)) for one, report in reports]
        fate.rejected_by = await self._all(out, session)
        for one, report in [pair for pair in reports if pair[0].received.tag not in fate.rejected_by]:
            await self._reply(_outgoing.reply(one.received, report, now), one, session)

    async def _all(self, out: Sequence[tuple[Received, Outgoing]], session: Session) -> dict[int, str]:
        """The queue that has rejected a message, by the delivery tag of what it is about."""
        rejected_by = {}
        answers = await self._answers([one for _, one in out], session)
        for (received, one), first in zip(out, answers, strict=True):
            answer = first
            if answer is not None and not isinstance(answer, AWAY):
                log.warning("headers cannot be sent on", reason=repr(answer)[:200])
                [answer] = await self._answers([_outgoing.without_headers(one)], session)
            if isinstance(answer, PublishRejectedError):
                _metrics.REJECTED_PUBLISHES.labels(one.key).inc()
                rejected_by[received.tag] = one.key
            elif answer is not None:
                raise answer
        return rejected_by

    async def _answers(self, out: Sequence[Outgoing], session: Session) -> list[Exception | None]:
        """Of each, None when it is confirmed, or why it is not.

        A server that is short of memory or disk says so, and confirms when it has room: it is waited for. One that says nothing
        for as long as a confirmation may take is left.
        """
        if not out:
            return []
        publishing = asyncio.ensure_future(session.publish(out))
        publishing.add_done_callback(_looked_at)
        was_blocked = False
        try:
            while not (await asyncio.wait((publishing,), timeout=self._confirm_s))[0]:
                is_blocked = await session.is_blocked()
                if not (is_blocked or was_blocked):
                    raise TimeoutError(f"RabbitMQ has confirmed nothing for {self._confirm_s:g} s")
                was_blocked = is_blocked
                if is_blocked:
                    self._patience.say(RABBITMQ, BLOCKED)
        finally:
            publishing.cancel()  # which changes nothing where it is done
            self._patience.say(RABBITMQ, None)
        return publishing.result()

    async def _reply(self, answer: Outgoing | None, one: Refused, session: Session) -> None:
        """An answer that nobody takes is no reason to try anything again: the dead letter has it too."""
        if answer is None:
            if one.received.reply_to:
                _metrics.REPLIES.labels("foreign").inc()
            return
        try:
            [failed] = await self._answers([answer], session)
        except (AMQPError, ConnectionError) as exc:
            failed = exc
        if failed is None:
            _metrics.REPLIES.labels("sent").inc()
        else:  # a queue that is full, a name that is none; if the session is over, the next step says so
            log.warning("an answer was not taken", reason=repr(failed)[:200], correlation_id=one.claims.correlation_id)
            _metrics.REPLIES.labels("foreign").inc()


def _looked_at(done: "asyncio.Future[list[Exception | None]]") -> None:
    """Whoever was cancelled looks at nothing; the loop would complain of it."""
    if not done.cancelled():
        done.exception()


def _report(one: Refused, at: datetime) -> ErrorReport:
    return ErrorReport.of(one.refusal, at=at, correlation_id=one.claims.correlation_id, retry_count=one.received.retry_count)
