"""Digests over a scan of the queues, with keys that Redis returns twice."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.seq import MAX_NODE
from pipelines.maintenance.seen_keys import SeenKeys
from pipelines.maintenance.verify_digest import COLUMNS, _Sums
from pipelines.maintenance.verify_redis import QueueKey, pages
from tests.pipelines.makers import seq_at

WALKED = (QueueKey.PENDING, QueueKey.PARKED, QueueKey.IN_FLIGHT)


def test_a_key_returned_twice_by_scan_counts_once(redis: Redis) -> None:
    redis.zadd(keys.pending("V1"), {str(seq_at(1)): seq_at(1), str(seq_at(90)): seq_at(90)})
    redis.zadd(keys.parked("V1"), {str(seq_at(2)): seq_at(2)})
    redis.zadd(keys.pending("V2"), {str(seq_at(91)): seq_at(91)})  # too new to be in a digest, as is V1's last
    redis.hset(keys.inflight("V1"), "seq", seq_at(1))
    (walked,) = pages(redis, WALKED)
    newest = np.full(MAX_NODE + 1, seq_at(50), np.int64)
    once, again = (_Sums(redis, newest) for _ in range(2))
    once.add(walked)
    for page in (walked[:2] + walked[:1], walked[1:], walked):  # in one page, and in several
        again.add(page)

    assert again.rows() == once.rows()
    counted = {column: sum(once.rows()[column].to_pylist()) for column in COLUMNS[:-1]}
    assert counted == {"waiting": 4, "young": 2, "odd": 0, "entries": 2}


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 20))
def test_each_key_is_new_once_in_any_order(numbers: list[int], size: int) -> None:
    seen, told, known = SeenKeys(), list[bool](), set[int]()
    for start in range(0, len(numbers), size):
        told += seen.add(np.array(numbers[start : start + size], np.uint64)).tolist()
    expected = []
    for number in numbers:
        expected.append(number not in known)
        known.add(number)
    assert told == expected
