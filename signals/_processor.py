"""What becomes of a group of messages: judged, held, sealed, journaled, published, marked done, acknowledged; in that order.

A message is acknowledged last. Whatever dies before that, RabbitMQ delivers it again: it may then lie in the journal twice, of
which the lake's key takes one, and its processed message may come twice, with the same id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TypeVar

import structlog
from redis.exceptions import RedisError

from adapters.day_keys import DayKeys
from archive.journal import Journal
from contracts.envelope import Envelope, Stream
from contracts.seq import SeqSource
from contracts.signals.bounds import Bounds
from contracts.signals.codes import Code, ErrorReport, Refusal
from contracts.signals.messages import RawSignal
from contracts.signals.processing import ProcessedData, process
from contracts.signals.records import raw_envelope, refused_envelope, status_envelope
from signals import _metrics, _outgoing
from signals._back_off import back_off_ms
from signals._checks import Checks
from signals._once import Claim, Once
from signals._outgoing import Outgoing
from signals._received import Accepted, Received
from signals._session import AWAY, Session

LARGE = 128 << 10  # bytes of a message that is judged in a thread, so that the loop goes on
RETRY_S = 1.0  # between two tries to reach a server without which nothing is let through
NOTHING_LEFT = "it did not work, as often as it was tried"

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Fate:
    """What became of the messages of a group; each message is in one of them."""

    taken: list[Accepted] = field(default_factory=list)
    data: dict[int, ProcessedData] = field(default_factory=dict)  # of what is taken, by delivery tag
    duplicates: list[Accepted] = field(default_factory=list)
    refused: list[tuple[Received, Refusal]] = field(default_factory=list)
    later: list[tuple[Received, str]] = field(default_factory=list)  # may work another time, and why not now


class Processor:
    """Settles groups of messages, one after the other. `problem` says which server it waits for."""

    def __init__(
        self,
        checks: Checks,
        once: Once,
        keys: DayKeys,
        journal: Journal,
        bounds: Bounds,
        may_record: Callable[[], Awaitable[None]],
        *,
        max_retries: int,
    ) -> None:
        self.problem: str | None = None
        self.seqs: SeqSource
        self._day: date | None = None  # whose key is known
        self._checks, self._once, self._keys, self._journal, self._bounds = checks, once, keys, journal, bounds
        self._may_record, self._max_retries = may_record, max_retries

    async def settle(self, group: Sequence[Received], session: Session) -> None:
        """Return when every message of the group is acknowledged.

        Raises:
            AMQPError, OSError, TimeoutError: the session is over; its messages come again.
        """
        fate = await self._judge(group)
        await self._process(fate)
        self._give_up(fate)
        await self._journal_all(fate)
        await self._publish_all(fate, session)
        if fate.taken:
            await self._patiently("Redis", lambda: self._once.done(fate.taken))
        await session.ack_up_to(group[-1])
        _count(fate, group)

    async def _judge(self, group: Sequence[Received]) -> Fate:
        fate, good, now = Fate(), list[Accepted](), datetime.now(UTC)
        for received in group:
            try:
                large = len(received.body) > LARGE or received.content_encoding
                judge = self._checks.judge
                judged = await asyncio.to_thread(judge, received, now) if large else judge(received, now)
            except Exception as exc:  # one bad message never stops the others
                log.exception("a check failed", correlation_id=received.correlation_id)
                fate.later.append((received, f"a check failed: {type(exc).__name__}"))
                continue
            if isinstance(judged, Refusal):
                fate.refused.append((received, judged))
            else:
                good.append(judged)
        claims = await self._patiently("Redis", lambda: self._once.claim(good)) if good else list[Claim]()
        held: set[tuple[str, str]] = set()
        for message, claim in zip(good, claims, strict=True):
            self._sort(fate, message, claim, held)
        return fate

    def _sort(self, fate: Fate, message: Accepted, claim: Claim, held: set[tuple[str, str]]) -> None:
        where = (message.said.device_id, message.key)
        match claim:
            case Claim.NEW | Claim.AGAIN if where not in held:
                held.add(where)
                fate.taken.append(message)
            case Claim.REPLAY:
                why = Refusal(Code.REPLAY_ERROR, "the nonce is that of another message", "x-nonce: a new one for each message")
                fate.refused.append((message.received, why))
            case Claim.CONFLICT:
                why = Refusal(
                    Code.IDEMPOTENCY_CONFLICT, "the key is that of another signal", "x-idempotency-key: one for each signal"
                )
                fate.refused.append((message.received, why))
            case Claim.BUSY if where not in held:
                fate.later.append((message.received, "another message has the same signal in hand"))
            case _:  # processed before, or is being processed in this group
                fate.duplicates.append(message)

    async def _process(self, fate: Fate) -> None:
        """Readings and anomalies of what is taken; a signal on which that fails is free for whoever sends it again."""
        failed: list[Accepted] = []
        for message in fate.taken:
            if isinstance(message.said, RawSignal):
                try:
                    large = len(message.plain) > LARGE
                    args = message.plain, self._bounds
                    data = await asyncio.to_thread(process, *args) if large else process(*args)
                except Exception as exc:  # as above
                    log.exception("a signal cannot be processed", correlation_id=message.correlation_id)
                    fate.later.append((message.received, f"processing failed: {type(exc).__name__}"))
                    failed.append(message)
                else:
                    fate.data[message.received.tag] = data
        if failed:
            fate.taken = [message for message in fate.taken if message not in failed]
            await self._patiently("Redis", lambda: self._once.release(failed))

    def _give_up(self, fate: Fate) -> None:
        """What was tried as often as it may be is refused."""
        for received, why in [entry for entry in fate.later if entry[0].retry_count >= self._max_retries]:
            fate.later.remove((received, why))
            fate.refused.append((received, Refusal(Code.PROCESSING_ERROR, NOTHING_LEFT, why)))

    async def _journal_all(self, fate: Fate) -> None:
        if not fate.taken and not fate.refused:
            return
        await self._may_record()
        envelopes = await self._patiently("the storage of day keys", lambda: self._sealed(fate))
        await self._journal.append(envelopes)

    async def _sealed(self, fate: Fate) -> list[Envelope]:
        """In a thread where there is much to seal, and where a day begins, whose key is read or made."""
        bodies = sum(len(m.plain) for m in fate.taken) + sum(len(r.body) for r, _ in fate.refused)
        today = datetime.now(UTC).date()
        if bodies <= LARGE and today == self._day:
            return self._seal(fate)
        envelopes = await asyncio.to_thread(self._seal, fate)
        self._day = today
        return envelopes

    def _seal(self, fate: Fate) -> list[Envelope]:
        envelopes = []
        for message in fate.taken:
            seq, at = self.seqs.next(), message.received.at
            if isinstance(message.said, RawSignal):
                sealed = self._keys.seal(message.plain, seq=seq)
                about = {"key": message.key, "correlation_id": message.correlation_id}
                envelopes.append(raw_envelope(seq, at, message.said, sealed, payload=message.plain, **about))
            else:
                envelopes.append(status_envelope(seq, at, message.said, correlation_id=message.correlation_id))
        for received, refusal in fate.refused:
            seq, stream = self.seqs.next(), Stream.XRAY_STATUS if received.is_status else Stream.XRAY_RAW
            envelopes.append(refused_envelope(seq, received.at, stream, refusal, self._keys.seal(received.body, seq=seq)))
        return envelopes

    async def _publish_all(self, fate: Fate, session: Session) -> None:
        now = datetime.now(UTC)
        out = [self._processed(fate, message, now) for message in fate.taken if isinstance(message.said, RawSignal)]
        out += [_outgoing.retry(received, back_off_ms(received.retry_count)) for received, _ in fate.later]
        reports = [(received, _report(received, refusal, now)) for received, refusal in fate.refused]
        out += [_outgoing.dead_letter(received, report) for received, report in reports]
        await _publish(out, session)
        for received, report in reports:
            await _reply(_outgoing.reply(received, report, now), received, session)

    def _processed(self, fate: Fate, message: Accepted, now: datetime) -> Outgoing:
        assert isinstance(message.said, RawSignal)
        return _outgoing.processed(message, message.said, fate.data[message.received.tag], now)

    async def _patiently(self, server: str, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, as soon as the server is there; until then nothing goes on, and RabbitMQ keeps what comes."""
        while True:
            try:
                done = await work()
            except (RedisError, OSError) as exc:
                self._say(f"{server} is away ({exc}): nothing is let through; it goes on by itself")
                await asyncio.sleep(RETRY_S)
            else:
                self._say(None)
                return done

    def _say(self, problem: str | None) -> None:
        if problem is not None and self.problem is None:
            log.warning("the door waits", reason=problem)
        if problem is None and self.problem is not None:
            log.info("the door goes on")
        self.problem = problem
        _metrics.WAITING.set(problem is not None)


