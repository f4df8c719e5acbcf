"""Shared base of the streams of the queues: consumer groups, and the parsing of records."""

from typing import Any

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from manifold.queues._drivers import AsyncBatch
from manifold.queues._policy import Policy


class Streams:
    """A Redis client and a policy. `redis` must not decode responses: payloads are bytes."""

    def __init__(self, redis: Redis, policy: Policy) -> None:
        self.redis, self.policy = redis, policy

    def batch(self) -> AsyncBatch:
        """Create an empty batch of verbs."""
        return AsyncBatch(self.redis, self.policy)

    async def make_group(self, stream: str, group: str) -> None:
        """Create a consumer group that reads a stream from its beginning, if it is missing."""
        try:
            await self.redis.xgroup_create(stream, group, id="0", mkstream=True)
        except OutOfMemoryError:  # raised even if the group exists
            groups: Any = await self.redis.xinfo_groups(stream)
            if group not in {_as_text(each["name"]) for each in groups}:
                raise
        except ResponseError as exc:
            if "BUSYGROUP" not in str(exc):
                raise


def records_of(found: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Parse a reply to XREADGROUP into [(stream, [(record id, fields), …]), …], under RESP2 and RESP3, raw or parsed."""
    by_stream = found.items() if isinstance(found, dict) else found or ()
    return [(name, [_record(*record) for record in _records(records)]) for name, records in by_stream]


def _records(records: list[Any]) -> list[Any]:
    """The records of one stream. redis-py wraps those of RESP3 in another list."""
    return records[0] if records and isinstance(records[0], list) and not isinstance(records[0][0], bytes) else records


def _record(record_id: bytes, fields: Any) -> tuple[bytes, dict[bytes, bytes]]:
    """A record with its fields as a dict. `fields` is a dict, a flat list, or None if the record was deleted."""
    if isinstance(fields, dict):
        return record_id, fields
    return record_id, dict(zip(fields[::2], fields[1::2], strict=True)) if fields else {}


def texts(replies: Any) -> list[str]:
    """Decode replies, because the client does not."""
    return [reply.decode() for reply in replies]


def _as_text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
