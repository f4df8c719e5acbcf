"""Publishes the results of a group: processed signals, retries, dead letters, and error replies."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog

from manifold.contracts.signals.codes import ErrorReport
from manifold.contracts.signals.messages import RawSignal
from manifold.signals import _metrics, _outgoing
from manifold.signals._disposition import Disposition, Refused
from manifold.signals._outgoing import Outgoing
from manifold.signals._received import Received
from manifold.signals._retry import Retry
from manifold.signals._session import PublishRejectedError, Session

RABBITMQ = "RabbitMQ"
BLOCKED = "RabbitMQ blocks publishers (memory or disk alarm); paused; resumes automatically"

log = structlog.get_logger(__name__)


class Publishing:
    """Publishes the results of a group and waits for the confirms."""

    def __init__(self, retry: Retry, *, confirm_s: float) -> None:
        self._retry, self._confirm_s = retry, confirm_s

    async def publish(self, disposition: Disposition, session: Session) -> None:
        """Publish the results; return when all are confirmed or rejected by a full queue. Sets `disposition.rejected_by`.

        Raises:
            AMQPError, OSError, TimeoutError: the session has ended.
        """
        now = datetime.now(UTC)
        out: list[tuple[Received, Outgoing]] = [
            (message.received, _outgoing.processed(message, message.parsed, disposition.data[message.received.tag], now))
            for message in disposition.taken
            if isinstance(message.parsed, RawSignal)
        ]
        most = session.max_properties
        out += [
            (received, _outgoing.retry(received, _outgoing.back_off_ms(received.retry_count), max_properties=most))
            for received, _ in disposition.later
        ]
        reports = [(one, _report(one, now)) for one in disposition.refused]
        out += [(one.received, _outgoing.dead_letter(one.received, report, max_properties=most)) for one, report in reports]
        disposition.rejected_by = await self._all(out, session)
        for one, report in [pair for pair in reports if pair[0].received.tag not in disposition.rejected_by]:
            await self._reply(_outgoing.reply(one.received, report, now), one, session)

    async def _all(self, out: Sequence[tuple[Received, Outgoing]], session: Session) -> dict[int, str]:
        """Publish; return the full queue that rejected a message, by the delivery tag of the original."""
        rejected_by = {}
        answers = await self._answers([one for _, one in out], session)
        for (received, one), answer in zip(out, answers, strict=True):
            if isinstance(answer, PublishRejectedError):
                _metrics.REJECTED_PUBLISHES.labels(one.key).inc()
                rejected_by[received.tag] = one.key
            elif answer is not None:
                raise answer
        return rejected_by

    async def _answers(self, out: Sequence[Outgoing], session: Session) -> list[Exception | None]:
        """Publish; return for each message None if confirmed, else the error.

        A server with a memory or disk alarm reports itself blocked, and confirms later: wait for it. Give up on a server that is
        silent for longer than the confirm timeout.
        """
        if not out:
            return []
        publishing = asyncio.ensure_future(session.publish(out))
        publishing.add_done_callback(_retrieve_exception)
        was_blocked = False
        try:
            while not (await asyncio.wait((publishing,), timeout=self._confirm_s))[0]:
                is_blocked = await session.is_blocked()
                if not (is_blocked or was_blocked):
                    raise TimeoutError(f"RabbitMQ has confirmed nothing for {self._confirm_s:g} s")
                was_blocked = is_blocked
                if is_blocked:
                    self._retry.set_problem(RABBITMQ, BLOCKED)
        finally:
            publishing.cancel()  # no effect once done
            self._retry.set_problem(RABBITMQ, None)
        return publishing.result()

    async def _reply(self, answer: Outgoing | None, one: Refused, session: Session) -> None:
        """Publish an error reply. Failures are only logged: the dead letter has the error too."""
        if answer is None:
            if one.received.reply_to:
                _metrics.REPLIES.labels("foreign").inc()
            return
        [failed] = await self._answers([answer], session)
        if failed is None:
            _metrics.REPLIES.labels("sent").inc()
        else:  # the queue is full or does not exist; a lost session surfaces in the next step
            log.warning("error reply not delivered", reason=repr(failed)[:200], correlation_id=one.stated.correlation_id)
            _metrics.REPLIES.labels("foreign").inc()


def _retrieve_exception(done: "asyncio.Future[list[Exception | None]]") -> None:
    """Retrieve the exception so that asyncio does not warn about a cancelled publish."""
    if not done.cancelled():
        done.exception()


def _report(one: Refused, at: datetime) -> ErrorReport:
    return ErrorReport.of(one.refusal, at=at, correlation_id=one.stated.correlation_id, retry_count=one.received.retry_count)
