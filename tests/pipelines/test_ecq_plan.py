"""Garbage collection of compacted queues removes exactly the messages past their retention, for any mix of records."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.ecq_state import fold
from manifold.contracts.queue_names import ecq_queue
from manifold.contracts.tables import StateKind
from manifold.queues import BlockingBatch, Policy
from manifold.queues.verbs.ecq import Append
from manifold.settings import Settings
from pipelines.maintenance.ecq_garbage import _expirer
from pipelines.maintenance.ecq_plan import EXPIRING, OVERDUE, KeptFrom, past_retention
from pipelines.populate.ecq_fold import MESSAGE, UNITED
from tests.support.servers import Server

AT = datetime(2026, 3, 1, tzinfo=UTC)
SEQS = st.integers(1, 20)
EPOCHS = st.sampled_from([0, 100, 200])


def message(seq: int, key: str) -> dict[str, object]:
    return {"client_id": "c", "seq": seq, "key": key, "kind": MESSAGE}


def state(seq: int, epoch: int, kind: StateKind) -> dict[str, object]:
    return {"client_id": "c", "seq": seq, "at": AT, "epoch": epoch, "kind": kind.value}


def planned(rows: list[dict[str, object]], kept_from: KeptFrom) -> dict[str, set[int]]:
    table = pa.concat_tables(list(past_retention(pa.Table.from_pylist(rows, schema=UNITED), kept_from=kept_from)))
    found: dict[str, set[int]] = {OVERDUE: set(), EXPIRING: set()}
    for row in table.to_pylist():
        assert row["seq"] not in found[OVERDUE] | found[EXPIRING], "each is named once"
        found[row["what"]].add(row["seq"])
    return found


@given(
    st.dictionaries(SEQS, st.sampled_from("abc"), max_size=8),
    st.lists(st.tuples(SEQS, EPOCHS), max_size=6),
    st.lists(st.tuples(SEQS, EPOCHS), max_size=3),
    st.lists(st.tuples(st.sampled_from([100, 200]), SEQS), max_size=2),
    st.integers(0, 21),
    st.integers(0, 21),
)
def test_only_messages_past_their_retention_are_removed(
    messages: dict[int, str],
    acks: list[tuple[int, int]],
    expiries: list[tuple[int, int]],
    rewinds: list[tuple[int, int]],
    acknowledged: int,
    pending: int,
) -> None:
    rows = [message(seq, key) for seq, key in messages.items()]
    rows += [state(seq, epoch, StateKind.ACKNOWLEDGED) for seq, epoch in acks]
    rows += [state(seq, epoch, StateKind.EXPIRED) for seq, epoch in expiries]
    rows += [state(first - 1, rewind, StateKind.REWOUND) for rewind, first in rewinds]
    queue = fold(messages.items(), acks, rewinds, expiries)
    live = set(queue.live.values())
    waiting = live - queue.acknowledged - queue.expired
    ended = {seq for seq in queue.acknowledged if seq < acknowledged}
    ended |= {seq for seq in (set(messages) - live) | queue.expired if seq < max(acknowledged, pending)}

    found = planned(rows, KeptFrom(acknowledged, pending))

    assert found == {OVERDUE: ended, EXPIRING: {seq for seq in waiting if seq < pending}}


def test_an_expiry_carries_the_epoch_of_its_queue() -> None:
    rows = [message(3, "a"), state(2, 100, StateKind.REWOUND)]
    (_, changes) = past_retention(pa.Table.from_pylist(rows, schema=UNITED), kept_from=KeptFrom(0, 9))
    assert [(row["what"], row["seq"], row["epoch"]) for row in changes.to_pylist()] == [(EXPIRING, 3, 100)]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_worker_names_the_messages_that_redis_ended(redis: Redis, redis_server: Server, in_flight: bool) -> None:
    policy = Policy.of(Settings())
    batch = BlockingBatch(redis, policy)
    batch.add(ecq_queue("c1"), Append(7, "a", b"x"), 1)
    batch.run()
    if in_flight:
        redis.hset(keys.ecq_keys("c1")[1], "seq", 7)
    schema = pa.schema([("client_id", pa.string()), ("seq", pa.int64()), ("epoch", pa.int64())])
    rows = pa.RecordBatch.from_pylist(
        [{"client_id": c, "seq": seq, "epoch": epoch} for c, seq, epoch in (("c1", 7, 1), ("c2", 8, 2), ("c2", 9, 2))], schema
    )
    expire = _expirer(f"redis://localhost:{redis_server.port}", policy, 5)

    ended = [row for done in expire([rows, rows.slice(0, 0)]) for row in done.to_pylist()]

    assert [(row["client_id"], row["seq"], row["epoch"]) for row in ended] == [
        *([] if in_flight else [("c1", 7, 1)]),
        ("c2", 8, 2),
        ("c2", 9, 2),
    ]
    assert redis.exists(keys.ecq_keys("c1")[0]) == int(in_flight)
