"""From effects to Redis commands: the effects of many owners, in one batch."""

from collections.abc import Iterator, Sequence

import structlog
from redis.exceptions import ResponseError

from contracts import keys
from contracts.events import Connected, Disconnected, Subscribed
from contracts.names import Owner
from contracts.topics import Sign
from dispatcher import _metrics
from dispatcher._account import RequestIdOf, account_answers
from dispatcher._vocabulary import (
    Ack,
    Answered,
    Claim,
    Effect,
    End,
    Heard,
    Ignore,
    Park,
    Release,
    Touch,
    Verb,
    Watch,
)
from queues import Batch, Queues, is_spoilt

log = structlog.get_logger(__name__)


class Round:
    """The Redis side of one round. It can be sent again: the time in every verb stays, and no verb twice does more than once."""

    def __init__(self, queues: Queues, now_ms: int, request_id_of: RequestIdOf = lambda _: None) -> None:
        self._queues, self._now_ms, self._request_id_of = queues, now_ms, request_id_of
        self._verbs: list[tuple[Owner, Verb]] = []
        self._watches: dict[int, dict[str, int]] = {}  # shard → owner → when to look

    def __len__(self) -> int:
        return len(self._verbs) + len(self._watches)

    def add(self, owner: Owner, effect: Effect) -> bool:
        """Take `effect` into the round; whether it is a verb, which Redis answers."""
        match effect:
            case Watch(at_ms):
                self._watches.setdefault(keys.shard_of(owner, self._queues.policy.wake_shards), {})[owner] = at_ms
                return False
            case Claim() | Touch() | Ack() | End() | Release() | Park():
                self._verbs.append((owner, effect))
                return True
            case _:
                assert isinstance(effect, Ignore)
                return False

    async def run(self, *, repeated: bool) -> list[Answered | None]:
        """The answers of the verbs, in the order in which they were added; None to one whose owner's keys are spoilt.

        Raises:
            redis.RedisError: the connection failed, or Redis refused a command; send it again.
        """
        try:
            answers = await self._run_together(repeated)
        except ResponseError as exc:
            if not is_spoilt(exc):
                raise
            answers = [answer for each in self._apart() for answer in await each._run_alone(repeated)]
        answered = [(owner, answer) for (owner, _), answer in zip(self._verbs, answers, strict=True) if answer is not None]
        account_answers(answered, self._request_id_of)
        return answers

    def _apart(self) -> "Iterator[Round]":
        """The same round in pieces: each verb by itself."""
        for owner, verb in self._verbs:
            each = Round(self._queues, self._now_ms, self._request_id_of)
            each._verbs.append((owner, verb))
            yield each
        rest = Round(self._queues, self._now_ms, self._request_id_of)
        rest._watches = self._watches
        yield rest

    async def _run_alone(self, repeated: bool) -> "Sequence[Answered | None]":
        """One verb, which must not hold up the others for ever."""
        try:
            return await self._run_together(repeated)
        except ResponseError as exc:
            if not self._verbs or not is_spoilt(exc):
                raise
        owner, verb = self._verbs[0]
        _metrics.GIVEN_UP.inc()
        log.error("this vehicle's keys in Redis are spoilt: delete them, then `manifold rebuild`", vin=owner, verb=repr(verb))
        return [None]

    async def _run_together(self, repeated: bool) -> list[Answered | None]:
        batch = self._queues.batch()
        places = [_add_verb(batch, owner, verb, self._now_ms) for owner, verb in self._verbs]
        for shard, watches in self._watches.items():
            batch.insist(
                ("ZADD", keys.deadlines(shard), *(part for owner, at_ms in watches.items() for part in (at_ms, owner))), int
            )
        replies = await batch.run()
        return [
            Answered(verb, replies[place], self._now_ms, repeated) for (_, verb), place in zip(self._verbs, places, strict=True)
        ]


def _add_verb(batch: Batch, owner: Owner, verb: Verb, now_ms: int) -> int:
    """The place of the verb's answer among the batch's replies."""
    match verb:
        case Claim():
            batch.claim(owner, now_ms)
        case Ack(record, request_id):
            batch.ack(record, now_ms, request_id=request_id)
        case End(records):
            batch.end(owner, records, now_ms, claim_next=True)
        case Release(seq, reason, claimed_ms):
            batch.release(owner, seq, now_ms, reason, claimed_ms)
        case Touch(seen, claim):
            _add_touch(batch, owner, seen, claim, now_ms)
        case Park(seq, data_id):
            return batch.park(owner, seq, data_id, now_ms)
    return len(batch) - 1


def _add_touch(batch: Batch, owner: Owner, seen: Heard | Connected | Disconnected | Subscribed, claim: bool, now_ms: int) -> None:
    match seen:
        case Heard():
            batch.heard(owner, Sign.HEARTBEAT, now_ms, claim_next=claim)
        case Connected():
            batch.connected(owner, seen.at_ms, seen.clean_start, seen.expiry_s, now_ms, claim_next=claim)
        case Disconnected():
            batch.disconnected(owner, seen.connected_at_ms, seen.at_ms, seen.expiry_s, now_ms)
        case Subscribed():
            batch.subscribed(owner, seen.on, now_ms, claim_next=claim)
