"""Entries as read from the queues alone."""

import time
import uuid

from redis import Redis

from manifold.contracts import keys
from manifold.contracts.seq import seq_of
from manifold.history.entry import EntryHistory
from manifold.history.from_queues import waiting_of, with_current_states


def test_an_entry_in_flight_without_its_publish_time_has_no_dispatch_time(redis: Redis) -> None:
    vin, seq = f"F-{uuid.uuid4().hex}", seq_of(time.time_ns() // 1_000_000, 0, 0)
    redis.zadd(keys.pending(vin), {str(seq): seq})
    redis.hset(keys.inflight(vin), mapping={"seq": seq, "attempts": 1})

    _, waiting = waiting_of(redis, vin, 10)
    current = with_current_states(redis, [EntryHistory(vin, seq, "", "")], retention_days=1)

    assert [(entry.state, entry.dispatched_at, entry.attempts) for entry in waiting + current] == [("in flight", None, 1)] * 2