def _report(received: Received, refusal: Refusal, at: datetime) -> ErrorReport:
    return ErrorReport.of(refusal, at=at, correlation_id=received.correlation_id, retry_count=received.retry_count)


async def _publish(out: Iterable[Outgoing], session: Session) -> None:
    """Return when all of them are confirmed."""
    wanted = list(out)
    answers = await asyncio.gather(*(_sent(one, session) for one in wanted), return_exceptions=True)
    for one, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, (*AWAY, asyncio.CancelledError)):
            raise answer
        if isinstance(answer, BaseException):
            log.warning("headers cannot be sent on", reason=repr(answer)[:200])
            await _sent(_outgoing.without_headers(one), session)


async def _sent(one: Outgoing, session: Session) -> None:
    await session.publish(one.exchange, one.key, one.body, one.properties, mandatory=one.mandatory)


async def _reply(answer: Outgoing | None, received: Received, session: Session) -> None:
    """An answer that nobody takes is no reason to try anything again: the dead letter has it too."""
    if answer is None:
        if received.reply_to:
            _metrics.REPLIES.labels("foreign").inc()
        return
    try:
        await _sent(answer, session)
    except Exception as exc:  # noqa: BLE001  # a queue that is full, a name that is none; if the session is over, the next step says so
        log.warning("an answer was not taken", reason=repr(exc)[:200], correlation_id=received.correlation_id)
        _metrics.REPLIES.labels("foreign").inc()
    else:
        _metrics.REPLIES.labels("sent").inc()


