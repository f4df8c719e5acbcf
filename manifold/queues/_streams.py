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
            if group not in {_to_text(info["name"]) for info in groups}:
                raise
        except ResponseError as exc:
            if "BUSYGROUP" not in str(exc):  # the group exists
                raise


def records_of(reply: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Parse a reply to XREADGROUP into [(stream, [(record id, fields), …]), …].

    The reply may be of RESP2 or RESP3, and raw or already parsed by redis-py.
    """
    if reply is None:  # nothing to read
        return []
    by_stream = reply.items() if isinstance(reply, dict) else reply
    return [(stream, _parse_records(records)) for stream, records in by_stream]


def _parse_records(records: list[Any]) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Parse the records of one stream into [(record id, fields), …]."""
    # redis-py wraps the records of RESP3 in another list.
    is_wrapped = records and isinstance(records[0], list) and not isinstance(records[0][0], bytes)
    unwrapped = records[0] if is_wrapped else records
    return [(record_id, _parse_fields(fields)) for record_id, fields in unwrapped]


def _parse_fields(fields: dict[bytes, bytes] | list[bytes] | None) -> dict[bytes, bytes]:
    """Return the fields of a record as a dict. They are a dict, a flat list, or None if the record was deleted."""
    if fields is None:
        return {}
    return fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))


def texts(replies: Any) -> list[str]:
    """Decode replies, because the client does not."""
    return [reply.decode() for reply in replies]


def _to_text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name
