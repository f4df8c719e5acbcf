"""Folds index and state of compacted queues, client by client, over Arrow tables, on Spark workers.

It finds the newest message of each key, and applies acknowledgements and rewinds by `manifold.contracts.ecq_rows`. Rows of both
tables are first brought into one schema, so that Spark groups those of a client in one shuffle.
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
UNITED = pa.schema(
    [
        ("client_id", pa.string()),
        ("seq", pa.int64()),  # of the message, or acked_seq
        ("key", pa.string()),  # of a message
        ("at", INSTANT),  # of a state
        ("epoch", pa.int64()),  # of a state
        ("kind", pa.string()),
    ]
)


class FoldedQueue(NamedTuple):
    """A client's queue as recorded in the lake."""

    client_id: str
    live: list[tuple[int, str]]  # (seq, key) of the newest message of each key, oldest first
    rows: Sequence[StateRow]

    def state(self) -> RecordedState:
        """The state that results from the rows."""
        return RecordedState(self.rows)


def united(index: DataFrame, state: DataFrame) -> DataFrame:
    """The rows of both tables in the schema `UNITED`."""
    none = {name: sf.lit(None).cast(kind) for name, kind in (("key", "string"), ("at", "timestamp"), ("epoch", "bigint"))}
    messages = index.select("client_id", "seq", "key", none["at"].alias("at"), none["epoch"].alias("epoch"), sf.lit(MESSAGE))
    seqs = sf.col("acked_seq").alias("seq")
    states = state.select("client_id", seqs, none["key"].alias("key"), sf.col("acked_at").alias("at"), "epoch", "kind")
    return messages.toDF(*UNITED.names).unionByName(states.toDF(*UNITED.names))


def newest_of_keys(rows: pa.Table) -> pa.Table:
    """(client_id, key, seq) of the live messages among united rows."""
    messages = rows.filter(pc.equal(rows["kind"], MESSAGE)).select(["client_id", "key", "seq"])
    newest = messages.group_by(["client_id", "key"], use_threads=False).aggregate([("seq", "max")])
    return newest.rename_columns({"seq_max": "seq"})


def folded(rows: pa.Table) -> Iterator[FoldedQueue]:
    """Fold each client's united rows; `rows` must have all of each client's."""
    states = _states(rows.filter(pc.not_equal(rows["kind"], MESSAGE)))
    lists = newest_of_keys(rows).group_by("client_id", use_threads=False).aggregate([("seq", "list"), ("key", "list")])
    for batch in lists.to_batches(max_chunksize=CLIENT_BATCH_SIZE):
        columns = (batch[name].to_pylist() for name in ("client_id", "seq_list", "key_list"))
        for client_id, seqs, keys in zip(*columns, strict=True):
            yield FoldedQueue(client_id, sorted(zip(seqs, keys, strict=True)), states.pop(client_id, ()))
    for client_id, left in states.items():
        yield FoldedQueue(client_id, [], left)


def _states(rows: pa.Table) -> dict[str, Sequence[StateRow]]:
    found: dict[str, list[StateRow]] = {}
    for batch in rows.to_batches(max_chunksize=1 << 16):
        made = map(StateRow._make, zip(*(batch[name].to_pylist() for name in ("seq", "at", "epoch", "kind")), strict=True))
        for client_id, row in zip(batch["client_id"].to_pylist(), made, strict=True):
            found.setdefault(client_id, []).append(row)
    return dict(found)
