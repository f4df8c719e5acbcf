"""Decides which rows of compacted queues are unneeded, over all rows of each client. Pure; runs on Spark workers.

Compaction removes rows that change no query result: superseded messages, and rows of the state (`manifold.contracts.ecq_rows`).
Garbage collection removes messages past their retention: acknowledged, expired and superseded ones, and pending ones, which
expire.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from manifold.contracts.ecq_rows import StateRow, compact
from manifold.contracts.tables import INSTANT
from pipelines.populate.ecq_fold import MESSAGE, folded, newest_of_keys

SUPERSEDED, STATE, POSITION, OVERDUE, EXPIRING = "superseded", "state", "position", "overdue", "expiring"
# `what` is one of these words. A message has client_id and seq, an expiring one also the epoch, a state all columns.
CHANGES = pa.schema(
    [
        ("what", pa.string()),
        ("client_id", pa.string()),
        ("seq", pa.int64()),
        ("at", INSTANT),
        ("epoch", pa.int64()),
        ("kind", pa.string()),
    ]
)
CHANGES_IN_SPARK = "what string, client_id string, seq bigint, at timestamp, epoch bigint, kind string"


def compaction(rows: pa.Table, *, settled_before: datetime) -> Iterator[pa.Table]:
    """Yield superseded messages and states to remove, and the positions that replace states."""
    messages = rows.filter(pc.equal(rows["kind"], MESSAGE)).select(["client_id", "seq"])
    live = newest_of_keys(rows)["seq"]
    yield _differences(SUPERSEDED, messages.filter(pc.invert(pc.is_in(messages["seq"], value_set=live))))
    found: list[dict[str, Any]] = []
    for queue in folded(rows):
        if queue.rows:
            changes = compact(queue.rows, {seq for seq, _ in queue.live}, settled_before=settled_before)
            found += (_state(STATE, queue.client_id, row) for row in changes.removed)
            found += (_state(POSITION, queue.client_id, row) for row in changes.added)
    yield pa.Table.from_pylist(found, schema=CHANGES)


class Cut(NamedTuple):
    """The lowest seqs within the retentions."""

    acknowledged: int
    pending: int  # 0: pending messages are kept


def past_retention(rows: pa.Table, *, cut: Cut) -> Iterator[pa.Table]:
    """Yield messages past their retention: `EXPIRING` if they are pending, else `OVERDUE`."""
    latest = max(cut)
    messages = rows.filter(pc.and_(pc.equal(rows["kind"], MESSAGE), pc.less(rows["seq"], latest))).select(["client_id", "seq"])
    live = newest_of_keys(rows)["seq"]
    # Superseded messages go too: if only the newer message of the key went, they would be live again.
    yield _differences(OVERDUE, messages.filter(pc.invert(pc.is_in(messages["seq"], value_set=live))))
    found: list[dict[str, Any]] = []
    for queue in folded(rows):
        if not queue.live or queue.live[0][0] >= latest:
            continue
        state = queue.state()
        for seq, _ in queue.live:
            if state.expired_at(seq) is not None:
                what, before = OVERDUE, latest
            elif state.is_acknowledged(seq):
                what, before = OVERDUE, cut.acknowledged
            else:
                what, before = EXPIRING, cut.pending
            if seq < before:
                found.append({"what": what, "client_id": queue.client_id, "seq": seq, "epoch": state.epoch})
    yield pa.Table.from_pylist(found, schema=CHANGES)


def _differences(what: str, messages: pa.Table) -> pa.Table:
    columns = {"what": pa.array([what] * messages.num_rows, pa.string()), "client_id": messages["client_id"]}
    columns |= {"seq": messages["seq"]}
    return pa.table({f.name: columns.get(f.name, pa.nulls(messages.num_rows, f.type)) for f in CHANGES}, schema=CHANGES)


def _state(what: str, client_id: str, row: StateRow) -> dict[str, Any]:
    values = {"seq": row.acked_seq, "at": row.acked_at, "epoch": row.epoch, "kind": row.kind}
    return {"what": what, "client_id": client_id} | values