def _count(fate: Fate, group: Sequence[Received]) -> None:
    now = datetime.now(UTC)
    for received in group:
        _metrics.PROCESSING_SECONDS.observe(max(0.0, (now - received.at).total_seconds()))
    _metrics.GROUP_MESSAGES.observe(len(group))
    _metrics.BYTES.inc(sum(len(received.body) for received in group))
    statuses = sum(1 for message in fate.taken if message.received.is_status)
    outcomes = {
        "processed": len(fate.taken) - statuses,
        "status": statuses,
        "duplicate": len(fate.duplicates),
        "refused": len(fate.refused),
        "retried": len(fate.later),
    }
    for outcome, count in outcomes.items():
        if count:
            _metrics.MESSAGES.labels(outcome).inc(count)
    for received, refusal in fate.refused:
        _metrics.ERRORS.labels(refusal.code.value).inc()
        _log(received, "refused", now, code=refusal.code.value, reason=refusal.message)
    for received, why in fate.later:
        _log(received, "retried", now, reason=why, retry_count=received.retry_count)
    for message in fate.taken:
        _log(message.received, "processed", now, device_id=message.said.device_id)
    for message in fate.duplicates:
        _log(message.received, "duplicate", now, device_id=message.said.device_id)


def _log(received: Received, status: str, now: datetime, **more: object) -> None:
    """One line a message; at `debug` where nothing is wrong."""
    tell = log.debug if status in ("processed", "duplicate") else log.warning
    duration_ms = round((now - received.at).total_seconds() * 1000, 1)
    tell("message", status=status, correlation_id=received.correlation_id, queue=received.queue, duration_ms=duration_ms, **more)
