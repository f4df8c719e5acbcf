"""The outcomes stream, written by dispatchers and jobs and read by the recorder."""

from collections.abc import Iterable, Sequence
from itertools import chain

from manifold.contracts import keys
from manifold.contracts.outcomes import OutcomeRecord
from manifold.queues import _commands
from manifold.queues._streams import Streams, records_of


class OutcomeStream(Streams):
    """Outcomes that are not on the recorder's disk yet.

    Raises:
        redis.RedisError: from every method, if Redis is unavailable or rejects a command.
    """

    async def add_outcomes(self, records: Iterable[OutcomeRecord]) -> None:
        """Write outcomes to the stream, even if Redis is out of memory."""
        batch = self.batch()
        for record in records:
            batch.call(_commands.record_outcome(record), bytes, run_despite_oom=True)
        if batch:
            await batch.run()

    async def join_outcomes(self) -> None:
        """Create the consumer group of the outcomes stream if it is missing."""
        await self.make_group(keys.OUTCOMES, keys.OUTCOMES_GROUP)

    async def read_outcomes(self, consumer: str, *, count: int, block_ms: int, again: bool = False) -> list[tuple[bytes, bytes]]:
        """Read up to `count` outcomes as (record id, JSON), and wait up to `block_ms` for the first.

        With `again`, read the outcomes that this consumer has read before without settling them, and do not wait.
        """
        start = "0" if again else ">"  # "0": read by this consumer but not settled; ">": not read by any consumer
        block = None if again else block_ms
        reply = await self.redis.xreadgroup(keys.OUTCOMES_GROUP, consumer, {keys.OUTCOMES: start}, count=count, block=block)
        outcomes: list[tuple[bytes, bytes]] = []
        for _, records in records_of(reply):
            outcomes += _outcomes(records)
        return outcomes

    async def claim_stale_outcomes(self, consumer: str, *, idle_ms: int, count: int) -> list[tuple[bytes, bytes]]:
        """Take over outcomes that another recorder read but has not settled for `idle_ms`, as (record id, JSON)."""
        reply = await self.redis.xautoclaim(keys.OUTCOMES, keys.OUTCOMES_GROUP, consumer, idle_ms, count=count)
        records = reply[1]  # after the cursor of the next call
        return _outcomes(records)

    async def settle_outcomes(self, record_ids: Sequence[bytes]) -> None:
        """Remove outcomes that are on disk from the stream."""
        if record_ids:
            batch = self.batch()
            batch.call(("XACK", keys.OUTCOMES, keys.OUTCOMES_GROUP, *record_ids), int)
            batch.call(("XDEL", keys.OUTCOMES, *record_ids), int)
            await batch.run()


def _outcomes(records: list[tuple[bytes, dict[bytes, bytes]]]) -> list[tuple[bytes, bytes]]:
    """Return (record id, JSON) of each record, except those without fields: they were deleted after they had been read."""
    return [(record_id, _payload(fields)) for record_id, fields in records if fields]


def _payload(fields: dict[bytes, bytes]) -> bytes:
    """The JSON of a record. If another program wrote the record, all its bytes, which the recorder rejects and keeps."""
    if b"o" in fields:
        return fields[b"o"]
    return b" ".join(chain.from_iterable(fields.items()))
