"""Decides which rows of compacted queues are unneeded. Pure; runs on Spark workers, with all rows of a client in one call.

Compaction removes rows on which no query result depends: superseded messages, and states (`manifold.contracts.ecq_rows`).
Garbage collection removes messages past their retention. Messages that are acknowledged, expired or superseded are only removed;
messages that are still pending expire first.
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
# The column `what` has one of these words. Rows of messages have client_id and seq; expiring messages also have the epoch. Rows
# of states and positions have all columns.
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
    """Yield rows of `CHANGES`: superseded messages and states to remove, and positions to add in place of states.

    States at or after `settled_before` are kept, because records that belong to them may still arrive.
    """
    yield _superseded(rows, SUPERSEDED)
    changed_states: list[dict[str, Any]] = []
    for queue in folded(rows):
        if queue.state_rows:
            live_seqs = {seq for seq, _ in queue.live}
            changes = compact(queue.state_rows, live_seqs, older_than=settled_before)
            changed_states += (_state_change(STATE, queue.client_id, row) for row in changes.removed)
            changed_states += (_state_change(POSITION, queue.client_id, row) for row in changes.added)
    yield pa.Table.from_pylist(changed_states, schema=CHANGES)


class KeptFrom(NamedTuple):
    """The lowest seqs of messages that are within their retention."""

    acknowledged: int
    pending: int  # 0: all pending messages are kept


def past_retention(rows: pa.Table, *, kept_from: KeptFrom) -> Iterator[pa.Table]:
    """Yield rows of `CHANGES`: messages past their retention, `EXPIRING` if they are pending, else `OVERDUE`."""
    all_kept_from = max(kept_from)
    # Superseded messages are removed, too: without the newer message of their key, they would be live again.
    yield _superseded(rows, OVERDUE, before=all_kept_from)
    found: list[dict[str, Any]] = []
    for queue in folded(rows):
        oldest_live_seq = queue.live[0][0] if queue.live else None
        if oldest_live_seq is None or oldest_live_seq >= all_kept_from:  # no live message is past its retention
            continue
        state = queue.state()
        for seq, _ in queue.live:
            if state.expired_at(seq) is not None:  # it has expired already
                what, first_kept_seq = OVERDUE, all_kept_from
            elif state.is_acknowledged(seq):
                what, first_kept_seq = OVERDUE, kept_from.acknowledged
            else:
                what, first_kept_seq = EXPIRING, kept_from.pending
            if seq < first_kept_seq:
                found.append({"what": what, "client_id": queue.client_id, "seq": seq, "epoch": state.epoch})
    yield pa.Table.from_pylist(found, schema=CHANGES)


def _superseded(rows: pa.Table, what: str, *, before: int | None = None) -> pa.Table:
    """Rows of `CHANGES`, with this word in `what`, for messages that a newer message of their key has superseded.

    With `before`, only messages with a lower seq.
    """
    messages = rows.filter(pc.equal(rows["kind"], MESSAGE))
    if before is not None:
        messages = messages.filter(pc.less(messages["seq"], before))
    is_live = pc.is_in(messages["seq"], value_set=newest_of_keys(rows)["seq"])
    superseded = messages.filter(pc.invert(is_live))
    count = superseded.num_rows
    columns = {
        "what": pa.array([what] * count, pa.string()),
        "client_id": superseded["client_id"],
        "seq": superseded["seq"],
    }
    return pa.table({field.name: columns.get(field.name, pa.nulls(count, field.type)) for field in CHANGES}, schema=CHANGES)


def _state_change(what: str, client_id: str, row: StateRow) -> dict[str, Any]:
    """A row of `CHANGES` for a row of `ecq_state`."""
    values = {"seq": row.acked_seq, "at": row.acked_at, "epoch": row.epoch, "kind": row.kind}
    return {"what": what, "client_id": client_id} | values
