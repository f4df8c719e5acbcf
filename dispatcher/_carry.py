"""From effects to Redis commands: the effects of many owners, in one batch."""

from collections.abc import Iterator, Sequence

import structlog
from redis.exceptions import ResponseError

from contracts import keys
from contracts.events import Connected, Disconnected, Subscribed
from contracts.names import Owner
from contracts.topics import Sign
from dispatcher import _metrics
from dispatcher._account import RequestIdOf, account_answers, account_outcomes
from dispatcher._vocabulary import (
    Ack,
    Answered,
    Claim,
    Effect,
    End,
    Heard,
    Ignore,
    Park,
    RecordOutcome,
    Release,
    Touch,
    Verb,
    Watch,
)
from queues import Batch, Queues

SPOILT = "WRONGTYPE"  # what Redis says where somebody has put another type under an owner's key: no wait cures that

log = structlog.get_logger(__name__)


class Round:
    """The Redis side of one round. It can be sent again: the time in every verb stays, and no verb twice does more than once."""

    def __init__(self, queues: Queues, now_ms: int, request_id_of: RequestIdOf = lambda _: None) -> None:
        self._queues, self._now_ms, self._request_id_of = queues, now_ms, request_id_of
        self._effects: list[tuple[Owner, Verb | RecordOutcome]] = []
        self._watches: dict[int, dict[str, int]] = {}  # shard → owner → when to look

    def __len__(self) -> int:
        return len(self._effects) + len(self._watches)

    def add(self, owner: Owner, effect: Effect) -> bool:
        """Take `effect` into the round; whether it is a verb, which Redis answers."""
        match effect:
            case Watch(at_ms):
                self._watches.setdefault(keys.shard_of(owner, self._queues.policy.wake_shards), {})[owner] = at_ms
                return False
            case RecordOutcome():
                self._effects.append((owner, effect))
                return False
            case Claim() | Touch() | Ack() | End() | Release() | Park():
                self._effects.append((owner, effect))
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
            if not str(exc).startswith(SPOILT):
                raise
            answers = [answer for each in self._apart() for answer in await each._run_alone(repeated)]
        records = (effect.record for _, effect in self._effects if isinstance(effect, RecordOutcome))
        account_outcomes(records, self._request_id_of)
        owners = (owner for owner, effect in self._effects if not isinstance(effect, RecordOutcome))
        answered = ((owner, answer) for owner, answer in zip(owners, answers, strict=True) if answer is not None)
        account_answers(answered, self._request_id_of)
        return answers

    def _apart(self) -> "Iterator[Round]":
        """The same round in pieces: each effect by itself, the outcomes first, as in the whole."""
        for owner, effect in self._effects:
            each = Round(self._queues, self._now_ms, self._request_id_of)
            each._effects.append((owner, effect))
            yield each
        rest = Round(self._queues, self._now_ms, self._request_id_of)
        rest._watches = self._watches
        yield rest

    async def _run_alone(self, repeated: bool) -> "Sequence[Answered | None]":
        """One effect, which must not hold up the others for ever. An outcome is never given up."""
        try:
            return await self._run_together(repeated)
        except ResponseError as exc:
            if not self._effects or isinstance(self._effects[0][1], RecordOutcome) or not str(exc).startswith(SPOILT):
                raise
        owner, verb = self._effects[0]
        _metrics.GIVEN_UP.inc()
        log.error("this vehicle's keys in Redis are spoilt: delete them, then `manifold rebuild`", vin=owner, verb=repr(verb))
        return [None]

    async def _run_together(self, repeated: bool) -> list[Answered | None]:
        batch = self._queues.batch()
        verbs: list[tuple[int, Verb]] = []  # place of its answer in the batch
        for owner, effect in self._effects:
            if isinstance(effect, RecordOutcome):
                batch.insist(("XADD", keys.OUTCOMES, "*", "o", effect.record.to_wire()), bytes)
            else:
                verbs.append((_add_verb(batch, owner, effect, self._now_ms), effect))
        for shard, watches in self._watches.items():
            batch.insist(
                ("ZADD", keys.deadlines(shard), *(part for owner, at_ms in watches.items() for part in (at_ms, owner))), int
            )
        replies = await batch.run()
        return [Answered(verb, replies[place], self._now_ms, repeated) for place, verb in verbs]


def _add_verb(batch: Batch, owner: Owner, verb: Verb, now_ms: int) -> int:
    """The place of the verb's answer among the batch's replies."""
    match verb:
        case Claim():
            batch.claim(owner, now_ms)
        case Ack(seq, outcome, request_id=request_id):
            batch.ack(owner, seq, now_ms, request_id=request_id, outcome=outcome)
        case End(over):
            batch.end(owner, [(each.seq, each.outcome) for each in over], now_ms, claim_next=True)
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
