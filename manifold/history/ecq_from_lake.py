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
    rows: set[StateRow]
    last_seq: int | None


def read_queue_in_lake(catalog: Catalog, client_id: str) -> QueueInLake:
    """Read everything in the lake about a client."""
    mine = where(EqualTo, "client_id", client_id)
    state = rows_of(catalog, ECQ_STATE, mine, ("acked_seq", "acked_at", "epoch", "kind"))
    index = rows_of(catalog, ECQ_INDEX, mine, ("seq", "key"))
    seqno = rows_of(catalog, ECQ_SEQNO, mine, ("last_seq",))
    return QueueInLake(
        writes={row["seq"]: row["key"] for row in index},
        rows={StateRow(row["acked_seq"], row["acked_at"], row["epoch"], row["kind"]) for row in state},
        last_seq=max((row["last_seq"] for row in seqno), default=None),
    )


def read_sizes(catalog: Catalog, client_id: str, seqs: Set[int]) -> dict[int, int]:
    """Return the payload sizes in bytes of these messages, if the lake has them. Holds only a few payloads in memory."""
    found: dict[int, int] = {}
    for piece in messages(catalog, [(client_id, seq) for seq in seqs]):
        found |= {seq: len(message.payload) for (_, seq), message in piece.items()}
    return found
