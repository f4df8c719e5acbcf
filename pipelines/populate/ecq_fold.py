"""Folds the rows of `ecq_index` and `ecq_state` into one queue per client. Arrow tables in, on Spark workers.

To fold is to find the newest message of each key, and to apply acknowledgements and rewinds by `manifold.contracts.ecq_rows`.
Before, the rows of both tables are united under one schema, so that one shuffle groups all rows of a client.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.ecq_rows import RecordedState, StateRow
from manifold.contracts.tables import INSTANT

CLIENT_BATCH_SIZE = 1000
MESSAGE = "message"  # kind of a row of the index; the other kinds are those of the state
UNITED = pa.schema(  # of united rows: each is a message of the index, or a row of the state
    [
        ("client_id", pa.string()),
        ("seq", pa.int64()),  # the seq of a message, or the acked_seq of a state
        ("key", pa.string()),  # of a message; null for a state
        ("at", INSTANT),  # acked_at of a state; null for a message
        ("epoch", pa.int64()),  # of a state; null for a message
        ("kind", pa.string()),
    ]
)


class FoldedQueue(NamedTuple):
    """The queue of a client, as the lake has recorded it."""

    client_id: str
    live: list[tuple[int, str]]  # (seq, key) of the newest message of each key, oldest first
    state_rows: Sequence[StateRow]  # the client's rows of `ecq_state`

    def state(self) -> RecordedState:
        """The state that results from the state rows."""
        return RecordedState(self.state_rows)


def united(index: DataFrame, state: DataFrame) -> DataFrame:
    """Unite the rows of both tables under the schema `UNITED`."""
    null_key = sf.lit(None).cast("string")
    null_instant = sf.lit(None).cast("timestamp")
    null_epoch = sf.lit(None).cast("bigint")
    messages = index.select("client_id", "seq", "key", null_instant, null_epoch, sf.lit(MESSAGE))
    states = state.select("client_id", "acked_seq", null_key, "acked_at", "epoch", "kind")
    return messages.toDF(*UNITED.names).unionByName(states.toDF(*UNITED.names))


def newest_of_keys(rows: pa.Table) -> pa.Table:
    """client_id, key and seq of the live messages among united rows: the newest message of each key."""
    messages = rows.filter(pc.equal(rows["kind"], MESSAGE)).select(["client_id", "key", "seq"])
    newest = messages.group_by(["client_id", "key"], use_threads=False).aggregate([("seq", "max")])
    return newest.rename_columns({"seq_max": "seq"})


def folded(rows: pa.Table) -> Iterator[FoldedQueue]:
    """Yield the folded queue of each client. `rows` must have all united rows of each client."""
    state_rows = _state_rows(rows.filter(pc.not_equal(rows["kind"], MESSAGE)))
    by_client = newest_of_keys(rows).group_by("client_id", use_threads=False).aggregate([("seq", "list"), ("key", "list")])
    for batch in by_client.to_batches(max_chunksize=CLIENT_BATCH_SIZE):
        columns = (batch["client_id"].to_pylist(), batch["seq_list"].to_pylist(), batch["key_list"].to_pylist())
        for client_id, seqs, keys in zip(*columns, strict=True):
            live = sorted(zip(seqs, keys, strict=True))
            yield FoldedQueue(client_id, live, state_rows.pop(client_id, ()))
    for client_id, remaining_rows in state_rows.items():  # clients that have no messages
        yield FoldedQueue(client_id, [], remaining_rows)


def _state_rows(rows: pa.Table) -> dict[str, Sequence[StateRow]]:
    """The state rows of each client, from united rows without messages."""
    rows_by_client: dict[str, list[StateRow]] = {}
    for batch in rows.to_batches(max_chunksize=1 << 16):
        columns = (batch[name].to_pylist() for name in ("client_id", "seq", "at", "epoch", "kind"))
        for client_id, acked_seq, acked_at, epoch, kind in zip(*columns, strict=True):
            rows_by_client.setdefault(client_id, []).append(StateRow(acked_seq, acked_at, epoch, kind))
    return dict(rows_by_client)
