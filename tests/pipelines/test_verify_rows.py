"""Rows from Redis' replies: the same for any batch size."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from pipelines.maintenance.verify_redis import QueueKey, _rows

SPOILT = ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")
MEMBERS = st.one_of(
    st.integers(0, 9).map(lambda n: str(n).encode()),
    st.just(b"9223372036854775807"),
    st.sampled_from([b"", b"-1", b"0x1", b"what is this", b"\xff", b" 7"]),
)
QUEUES = st.one_of(
    st.tuples(
        st.sampled_from([QueueKey.PENDING, QueueKey.PARKED, QueueKey.DONE]), st.lists(MEMBERS, max_size=6) | st.just(SPOILT)
    ),
    st.tuples(st.just(QueueKey.IN_FLIGHT), MEMBERS | st.none() | st.just(SPOILT)),
)


def expected(owner: str, kind: QueueKey, reply: Any) -> list[tuple[str, int, str, bool]]:
    held = [] if reply is None or reply is SPOILT else reply if isinstance(reply, list) else [reply]
    seqs = [int(one) for one in held if one.isdigit()]
    behind = [kind is not QueueKey.DONE and any(seq > later for later in seqs[n + 1 :]) for n, seq in enumerate(seqs)]
    return [(owner, seq, kind.value, late) for seq, late in zip(seqs, behind, strict=True)]


@given(st.lists(QUEUES, max_size=8))
def test_each_entry_becomes_a_row_and_invalid_ones_are_skipped(queues: list[tuple[QueueKey, Any]]) -> None:
    page = [(f"V{n}", kind) for n, (kind, _) in enumerate(queues)]
    rows = pa.Table.from_batches([_rows(page, [reply for _, reply in queues])]).to_pylist()

    assert [tuple(row.values()) for row in rows] == [
        row for (owner, kind), (_, reply) in zip(page, queues, strict=True) for row in expected(owner, kind, reply)
    ]
