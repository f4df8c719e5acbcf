"""The effects on many queues that Redis carries out, as one batch in one round trip."""

import structlog
from redis.exceptions import RedisError

from dispatcher import _metrics
from dispatcher._brakes import Brakes
from dispatcher._events import Answered, Effect, Verb, Watch
from dispatcher._metrics_log import RequestIdOf, count_answers
from manifold.contracts import keys
from manifold.contracts.queue_names import QueueName
from manifold.queues import DELETE_KEYS, LAST, Queues, is_corrupt
from manifold.queues.verbs import verb

log = structlog.get_logger(__name__)


class EffectBatch:
    """The verbs and watches of one batch of effects.

    It can be sent again: every verb keeps its time, and the same verb changes nothing the second time.
    """

    def __init__(
        self,
        queues: Queues,
        now_ms: int,
        asked_at: int,
        request_id_of: RequestIdOf = lambda _: None,
        brakes: Brakes | None = None,
    ) -> None:
        self._queues, self._now_ms, self._asked_at, self._request_id_of = queues, now_ms, asked_at, request_id_of
        self._brakes = brakes
        self._verbs: list[tuple[QueueName, Verb]] = []
        self._watches: dict[int, dict[str, int]] = {}  # shard → queue → when to check, Unix ms

    def __len__(self) -> int:
        return len(self._verbs) + len(self._watches)

    def add(self, queue: QueueName, effect: Effect) -> bool:
        """Add `effect`; returns whether it is a verb, which Redis replies to."""
        if isinstance(effect, verb.Verb):
            self._verbs.append((queue, effect))
            return True
        if isinstance(effect, Watch):
            self._watches.setdefault(keys.shard_of(queue, self._queues.policy.wake_shards), {})[queue] = effect.at_ms
        return False

    async def run(self, *, repeated: bool) -> list[Answered | None]:
        """Send the batch; returns the verbs' replies in order, None for a verb whose queue has corrupt keys.

        Raises:
            redis.RedisError: the connection failed, or Redis rejected a command; send it again.
        """
        batch, now_ms = self._queues.batch(), self._now_ms
        for queue, each in self._verbs:
            batch.add(queue, each, now_ms)
        for shard, watches in self._watches.items():
            batch.watch(shard, watches)
        if self._brakes is not None:  # last: entries that were just claimed must not be judged by older brakes
            batch.call(("GET", keys.BRAKES_VERSION), _version, stage=LAST)
        replies = await batch.run(tolerant=True)
        if self._brakes is not None:
            version = replies.pop()
            self._brakes.note_version(b"" if is_corrupt(version) else version, self._asked_at)
        for reply in replies[len(self._verbs) :]:
            if isinstance(reply, RedisError):  # the deadline index is shared by all owners
                raise reply
        answers: list[Answered | None] = []
        for (queue, each), reply in zip(self._verbs, replies, strict=False):
            if is_corrupt(reply):
                _give_up(queue, each)
            answers.append(None if is_corrupt(reply) else Answered(each, reply, now_ms, self._asked_at, repeated))
        answered = [(queue, answer) for (queue, _), answer in zip(self._verbs, answers, strict=True) if answer is not None]
        count_answers(answered, self._request_id_of)
        return answers


def _version(reply: bytes | None) -> bytes:
    return reply or b""


def _give_up(queue: QueueName, what: Verb) -> None:
    """Skip a queue with corrupt keys, so that it does not block the others."""
    _metrics.GIVEN_UP.inc()
    log.error("corrupt keys in redis; queue skipped", vin=queue, verb=repr(what), remedy=DELETE_KEYS)
