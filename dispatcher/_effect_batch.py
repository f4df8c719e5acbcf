"""Collects the effects on many queues that Redis carries out, and sends them as one batch in one round trip."""

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

    `now_ms` (Unix ms) and `asked_at` (by `monotonic_ms`) are the time of the batch. The batch may be sent again: the verbs keep
    their time, and a verb that has taken effect changes nothing the second time.
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
        self._watches: dict[int, dict[str, int]] = {}  # shard → queue → when to check the queue, in Unix ms

    def __len__(self) -> int:
        return len(self._verbs) + len(self._watches)

    def add(self, queue: QueueName, effect: Effect) -> bool:
        """Add `effect`; returns whether it is a verb, whose reply `run` returns. An `Ignore` adds nothing."""
        if isinstance(effect, verb.Verb):
            self._verbs.append((queue, effect))
            return True
        if isinstance(effect, Watch):
            shard = keys.shard_of(queue, self._queues.policy.wake_shards)
            self._watches.setdefault(shard, {})[queue] = effect.at_ms
        return False

    async def run(self, *, repeated: bool) -> list[Answered | None]:
        """Send the batch. Returns the replies to the verbs in order; None for a verb whose queue has corrupt keys.

        `repeated` says whether the batch was sent before.

        Raises:
            redis.RedisError: the connection failed, or Redis rejected a command; send the batch again.
        """
        batch, now_ms = self._queues.batch(), self._now_ms
        for queue, sent_verb in self._verbs:
            batch.add(queue, sent_verb, now_ms)
        for shard, watches in self._watches.items():
            batch.watch(shard, watches)
        # Read the version after the claims: a claimed entry must not be judged by brakes that are older than its claim.
        if self._brakes is not None:
            batch.call(("GET", keys.BRAKES_VERSION), _version, stage=LAST)
        replies = await batch.run(tolerant=True)
        if self._brakes is not None:
            version = replies.pop()
            self._brakes.compare_version(b"" if is_corrupt(version) else version, self._asked_at)  # b"": no brakes
        verb_replies, watch_replies = replies[: len(self._verbs)], replies[len(self._verbs) :]
        for reply in watch_replies:
            if isinstance(reply, RedisError):  # a corrupt deadline index concerns all owners, not only one queue
                raise reply
        answers: list[Answered | None] = []
        answered: list[tuple[QueueName, Answered]] = []
        for (queue, sent_verb), reply in zip(self._verbs, verb_replies, strict=True):
            if is_corrupt(reply):
                _report_corrupt(queue, sent_verb)
                answers.append(None)
                continue
            answer = Answered(sent_verb, reply, now_ms, self._asked_at, repeated)
            answers.append(answer)
            answered.append((queue, answer))
        count_answers(answered, self._request_id_of)
        return answers


def _version(reply: bytes | None) -> bytes:
    return reply or b""


def _report_corrupt(queue: QueueName, failed_verb: Verb) -> None:
    """Report a verb that failed because its queue has corrupt keys. The verb gets no reply, and all other queues continue."""
    _metrics.GIVEN_UP.inc()
    log.error("corrupt keys in redis; queue skipped", queue=queue, verb=repr(failed_verb), remedy=DELETE_KEYS)
