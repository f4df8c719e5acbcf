"""A compacted queue as Redis has it: all that is live, how it stands, and whether Redis holds all that it should."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from contracts import keys
from contracts.outcomes import EntryState, Outcome
from contracts.queue_names import ecq_queue
from contracts.seq import wall_clock_ms
from history.ecq import LiveMessage
from queues import Batch, BlockingBatch, Policy, is_cluster
from queues.verbs.ecq import Read, ReadReply


@dataclass(frozen=True, slots=True)
class Queued:
    """What Redis says. Only where it is loaded, a message that it does not have may be taken for one that is not live."""

    is_loaded: bool
    reply: ReadReply

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to ask anybody else."""
        messages = self.reply.messages
        return self.is_loaded and bool(messages) and all(message.size_bytes is not None for message in messages)

    def messages(self) -> list[LiveMessage]:
        """All that is live, oldest first."""
        found = []
        for message in self.reply.messages:
            state: str = Outcome.DELIVERED if message.is_delivered else EntryState.PENDING
            if message.seq == self.reply.in_flight:
                state = EntryState.IN_FLIGHT
            found.append(LiveMessage(message.key, message.seq, message.size_bytes, state))
        return found


def ask_queue(batch: Batch, client_id: str, *, of_cluster: bool) -> None:
    """Add the questions to a batch, whose replies `queue_said` reads."""
    batch.add(ecq_queue(client_id), Read(), wall_clock_ms())
    for mark in keys.loaded_marks(of_cluster=of_cluster):
        batch.call(("GET", mark), lambda reply: reply)


def queue_said(replies: Sequence[Any]) -> Queued:
    """What the replies to `ask_queue` come to."""
    reply, *loaded = replies
    return Queued(all(loaded), reply)


def read_queue(redis: Redis, policy: Policy, client_id: str) -> Queued | None:
    """The queue in Redis, in one round trip; None: Redis is away.

    Raises:
        redis.ResponseError: a key holds another type than it should.
    """
    try:
        batch = BlockingBatch(redis, policy)
        ask_queue(batch, client_id, of_cluster=is_cluster(redis))
        return queue_said(batch.run())
    except AuthenticationError:  # the library takes it for one of the connection
        raise
    except (RedisConnectionError, RedisTimeoutError):
        return None
