"""`/ecq/{client_id}`: the live messages of a compacted queue, and its rewind."""

import asyncio

from fastapi import APIRouter, Depends
from fastapi.responses import Response
from pyiceberg.catalog import Catalog
from redis.exceptions import AuthenticationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from manifold import history
from manifold.api._callers import Right, needs
from manifold.api._document import FAILURES
from manifold.api._parameters import After, ClientId, Limit, require_json
from manifold.api._problems import problem
from manifold.api._sources import Sources
from manifold.api.models.ecq import CompactedQueue, LiveMessage, RewindTo, Rewound
from manifold.contracts.ecq import rewind_target
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.messages import ReceiptStatus
from manifold.history.ecq_from_queues import add_page_commands, page_of_replies
from manifold.history.merge import History
from manifold.messaging.publisher import Publisher
from manifold.queues import AsyncBatch, is_cluster, is_corrupt

PAGE = 100
MAX_CONCURRENT_REWINDS = 8  # each opens a connection to the broker
REWIND_FAILURES = FAILURES[413] | FAILURES[415]


def ecq_routes(sources: Sources) -> APIRouter:
    """Return the routes of compacted queues."""
    router = APIRouter(tags=["compacted queues"])
    rewind_limit = asyncio.Semaphore(MAX_CONCURRENT_REWINDS)

    @router.get("/ecq/{client_id}", dependencies=[Depends(needs(Right.READ))])
    async def show(client_id: ClientId, limit: Limit = PAGE, after: After = 0) -> CompactedQueue:
        """The live messages of a client's compacted queue and their states, oldest first, a page at a time."""
        page = history.Page(limit=limit, after=after)
        if sources.settings.direct_enqueue:  # otherwise Redis lacks recent writes, because only pipelines fill the queues
            queue = await _queue_in_redis(sources, client_id, page)
            if queue is not None:
                return _model_of(queue)

        def read(catalog: Catalog) -> history.CompactedQueue:
            return History(sources.settings, sources.blocking_redis(), catalog).compacted_queue(client_id, page)

        return _model_of(await sources.lake.ask(read))

    @router.post(
        "/ecq/{client_id}/rewind",
        responses=REWIND_FAILURES,
        response_model=Rewound,
        dependencies=[Depends(require_json), Depends(needs(Right.REWIND))],
    )
    async def rewind(client_id: ClientId, body: RewindTo) -> Rewound | Response:
        """Rewind a client's compacted queue to a message, and respond when the rewind is on disk.

        Only live messages are sent again, in order of `seq`.
        """
        if rewind_limit.locked():
            raise Retryable(f"{MAX_CONCURRENT_REWINDS} rewinds are under way; ask again")
        async with rewind_limit, Publisher(sources.settings, sources.settings.mqtt_username_api) as publisher:
            receipt = await publisher.rewind(client_id, body.to)
        if receipt.status is ReceiptStatus.REFUSED:
            return problem(422, f"the recorder refused it: {receipt.reason}")
        first_seq = rewind_target(body.to)
        assert first_seq is not None  # `RewindTo` accepts only valid positions
        return Rewound(client_id=client_id, seq=receipt.seq, first_seq=first_seq)

    return router


def _model_of(queue: history.CompactedQueue) -> CompactedQueue:
    return CompactedQueue.of(queue, entries=[LiveMessage.of(message) for message in queue.entries])


async def _queue_in_redis(sources: Sources, client_id: str, page: history.Page) -> history.CompactedQueue | None:
    """Return a page of the queue from Redis, or None if Redis is unavailable or does not have the whole page."""
    batch = AsyncBatch(sources.redis, sources.policy)
    add_page_commands(batch, client_id, page, of_cluster=is_cluster(sources.redis))
    try:
        return page_of_replies(await batch.run(), client_id, sources.settings.ecq_pending_retention)
    except AuthenticationError:  # derives from ConnectionError, but does not mean that Redis is unavailable
        raise
    except (RedisConnectionError, RedisTimeoutError):
        return None
    except ResponseError as exc:
        if is_corrupt(exc):
            reason = f"a key of {client_id} in Redis holds another type than it should"
            raise Permanent(f"{reason}; delete it, then `manifold rebuild`") from exc
        raise
