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
        """Publish the results; return once each result is confirmed or rejected by a full queue. Sets `disposition.rejected_by`.

        Raises:
            AMQPError, OSError, TimeoutError: the session has ended.
        """
        now = datetime.now(UTC)
        max_properties = session.max_properties
        results = list[tuple[Received, Outgoing]]()
        for message in disposition.claimed:
            if isinstance(message.parsed, RawSignal):  # a device status is only recorded
                data = disposition.processed_data[message.received.tag]
                results.append((message.received, _outgoing.processed(message, message.parsed, data, now)))
        for received, _ in disposition.to_retry:
            delay_ms = _outgoing.back_off_ms(received.retry_count)
            results.append((received, _outgoing.retry(received, delay_ms, max_properties=max_properties)))
        reports = [(refused, _report(refused, now)) for refused in disposition.refused]
        for refused, report in reports:
            letter = _outgoing.dead_letter(refused.received, report, max_properties=max_properties)
            results.append((refused.received, letter))
        disposition.rejected_by = await self._publish_all(results, session)
        for refused, report in reports:
            # If a full queue rejected the dead letter, it is published again later, and the reply is sent then.
            if refused.received.tag not in disposition.rejected_by:
                await self._reply(_outgoing.reply(refused.received, report, now), refused, session)

    async def _publish_all(self, results: Sequence[tuple[Received, Outgoing]], session: Session) -> dict[int, str]:
        """Publish results, each paired with its original message.

        Return the full queues that rejected results: delivery tag of the original message → name of the queue. Raise the error
        of any other result that is not confirmed.
        """
        rejected_by = {}
        errors = await self._publish_confirmed([outgoing for _, outgoing in results], session)
        for (received, outgoing), error in zip(results, errors, strict=True):
            if isinstance(error, PublishRejectedError):
                _metrics.REJECTED_PUBLISHES.labels(outgoing.key).inc()
                rejected_by[received.tag] = outgoing.key
            elif error is not None:
                raise error
        return rejected_by

    async def _publish_confirmed(self, messages: Sequence[Outgoing], session: Session) -> list[Exception | None]:
        """Publish and wait for the confirms; return for each message None if it is confirmed, else the error.

        A server with a memory or disk alarm blocks its publishers and sends the confirms after the alarm, so wait without a limit
        while it blocks. Raise TimeoutError if the server does not send all confirms within the timeout although it does not
        block.
        """
        if not messages:
            return []
        publishing = asyncio.ensure_future(session.publish(messages))
        publishing.add_done_callback(_retrieve_exception)
        was_blocked = False
        try:
            while True:
                done, _ = await asyncio.wait((publishing,), timeout=self._confirm_s)
                if done:
                    break
                is_blocked = await session.is_blocked()
                if not is_blocked and not was_blocked:  # just after an alarm, the server has the timeout once more
                    raise TimeoutError(f"RabbitMQ has confirmed nothing for {self._confirm_s:g} s")
                was_blocked = is_blocked
                if is_blocked:
                    self._retry.set_problem(RABBITMQ, BLOCKED)
        finally:
            publishing.cancel()  # no effect once done
            self._retry.set_problem(RABBITMQ, None)
        return publishing.result()

    async def _reply(self, reply: Outgoing | None, refused: Refused, session: Session) -> None:
        """Publish the error reply of a refused message; `reply` is None if there is none to send.

        A failure is only logged, because the dead letter has the error too.
        """
        if reply is None:
            if refused.received.reply_to:  # the sender asked for a reply, but to a queue that gets none
                _metrics.REPLIES.labels("foreign").inc()
            return
        [error] = await self._publish_confirmed([reply], session)
        if error is None:
            _metrics.REPLIES.labels("sent").inc()
        else:  # the queue is full, or the session is lost, which the acknowledgement of the group will report
            ids = {"reply_to": reply.key, "correlation_id": refused.stated.correlation_id}
            log.warning("error reply not delivered", **ids, reason=repr(error)[:200])
            _metrics.REPLIES.labels("lost").inc()


def _retrieve_exception(done: "asyncio.Future[list[Exception | None]]") -> None:
    """Retrieve the exception so that asyncio does not warn about a cancelled publish."""
    if not done.cancelled():
        done.exception()


def _report(refused: Refused, at: datetime) -> ErrorReport:
    correlation_id, retry_count = refused.stated.correlation_id, refused.received.retry_count
    return ErrorReport.of(refused.refusal, at=at, correlation_id=correlation_id, retry_count=retry_count)
