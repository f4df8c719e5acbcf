"""A compacted queue as the lake has it. Needs no Spark."""

from collections.abc import Set
from dataclasses import dataclass

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, EqualTo

from adapters.lake import where
from adapters.lake_reads import rows_of, triggers_filter
from contracts.ecq_rows import StateRow
from contracts.tables import ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE

SEQS_A_READ = 1000  # that one filter names


@dataclass(frozen=True, slots=True)
class QueueInLake:
    """Of one client. Compaction may not have come yet: a key may have several messages."""

    writes: dict[int, str]  # seq → key
    rows: set[StateRow]
    last_seq: int | None


def read_queue_in_lake(catalog: Catalog, client_id: str) -> QueueInLake:
    """All that the lake knows of a client."""
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
    """How many bytes the payloads of these messages have, as far as the lake has them. Few are in memory at once."""
    try:
        table = catalog.load_table(ECQ_PAYLOAD.identifier)
    except NoSuchTableError:  # nothing has been ingested yet
        return {}
    found: dict[int, int] = {}
    wanted = sorted(seqs)
    for start in range(0, len(wanted), SEQS_A_READ):
        some = And(where(EqualTo, "client_id", client_id), triggers_filter("ts", set(wanted[start : start + SEQS_A_READ])))
        for batch in table.scan(some, ("seq", "payload")).to_arrow_batch_reader():
            sizes = pc.binary_length(batch["payload"]).to_pylist()
            found.update(zip(batch["seq"].to_pylist(), sizes, strict=True))
    return found
