"""Reads a compacted queue from the lake. Needs no Spark."""

from collections.abc import Set
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo

from manifold.contracts.ecq_rows import StateRow
from manifold.contracts.tables import ECQ_INDEX, ECQ_SEQNO, ECQ_STATE
from manifold.lake.catalog import where
from manifold.lake.ecq_payloads import messages
from manifold.lake.reads import rows_of


@dataclass(frozen=True, slots=True)
class QueueInLake:
    """One client's compacted queue in the lake. Before compaction a key may have several messages."""

    writes: dict[int, str]  # seq → key
    rows: set[StateRow]  # acknowledgements, expiries and rewinds
    last_seq: int | None  # the greatest seq of any message, acknowledged or not; None: the lake has none


def read_queue_in_lake(catalog: Catalog, client_id: str) -> QueueInLake:
    """Read everything in the lake about a client."""
    is_of_client = where(EqualTo, "client_id", client_id)
    state_rows = rows_of(catalog, ECQ_STATE, is_of_client, ("acked_seq", "acked_at", "epoch", "kind"))
    index_rows = rows_of(catalog, ECQ_INDEX, is_of_client, ("seq", "key"))
    seqno_rows = rows_of(catalog, ECQ_SEQNO, is_of_client, ("last_seq",))
    return QueueInLake(
        writes={row["seq"]: row["key"] for row in index_rows},
        rows={StateRow(row["acked_seq"], row["acked_at"], row["epoch"], row["kind"]) for row in state_rows},
        last_seq=max((row["last_seq"] for row in seqno_rows), default=None),
    )


def read_sizes(catalog: Catalog, client_id: str, seqs: Set[int]) -> dict[int, int]:
    """Return by seq the payload sizes (bytes) of those messages that are in the lake. Only few payloads are in memory at once."""
    sizes: dict[int, int] = {}
    for chunk in messages(catalog, [(client_id, seq) for seq in seqs]):
        sizes |= {seq: len(message.payload) for (_, seq), message in chunk.items()}
    return sizes
